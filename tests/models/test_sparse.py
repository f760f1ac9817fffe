"""Longformer and BigBird agree with Hugging Face transformers, padding included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks, models
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, ConfigError, DTypeError, ShapeError
from stof_cupy.testing import assert_close
from tests.goldens.cases import BIG_BIRD, GPT2, KEPT_ROWS, LONGFORMER, RUNS, SEED, SPARSE
from tests.models.rounded import Rounded
from tests.models.test_decoders import close, engine_of

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDENS / "sparse.npz") as file:
        return dict(file)


def tokens(config: dict[str, Any], seq: int) -> np.ndarray:
    return np.random.default_rng(SEED).integers(2, config["vocab_size"], (2, seq))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", SPARSE)
def test_hidden_states(name, run, golden):
    config, how = SPARSE[name], RUNS[run]
    extra = {"global_tokens": how["global_tokens"]} if name == "longformer" else {}
    ids = tokens(config, how["seq"])
    hidden = engine_of(config).run(ids, lengths=np.array(how["lengths"]), **extra)
    close(hidden[:, ::KEPT_ROWS], golden[f"{name}/{run}"])


def test_global_tokens_in_every_form():
    engine, ids = engine_of(LONGFORMER), tokens(LONGFORMER, 200)
    two = engine.run(ids, global_tokens=2)
    flags = np.zeros((2, 200), bool)
    flags[:, :2] = True
    assert np.array_equal(engine.run(ids, global_tokens=[0, 1]), two)
    assert np.array_equal(engine.run(ids, global_tokens=flags), two)
    flags[1, :2] = False
    flags[1, 150] = True
    mixed = engine.run(ids, global_tokens=flags)
    close(mixed[0], two[0], 1e-6)
    close(mixed[1], engine.run(ids, global_tokens=[150])[1], 1e-6)


@pytest.mark.parametrize("flags", [False, True])
def test_a_layers_mask_is_that_of_global_tokens_too(flags):
    """Their rows of it are attended by their own projections, and by no others."""
    engine, ids = engine_of(LONGFORMER), tokens(LONGFORMER, 200)
    given: Any = [0, 150]
    if flags:
        given = np.zeros((2, 200), bool)
        given[0, [0, 150]] = given[1, 7] = True
    each = [[0, 150], [7]] if flags else [[0, 150]] * 2
    own = {}
    for layer, kind in enumerate(engine._model.layer_masks):
        near = masks.sliding_window(200, window=kind.window)
        dense = [(near | masks.global_tokens(200, np.array(at))).toarray() for at in each]
        own[layer] = np.stack(dense)[:, None]
    close(
        engine.run(ids, global_tokens=given, layer_masks=own),
        engine.run(ids, global_tokens=given),
        1e-6,
    )
    none = engine.run(ids, global_tokens=given, layer_masks={0: None, 1: None})
    close(engine.run(ids, global_tokens=given, layer_masks={0: "full", 1: "full"}), none, 1e-6)
    far = ids.copy()
    far[:, 100] = 5
    near_only = {0: "sliding:w=2", 1: "sliding:w=2"}
    first, second = (engine.run(x, global_tokens=1, layer_masks=near_only) for x in (ids, far))
    assert np.array_equal(first[:, :90], second[:, :90]) and not np.array_equal(first, second)


def test_masks_take_away_and_replace():
    engine, ids = engine_of(LONGFORMER), tokens(LONGFORMER, 200)
    near = engine.run(ids, mask="sliding:w=3")
    same = engine.run(ids, layer_masks={0: "sliding:w=3", 1: "sliding:w=3"})
    close(near, same, 1e-6)
    engine, ids = engine_of(BIG_BIRD), tokens(BIG_BIRD, 200)
    whole = engine.run(ids)
    assert np.array_equal(engine.run(ids, mask=np.ones((200, 200), bool)), whole)
    per_head = np.ones((2, 2, 200, 200), bool)
    assert np.array_equal(engine.run(ids, mask=per_head), whole)
    causal = engine.run(ids, mask=masks.causal(200))
    changed = ids.copy()
    changed[:, 150] = 5
    assert np.array_equal(engine.run(changed, mask="causal")[:, :150], causal[:, :150])
    full = engine_of({**BIG_BIRD, "attention_type": "original_full"})
    everyone = {0: "full", 1: "full"}
    # Without a mask of its own a layer still has the first block's copies.
    assert not np.allclose(engine.run(ids, layer_masks=everyone), full.run(ids), atol=1e-3)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 199])
def test_a_sequence_that_ends_early_is_the_same_alone(length):
    """Also within the first block, whose copies then hold padding too."""
    engine, ids = engine_of(BIG_BIRD), tokens(BIG_BIRD, 200)
    changed = ids.copy()
    changed[1, length:] = 7
    lengths = np.array([200, length])
    got = engine.run(ids, lengths=lengths)
    close(engine.run(changed, lengths=lengths)[1], got[1], 1e-6)
    assert not got[1, length:].any()
    close(got[0], engine.run(ids)[0], 1e-6)


@pytest.mark.parametrize(
    ("config", "how", "error", "match"),
    [
        (LONGFORMER, {"global_tokens": [50]}, ArgumentError, "positions below 50"),
        (LONGFORMER, {"global_tokens": -1}, ArgumentError, "global_tokens: got -1"),
        (LONGFORMER, {"global_tokens": [0.5]}, DTypeError, "global_tokens"),
        (LONGFORMER, {"global_tokens": np.ones(50, bool)}, ShapeError, "global_tokens"),
        (BIG_BIRD, {"global_tokens": 1}, ArgumentError, "first and the last block"),
        (GPT2, {"global_tokens": 1}, ArgumentError, "no global tokens"),
    ],
)
def test_bad_global_tokens(config, how, error, match):
    with pytest.raises(error, match=match):
        engine_of(config).run(np.ones((1, 50), int), **how)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({**LONGFORMER, "attention_window": 63}, "attention_window"),
        ({**LONGFORMER, "attention_window": [64]}, "attention_window"),
        ({**LONGFORMER, "pad_token_id": -1}, "pad_token_id"),
        ({**LONGFORMER, "odd": 1}, "a Longformer config has"),
        ({**BIG_BIRD, "attention_type": "dense"}, "attention_type"),
        ({**BIG_BIRD, "block_size": 0}, "block_size"),
        ({**BIG_BIRD, "is_decoder": True}, "is_decoder"),
    ],
)
def test_configs_are_refused_by_field(config, match):
    with pytest.raises(ConfigError, match=match):
        models.random_weights(config)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("run", ["1k", "4k"])
@pytest.mark.parametrize("name", ["longformer", "big_bird"])
def test_on_the_gpu(name, run, dtype, golden):
    config, how = SPARSE[name], RUNS[run]
    extra = {"global_tokens": how["global_tokens"]} if name == "longformer" else {}
    ids, lengths = tokens(config, how["seq"]), np.array(how["lengths"])
    plain = Rounded(models.random_weights(config, SEED), low=dtype, config=config)
    low = plain.run(ids, lengths=lengths, **extra).astype(as_dtype(dtype))
    got = engine_of(config, backend="cuda", dtype=dtype).run(ids, lengths=lengths, **extra)
    assert_close(got[:, ::KEPT_ROWS], golden[f"{name}/{run}"], low[:, ::KEPT_ROWS])
