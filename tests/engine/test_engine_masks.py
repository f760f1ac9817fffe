"""Masks per sequence, per head or both, through the engine, against a dense model in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stof_cupy import TransformerEngine, masks
from stof_cupy.errors import MaskError, ShapeError
from stof_cupy.ops import reference

BATCH, HEADS, SEQ = 3, 3, 131
LENGTHS = np.array([SEQ, 70, 1], np.int32)
LEADS = {
    "per head": (HEADS,),
    "per head, two axes": (1, HEADS),
    "per sequence": (BATCH, 1),
    "both": (BATCH, HEADS),
}


def random_mask(lead: tuple[int, ...], seq: int = SEQ) -> np.ndarray:
    mask = np.random.default_rng(6).random((*lead, seq, seq)) < 0.1
    mask[..., 5, :] = False
    return mask


def heads_of(seq: int) -> masks.MaskStack:
    every = [masks.causal(seq), masks.sliding_window(seq, window=3), masks.full(seq)]
    return masks.stack(every)


def dense_bert(config, w, ids, mask, lengths, layers=None) -> np.ndarray:
    """Compute the hidden states with the float64 oracle of every operator; padding is 0.

    `layers` has bool arrays that are a layer's beside `mask`.
    """
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]

    def linear(x, name, **epilogue):
        bias = w[f"{name}.bias"]
        return reference.gemm(x, w[f"{name}.weight"].T, bias=bias, **epilogue)

    def norm(x, name):
        return reference.layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps=eps)

    words, positions, types = (
        w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
    )
    x = reference.embedding(ids, words, position_table=positions, type_table=types)
    x = norm(x, "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        q, k, v = (
            linear(x, f"{at}.attention.self.{name}")
            .reshape(*ids.shape, heads, -1)
            .transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        own = (layers or {}).get(i)
        both = mask if own is None else own if mask is None else own & mask
        y = reference.attention(q, k, v, both, kv_lengths=lengths)
        y = y.transpose(0, 2, 1, 3).reshape(x.shape)
        y = linear(y, f"{at}.attention.output.dense", residual=x)
        x = norm(y, f"{at}.attention.output.LayerNorm")
        y = linear(x, f"{at}.intermediate.dense", activation="gelu")
        x = norm(linear(y, f"{at}.output.dense", residual=x), f"{at}.output.LayerNorm")
    if lengths is not None:
        x[np.arange(ids.shape[1]) >= lengths[:, None]] = 0
    return x


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "ragged"])
def test_leading_axes_against_a_dense_model(config, weights, engine, ids, lead, lengths):
    mask = random_mask(lead)
    exact = dense_bert(config, weights, ids, mask, lengths)
    for given in (mask, masks.MaskStack.from_dense(mask), lambda seq: random_mask(lead, seq)):
        hidden = engine.run(ids, mask=given, lengths=lengths)
        assert np.abs(hidden - exact).max() < 1e-5
    assert np.abs(exact - dense_bert(config, weights, ids, None, lengths)).max() > 1e-2


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "ragged"])
@pytest.mark.parametrize("mask", [None, random_mask(())], ids=["all", "some"])
def test_layers_with_masks_of_their_own(config, weights, engine, ids, mask, lengths):
    window, heads = masks.sliding_window(SEQ, window=5), random_mask((BATCH, HEADS))
    forms = {
        "dense": ({0: window.toarray()}, {0: window.toarray()}),
        "spec": ({1: "sliding:w=5"}, {1: window.toarray()}),
        "per head": ({1: heads_of}, {1: heads_of(SEQ).toarray()}),
        "both": ({0: window, 1: heads}, {0: window.toarray(), 1: heads}),
        "none": ({0: None, 1: window.tobsr()}, {1: window.toarray()}),
        "one for all": (dict.fromkeys((0, 1), window), dict.fromkeys((0, 1), window.toarray())),
    }
    plain = dense_bert(config, weights, ids, mask, lengths)
    for given, dense in forms.values():
        exact = dense_bert(config, weights, ids, mask, lengths, dense)
        got = engine.run(ids, mask=mask, layer_masks=given, lengths=lengths)
        assert np.abs(got - exact).max() < 1e-5
        assert np.abs(exact - plain).max() > 1e-3
    alone = engine.run(ids, layer_masks=dict.fromkeys((0, 1), "sliding:w=5"))
    assert np.array_equal(alone, engine.run(ids, mask="sliding:w=5"))


def test_each_sequence_has_its_own_mask(engine, ids):
    own = [masks.causal(SEQ), masks.longformer(SEQ, window=4, global_tokens=2), masks.full(SEQ)]
    together = engine.run(ids, mask=masks.stack(own)[:, None], lengths=LENGTHS)
    for i, mask in enumerate(own):
        alone = engine.run(ids[i : i + 1], mask=mask, lengths=LENGTHS[i : i + 1])
        assert np.abs(together[i] - alone[0]).max() < 1e-5


def test_equal_masks_are_one(engine, ids):
    expected = engine.run(ids, mask="sliding:w=5")
    pattern = masks.sliding_window(SEQ, window=5)
    for lead in LEADS.values():
        every = np.broadcast_to(pattern.toarray(), (*lead, SEQ, SEQ))
        for given in (every, masks.MaskStack.from_dense(every)):
            assert np.array_equal(engine.run(ids, mask=given), expected)


def test_no_mask_is_that_of_the_call_before(config, weights, ids):
    """T10: whatever ran before on an engine, each mask gives what a fresh one and dense math do."""
    given = {"custom": random_mask(()), "causal": "causal", "heads": random_mask((HEADS,))}
    given["none"] = None
    expected, fresh = {}, {}
    for name, mask in given.items():
        dense = np.tri(SEQ, dtype=bool) if name == "causal" else mask
        expected[name] = dense_bert(config, weights, ids, dense, None)
        fresh[name] = TransformerEngine(weights, config=config, backend="numpy").run(ids, mask=mask)
        assert np.abs(fresh[name] - expected[name]).max() < 1e-5
    for one, other in itertools.combinations(expected.values(), 2):
        assert np.abs(one - other).max() > 1e-2
    used = TransformerEngine(weights, config=config, backend="numpy")
    for order in (["custom", "causal", "none"], *itertools.permutations(given)):
        for name in order:
            assert np.array_equal(used.run(ids, mask=given[name]), fresh[name]), order


def test_torch_masks_per_head(engine, ids):
    torch = pytest.importorskip("torch")
    mask = random_mask((1, HEADS))
    masked = engine.run(ids, mask=torch.from_numpy(mask))
    assert np.array_equal(masked, engine.run(ids, mask=mask))


@pytest.mark.parametrize(
    "lead", [(2,), (2, 1), (1, 2), (BATCH, 2), (2, HEADS), (1, 1, 1), (0, 1)], ids=str
)
def test_a_wrong_number_of_sequences_or_heads(engine, ids, monkeypatch, lead):
    monkeypatch.setattr(engine, "_program", None)  # nothing may be run
    mask = np.ones((*lead, SEQ, SEQ), bool)
    got = ", ".join(map(str, mask.shape))
    match = rf"mask: got \({got}\), expected \({BATCH}, {HEADS}, {SEQ}, {SEQ}\); .*\(batch, heads"
    for given in (mask, *([masks.MaskStack.from_dense(mask)] if mask.size else [])):
        with pytest.raises(ShapeError, match=match):
            engine.run(ids, mask=given)
    with pytest.raises(ShapeError, match=match):
        engine.run(ids, mask=lambda seq: mask)


def test_leading_axes_of_another_length_or_type(engine, ids):
    with pytest.raises(ShapeError, match=r"mask: got \(3, 7, 7\), expected \(3, 3, 131, 131\)"):
        engine.run(ids, mask=heads_of(7))
    with pytest.raises(MaskError, match=r"mask: .*float64.*bool"):
        engine.run(ids, mask=np.ones((HEADS, SEQ, SEQ)))


def test_encode_with_a_mask_per_head(checkpoint, weights, config, ids):
    # None of these masks keeps other pairs of a sentence where padding makes seq longer.
    rows = [np.resize(ids, n) for n in (5, 131, 2, 64, 65)]
    sentences = [" ".join(f"w{i}" for i in row) for row in rows]
    engine = TransformerEngine(checkpoint, backend="numpy")
    vectors = engine.encode(sentences, mask=heads_of, batch_size=2)
    for row, vector in zip(rows, vectors, strict=True):
        mask = heads_of(len(row)).toarray()
        mean = dense_bert(config, weights, row[None], mask, None)[0].mean(axis=0)
        assert np.abs(vector - mean / np.linalg.norm(mean)).max() < 1e-5


def test_encode_refuses_a_mask_per_sentence(checkpoint):
    """Sentences are sorted by length, so the masks would go to others than they were meant for."""
    engine = TransformerEngine(checkpoint, backend="numpy")
    per_sentence = masks.stack([masks.causal(2), masks.full(2)])[:, None]
    for mask in (per_sentence, per_sentence.toarray(), lambda seq: per_sentence):
        with pytest.raises(ShapeError, match=r"got \(2, 1, 2, 2\), expected \(1, 3, 2, 2\)"):
            engine.encode(["w1", "w2 w3"], mask=mask)
    assert engine.encode(["w1 w4", "w2 w3"], mask=heads_of(2)).shape == (2, 24)
