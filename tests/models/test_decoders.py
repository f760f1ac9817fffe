"""GPT-2, LLaMA and Gemma 3 agree with Hugging Face transformers, and refuse what they are not."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import (
    ArgumentError,
    ConfigError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    WeightError,
)
from stof_cupy.testing import assert_close
from tests.goldens.cases import BATCH, DECODERS, GEMMA3, GPT2, LLAMA, NEW, SEED, SEQ
from tests.models.rounded import Rounded, check_on_the_gpu

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDENS / "decoders.npz") as file:
        return dict(file)


def engine_of(config: dict[str, Any], **how: Any) -> TransformerEngine:
    weights = models.random_weights(config, SEED)
    return TransformerEngine(weights, config=config, **{"backend": "numpy", **how})


def tokens(config: dict[str, Any]) -> np.ndarray:
    return np.random.default_rng(SEED).integers(1, config["vocab_size"], (BATCH, SEQ))


def close(got: np.ndarray, want: np.ndarray, most: float = 1e-4) -> None:
    assert np.abs(got - want).max() <= most * np.abs(want).max()


@pytest.mark.parametrize("name", DECODERS)
def test_hidden_states_and_logits(name, golden):
    config = DECODERS[name]
    engine, ids = engine_of(config), tokens(config)
    close(engine.run(ids), golden[f"{name}/hidden"])
    logits = engine.run(ids, output="logits")
    assert logits.shape == (BATCH, SEQ, config["vocab_size"])
    close(logits[:, -3:], golden[f"{name}/logits"])


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_tokens(name, golden):
    engine, ids = engine_of(DECODERS[name]), tokens(DECODERS[name])
    got = engine.generate(ids.tolist(), max_new_tokens=NEW)
    assert got == golden[f"{name}/greedy"].tolist()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3"])
def test_a_ragged_batch_gives_what_each_gives_alone(name):
    engine, ids = engine_of(DECODERS[name]), tokens(DECODERS[name])
    prompts = [ids[0, :n].tolist() for n in (5, 1, 20)]
    alone = [engine.generate([prompt], max_new_tokens=12)[0] for prompt in prompts]
    assert engine.generate(prompts, max_new_tokens=12) == alone
    lengths = np.array([9, SEQ])
    hidden = engine.run(ids, lengths=lengths)
    close(hidden[0, :9], engine.run(ids[:1, :9])[0])
    assert not hidden[0, 9:].any()


def test_interleaved_rows_are_the_same_model(golden):
    """The row order of the paper and of GGUF files, which turns neighbours."""
    weights = models.random_weights(LLAMA, SEED)
    for name, array in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = array.reshape(-1, 2, LLAMA["head_dim"] // 2, array.shape[1])
            weights[name] = halves.swapaxes(1, 2).reshape(array.shape)
    config = {**LLAMA, "rope_interleaved": True}
    engine = TransformerEngine(weights, config=config, backend="numpy")
    close(engine.run(tokens(LLAMA)), golden["llama/hidden"])


def test_masks_are_taken_from_the_familys_and_may_replace_it():
    engine, ids = engine_of(GEMMA3), tokens(GEMMA3)
    whole = engine.run(ids)
    changed = ids.copy()
    changed[:, 20] = 3
    later = engine.run(changed)
    assert np.array_equal(whole[:, :20], later[:, :20])  # causal
    alone = engine.run(ids, mask=np.eye(SEQ, dtype=bool))
    assert np.array_equal(alone[:, 21:], engine.run(changed, mask="sliding:w=0")[:, 21:])
    same = engine.run(ids, layer_masks={0: "sliding:w=4,causal=1"})
    assert np.array_equal(same, whole)
    everyone = {layer: np.ones((SEQ, SEQ), bool) for layer in range(4)}
    assert not np.allclose(engine.run(ids, layer_masks=everyone)[:, :5], whole[:, :5])
    per_head = np.ones((1, 4, SEQ, SEQ), bool)
    assert np.array_equal(engine.run(ids, mask=per_head), whole)


def test_gemma_caps_scores_where_the_config_says_so():
    """Hugging Face transformers reads the field and does not use it, so there is no golden."""
    ids = tokens(GEMMA3)
    free, wide, tight = (
        engine_of({**GEMMA3, "attn_logit_softcapping": cap}).run(ids) for cap in (None, 1e4, 0.2)
    )
    close(wide, free)
    assert not np.allclose(tight, free, atol=0.1)


def test_stop_tokens_and_emitted_ones():
    engine, ids = engine_of(GPT2), tokens(GPT2)
    free = engine.generate(ids[:, :9].tolist(), max_new_tokens=15, stop=())
    stop = free[0][4]
    seen: list[tuple[int, int]] = []
    got = engine.generate(
        ids[:, :9].tolist(), max_new_tokens=15, stop=stop, emit=lambda i, t: seen.append((i, t))
    )
    for i, row in enumerate(free):
        expected = row[: row.index(stop)] if stop in row else row
        assert got[i] == expected == [t for who, t in seen if who == i]
    ended = engine_of({**GPT2, "eos_token_id": [stop, 82]})
    assert ended.generate(ids[:, :9].tolist(), max_new_tokens=15) == got


def test_sampling_is_seeded_and_follows_the_temperature():
    engine, prompt = engine_of(GPT2), tokens(GPT2)[:1, :6].tolist()

    def draw(**how: Any) -> list[int]:
        return engine.generate(prompt, max_new_tokens=20, stop=(), **how)[0]

    assert draw(temperature=1.0, seed=1) == draw(temperature=1.0, seed=1)
    assert draw(temperature=1.0, seed=1) != draw(temperature=1.0, seed=2)
    assert draw(temperature=1e-6) == draw() == draw(temperature=5.0, top_p=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw(temperature=1e-320) == draw()


@pytest.mark.parametrize(
    ("prompts", "how", "error", "match"),
    [
        ("one text", {}, DTypeError, "prompts: got str"),
        ([], {}, DTypeError, "prompts"),
        ([[1], "two"], {}, DTypeError, "prompts"),
        ([[1.5]], {}, DTypeError, "prompts"),
        (["text"], {}, ArgumentError, "tokenizer.json"),
        ([[]], {}, ShapeError, r"prompts\[0\]: got no token"),
        ([[1], [83]], {}, ArgumentError, r"prompts\[1\]: got 83"),
        ([[1] * 60], {}, ShapeError, "60 tokens and 5 new ones"),
        ([[1]], {"max_new_tokens": 0}, ArgumentError, "max_new_tokens"),
        ([[1]], {"temperature": -1}, ArgumentError, "temperature"),
        ([[1]], {"top_p": 0}, ArgumentError, "top_p"),
        ([[1]], {"seed": -1}, ArgumentError, "seed: got -1"),
        ([[1]], {"seed": "x"}, ArgumentError, "seed: got 'x'"),
        ([[1]], {"temperature": math.inf}, ArgumentError, "temperature: got inf, .*finite"),
        ([[1]], {"temperature": "1"}, ArgumentError, "temperature: got '1'"),
        ([[1]], {"top_p": None}, ArgumentError, "top_p: got None"),
        ([[1]], {"max_new_tokens": True}, ArgumentError, "max_new_tokens: got True"),
        ([[1]], {"max_new_tokens": 2.0}, ArgumentError, "max_new_tokens: got 2.0"),
        ([[1]], {"stop": "x"}, ArgumentError, "stop"),
        ([[1]], {"stop": "12"}, ArgumentError, "stop: got '12'"),
        ([[1]], {"stop": b"1"}, ArgumentError, "stop"),
        ([[1]], {"stop": 1.5}, ArgumentError, "stop: got 1.5"),
        ([[1]], {"stop": [True]}, ArgumentError, "stop"),
        ([[1]], {"stop": math.inf}, ArgumentError, "stop: got inf"),
        ([[True]], {}, DTypeError, "prompts"),
        ([[1]], {"emit": 3}, DTypeError, "emit: got int, expected a function, or None"),
        # The sums of a small type of NumPy's go round, or overflow.
        ([[1] * 50], {"max_new_tokens": np.uint8(250)}, ShapeError, "50 tokens and 250 new ones"),
        ([[1] * 300], {"max_new_tokens": np.uint8(2)}, ShapeError, "300 tokens and 2 new ones"),
    ],
)
def test_bad_prompts(prompts, how, error, match):
    with pytest.raises(error, match=match):
        engine_of(GPT2).generate(prompts, **{"max_new_tokens": 5, **how})


def test_the_config_is_named_where_its_stop_tokens_are_wrong():
    with pytest.raises(ArgumentError, match=r"config\['eos_token_id'\]: got 1\.5"):
        engine_of({**GPT2, "eos_token_id": 1.5}).generate([[1]], max_new_tokens=1)


def test_integers_of_numpy_are_integers():
    engine = engine_of(GPT2)
    said = engine.generate([[1, 2]], max_new_tokens=6)[0]
    assert engine.generate([np.array([1, 2])], max_new_tokens=np.int64(6))[0] == said
    for stop in (np.int32(said[3]), np.array([said[3]]), {said[3]}):
        assert (
            engine.generate([[1, 2]], max_new_tokens=6, stop=stop)[0] == said[: said.index(said[3])]
        )
    ids, window = np.ones((1, 4), int), "sliding:w=1"
    replaced = engine.run(ids, layer_masks={np.int64(1): window})
    assert np.array_equal(replaced, engine.run(ids, layer_masks={1: window}))


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"output": "states"}, ArgumentError, "output: got 'states'"),
        ({"token_types": np.zeros((1, 2), int)}, ArgumentError, "token_types"),
        ({"layer_masks": {3: "full"}}, ArgumentError, "layer_masks: got 3, expected layers 0 to 2"),
        ({"layer_masks": {True: "full"}}, ArgumentError, "layer_masks: got True"),
        ({"layer_masks": ["full"]}, ArgumentError, "layer_masks: got list, expected a mapping"),
        ({"layer_masks": {0: np.ones((3, 3), bool)}}, Exception, "3"),
    ],
)
def test_bad_runs(how, error, match):
    with pytest.raises(error, match=match):
        engine_of(GPT2).run(np.ones((1, 2), int), **how)


def test_an_encoder_does_not_generate():
    config = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    config |= {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
    config |= {"intermediate_size": 16, "vocab_size": 30, "type_vocab_size": 2}
    engine = engine_of(config | {"max_position_embeddings": 6})
    with pytest.raises(UnsupportedError, match=r"kind .encoder"):
        engine.generate([[1]])
    with pytest.raises(ArgumentError, match="no head"):
        engine.run([[1]], output="logits")


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({**GPT2, "n_head": 5}, r"config\['n_embd'\]: got 48, expected a multiple"),
        ({**GPT2, "n_layer": "3"}, r"config\['n_layer'\]: got '3'"),
        ({**GPT2, "n_extra": 1}, r"config\['n_extra'\]: got 1, expected only fields"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        ({**GPT2, "activation_function": "swish"}, "activation_function"),
        ({**LLAMA, "num_key_value_heads": 4}, "num_key_value_heads"),
        ({**LLAMA, "head_dim": 15}, "even head dim"),
        ({**LLAMA, "rms_norm_eps": 0}, "rms_norm_eps"),
        ({**LLAMA, "rope_scaling": {"rope_type": "dynamic"}}, "'dynamic'"),
        ({**LLAMA, "rope_scaling": {"type": "dynamic"}}, "'type'.*'dynamic'"),
        ({**LLAMA, "rope_scaling": {"type": 3}}, "'type'.*got 3"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear"}}, "'factor'.*nothing"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2, "odd": 1}}, "'odd'"),
        ({**LLAMA, "rope_scaling": {"rope_type": "factors", "factors": [1]}}, "8 positive"),
        ({**LLAMA, "rope_scaling": {"rope_type": "factors", "factors": "x"}}, "8 positive"),
        ({**LLAMA, "rope_theta": 1.0, "rope_scaling": YARN}, "numbers can be"),
        ({**LLAMA, "rope_scaling": {**YARN, "beta_slow": 1e308}}, "numbers can be"),
        ({**LLAMA, "rope_scaling": 3}, "rope_scaling: got 3, expected a mapping"),
        ({**GEMMA3, "layer_types": ["full_attention"]}, "layer_types"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({**GEMMA3, "model_type": "gemma3"}, "'gemma3'"),
    ],
)
def test_configs_are_refused_by_field(config, match):
    with pytest.raises((ConfigError, UnsupportedError), match=match):
        models.random_weights(config)


def test_weights_are_accounted_for():
    weights = models.random_weights(LLAMA, SEED)
    with pytest.raises(WeightError, match=r"lm_head\.weight"):
        models.build(LLAMA, {n: w for n, w in weights.items() if n != "lm_head.weight"})
    with pytest.raises(WeightError, match=r"unexpected 'layers\.0\.extra'"):
        models.build(LLAMA, {**weights, "layers.0.extra": np.zeros(1)})
    prefixed = {n if n.startswith("lm") else f"model.{n}": w for n, w in weights.items()}
    models.build(LLAMA, {**prefixed, "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8)})


@pytest.mark.parametrize("config", [GPT2, GEMMA3, {**LLAMA, "tie_word_embeddings": True}])
def test_a_head_of_its_own_is_taken_whatever_the_config_says_of_ties(config):
    """As transformers 5 does; a copy of the table is the table."""
    weights = models.random_weights(config, SEED)
    table = next(w for n, w in weights.items() if n in ("wte.weight", "embed_tokens.weight"))
    ids = tokens(config)[:1]

    def logits(**more: np.ndarray) -> np.ndarray:
        engine = TransformerEngine({**weights, **more}, config=config, backend="numpy")
        return engine.run(ids, output="logits")

    tied = logits()
    np.testing.assert_array_equal(logits(**{"lm_head.weight": table.copy()}), tied)
    other = logits(**{"lm_head.weight": table[::-1].copy()})
    np.testing.assert_allclose(other[..., ::-1], tied, rtol=1e-4, atol=1e-4)
    with pytest.raises(WeightError, match=r"lm_head\.weight"):
        logits(**{"lm_head.weight": table[1:]})


def test_weights_are_cast_as_they_are_read():
    seen = []
    weights = models.random_weights(LLAMA, SEED)
    model = models.build(LLAMA, weights, dtype=np.dtype(np.float16), taken=lambda: seen.append(1))
    assert len(seen) == len(weights)
    kinds = {a.dtype.name for a in model.graph.constants.values() if a.ndim > 1}
    assert kinds == {"float16"}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "llama-llama3", "gemma3-capped"])
def test_on_the_gpu(name, dtype, golden):
    config, ids = DECODERS[name], tokens(DECODERS[name])
    engine = engine_of(config, backend="cuda", dtype=dtype)
    low = Rounded(models.random_weights(config, SEED), low=dtype, config=config).run(ids)
    assert_close(engine.run(ids), golden[f"{name}/hidden"], low.astype(as_dtype(dtype)))
    rows = [(ids, golden[f"{name}/greedy"])]
    clear = check_on_the_gpu(models.random_weights(config, SEED), config, dtype, rows)
    # Logits that are capped at 4 are too near each other for eight bits.
    assert clear > 15 or (name == "gemma3-capped" and dtype == "bfloat16")
    prompts = [ids[0, :n].tolist() for n in (5, 1, 20)]
    said = engine.generate(prompts, max_new_tokens=12, stop=())
    assert [len(row) for row in said] == [12] * 3
