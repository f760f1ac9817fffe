"""T5 agrees with Hugging Face transformers: encoder states, logits and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import CheckpointNotFoundError, ConfigError, UnsupportedError, WeightError
from stof_cupy.models import zoo
from stof_cupy.testing import assert_close
from tests.goldens.cases import NEW, SEED, SEQ2SEQ, T5
from tests.models.rounded import Rounded, check_on_the_gpu, told
from tests.models.test_decoders import close, engine_of

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDENS / "t5.npz") as file:
        return dict(file)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_small_models(name, golden):
    engine, ids = engine_of(SEQ2SEQ[name]), golden[f"{name}/ids"]
    greedy = golden[f"{name}/greedy"]
    close(engine.run(ids), golden[f"{name}/hidden"])
    close(told(engine, ids, greedy)[:, -1], golden[f"{name}/logits"])
    assert engine.generate(ids.tolist(), max_new_tokens=NEW, stop=()) == greedy.tolist()


def test_a_ragged_batch_gives_what_each_gives_alone():
    engine = engine_of(T5)
    prompts = [[5, 6, 7], [9], list(range(2, 40))]
    alone = [engine.generate([prompt], max_new_tokens=12)[0] for prompt in prompts]
    assert engine.generate(prompts, max_new_tokens=12) == alone
    hidden = engine.run(np.array([[5, 6, 7, 8]]), lengths=np.array([3]))
    close(hidden[0, :3], engine.run([[5, 6, 7]])[0])


def test_on_numpy_in_a_type_that_it_does_not_compute_in(golden):
    engine = engine_of(SEQ2SEQ["t5-gated"], dtype="float16")
    greedy = golden["t5-gated/greedy"].tolist()
    got = engine.generate(golden["t5-gated/ids"].tolist(), max_new_tokens=NEW, stop=())
    assert got == greedy


@pytest.fixture(scope="module")
def flan() -> TransformerEngine:
    pytest.importorskip("onnx")
    try:
        config, weights, _ = zoo.flan_t5_small()
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))
    return TransformerEngine(weights, config=config, backend="numpy")


@pytest.mark.checkpoint
def test_flan_t5_small_beside_onnxruntime(flan, golden):
    """The same in floats; as far from its int8 activations as those are from the floats."""
    with np.load(GOLDENS / "t5_onnxruntime.npz") as other:
        for i, nearest in enumerate((0.7, 0.9)):
            hidden = flan.run(golden[f"flan/{i}/ids"])[:, :, ::16]
            close(hidden, other[f"{i}/float/hidden"])
            rounded = other[f"{i}/int8/hidden"]
            like = np.corrcoef(hidden.ravel(), rounded.ravel())[0, 1]
            assert nearest < like < 0.95
            said, greedy = other[f"{i}/int8/greedy"], golden[f"flan/{i}/greedy"]
            assert not np.array_equal(said, greedy)  # other words, so no golden


@pytest.mark.checkpoint
def test_flan_t5_small(flan, golden):
    engine = flan
    for i in range(2):
        ids, greedy = golden[f"flan/{i}/ids"], golden[f"flan/{i}/greedy"]
        close(engine.run(ids), golden[f"flan/{i}/hidden"])
        got = told(engine, ids, greedy)[:, -1, :: 32128 // 400]
        close(got, golden[f"flan/{i}/logits"])
        assert engine.generate(ids.tolist(), max_new_tokens=NEW, stop=()) == greedy.tolist()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj"),
        ({"d_kv": 0}, "d_kv"),
        ({"is_encoder_decoder": 3}, "is_encoder_decoder"),
        ({"odd": 1}, r"config\['odd'\]"),
    ],
)
def test_configs_are_refused_by_field(change, match):
    with pytest.raises(ConfigError, match=match):
        models.random_weights({**T5, **change})


def test_weights_are_accounted_for():
    weights = models.random_weights(T5, SEED)
    copies = {"encoder.embed_tokens.weight": weights["shared.weight"]}
    models.build(T5, {**weights, **copies})
    name = "decoder.block.1.layer.1.EncDecAttention.v.weight"
    with pytest.raises(WeightError, match=name.replace(".", r"\.")):
        models.build(T5, {n: w for n, w in weights.items() if n != name})


@pytest.mark.parametrize(
    ("change", "own", "factor"),
    [
        ({}, False, 48**-0.5),
        ({"scale_decoder_outputs": False}, False, 1.0),
        ({"scale_decoder_outputs": False}, True, 1.0),
        ({"tie_word_embeddings": False}, True, 1.0),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True, 48**-0.5),
    ],
)
def test_the_head_and_its_factor(change, own, factor):
    """As transformers 5 writes T5 1.1: tied, without the factor, and yet with a head of its own."""
    weights = models.random_weights(T5, SEED)
    table = weights["shared.weight"]
    if own:
        table = weights["lm_head.weight"] = table[::-1].copy()
    graph = models.build({**T5, **change}, weights).decoder.graph
    constants = graph.constants
    assert any(array is table for array in constants.values())
    assert ("lm_head.weight" in constants) == own
    got = constants.get("head_scale", np.ones(48, np.float32))
    np.testing.assert_allclose(got, np.full(48, factor, np.float32))


@pytest.mark.parametrize(
    "said", [{"is_encoder_decoder": False}, {"architectures": ["T5EncoderModel"]}]
)
def test_an_encoder_alone(said, golden):
    whole = models.random_weights(T5, SEED)
    weights = {name: w for name, w in whole.items() if not name.startswith("decoder.")}
    engine = TransformerEngine(weights, config={**T5, **said}, backend="numpy")
    ids = golden["t5/ids"]
    hidden = engine.run(ids)
    close(hidden, golden["t5/hidden"])
    packed = engine.run([ids[0], ids[1, :5]])
    close(packed[0], hidden[0])
    close(packed[1], engine.run(ids[1:, :5])[0])
    with pytest.raises(UnsupportedError, match="generates"):
        engine.generate([[1]])


def test_a_decoder_alone_is_refused():
    with pytest.raises((ConfigError, UnsupportedError), match="is_decoder"):
        models.random_weights({**T5, "is_decoder": True})


def check_hidden_states(
    weights: Any, config: Any, dtype: str, ids: np.ndarray, hidden: np.ndarray
) -> None:
    low = Rounded(weights, low=dtype, config=config).run(ids).astype(as_dtype(dtype))
    engine = TransformerEngine(weights, config=config, backend="cuda", dtype=dtype)
    assert_close(engine.run(ids), hidden, low)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_on_the_gpu(name, dtype, golden):
    config, weights = SEQ2SEQ[name], models.random_weights(SEQ2SEQ[name], SEED)
    ids, greedy = golden[f"{name}/ids"], golden[f"{name}/greedy"]
    check_hidden_states(weights, config, dtype, ids, golden[f"{name}/hidden"])
    assert check_on_the_gpu(weights, config, dtype, [(ids, greedy)]) > 2


@pytest.mark.gpu
@pytest.mark.checkpoint
def test_flan_t5_small_on_the_gpu(golden):
    """In bfloat16: its feed-forward layers give more than float16 has numbers for."""
    pytest.importorskip("onnx")
    try:
        config, weights, _ = zoo.flan_t5_small()
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))
    rows = [(golden[f"flan/{i}/ids"], golden[f"flan/{i}/greedy"]) for i in range(2)]
    for i, (ids, _) in enumerate(rows):
        check_hidden_states(weights, config, "bfloat16", ids, golden[f"flan/{i}/hidden"])
    assert check_on_the_gpu(weights, config, "bfloat16", rows) > 5
