"""Inputs on which other libraries went wrong or ran out of memory (numbers of the peers' list)."""

from __future__ import annotations

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.testing import random_array, rng
from tests.masks.test_cost import MIB, cost


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Softmax attention in float64 over a dense mask without empty rows."""
    scores = np.where(kept, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def test_a_mask_of_full_blocks_alone() -> None:
    """T7: block context, no bitmap; a full block that is dropped must change the result."""
    q, k, v = random_array(rng(0), (3, 1, 2, 512, 16), "float64")
    context = masks.chunked(512, chunk=64, before=8)
    lowered = context.tobsr()
    assert lowered.bitmaps.size == 0 and lowered.ntiles == 36
    expected = plain(q, k, v, context.toarray())
    np.testing.assert_allclose(attention(q, k, v, context), expected, atol=1e-12)
    without = context & ~masks.blocks((512, 512), [5], [2])
    changed = attention(q, k, v, without)
    np.testing.assert_allclose(changed, plain(q, k, v, without.toarray()), atol=1e-12)
    rows = abs(changed - expected).max(axis=(0, 1, 3)) > 1e-6
    assert rows[320:384].all() and not rows[:320].any() and not rows[384:].any()


@pytest.mark.parametrize("s", (96_000, 1_000_000))
def test_a_long_window_is_far_from_the_square(s: int) -> None:
    """T25: the issue's bounds, times a slack for a slow core."""
    seconds, peak = cost(lambda: masks.longformer(s, window=512, global_tokens=64).tobsr())
    assert seconds < 4 * s / 10**6 + 0.2
    assert peak * MIB < min(s * s / 8 / 10, 64 * MIB)


@pytest.mark.parametrize("training", (False, True))
def test_hugging_face_bigbird_sees_the_same_blocks(training: bool) -> None:
    """One block at a time is changed in transformers' own layer, to see which outputs move."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    block, count, drawn = 16, 13, 3
    s = block * count
    config = transformers.BigBirdConfig(
        hidden_size=32,
        num_attention_heads=1,
        num_hidden_layers=1,
        intermediate_size=32,
        block_size=block,
        num_random_blocks=drawn,
        attention_type="block_sparse",
        max_position_embeddings=s,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = transformers.BigBirdModel(config).train(training)
    x = torch.randn(1, s, 32)

    @torch.no_grad()
    def run(x: object) -> np.ndarray:
        np.random.seed(0)  # the same random blocks every time
        return model(inputs_embeds=x).last_hidden_state[0].numpy()

    expected = run(x)
    sees = np.zeros((count, count), bool)
    for at in range(count):
        changed = x.clone()
        changed[:, at * block : (at + 1) * block] += 1 + torch.rand(1, block, 32)
        moved = abs(run(changed) - expected).reshape(count, -1).max(axis=1)
        sees[:, at] = moved > 1e-7
    ours = masks.bigbird_hf(s, random_blocks=0, block=block).toarray()[::block, ::block]
    assert sees[ours].all()
    rows = [0, *[drawn if training else 0] * (count - 2), 0]
    assert (sees & ~ours).sum(axis=1).tolist() == rows
