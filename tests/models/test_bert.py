"""BERT: fields and weights are checked by name, and the graph computes what the paper says."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.errors import ConfigError, StofWarning, UnsupportedError, WeightError
from stof_cupy.graph import Executor

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "vocab_size": 17,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    # Fields of real configs that change nothing here.
    "architectures": ["BertModel"],
    "hidden_dropout_prob": 0.1,
    "position_embedding_type": "absolute",
    "use_cache": True,
}
QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    return models.random_weights(CONFIG, seed=1)


def run(model: models.Model, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
    inputs = {"ids": ids, "token_types": types, "lengths": None}
    inputs |= {f"mask.{i}": None for i in range(len(model.layer_masks))}
    return Executor(model.graph, backend="numpy").run(inputs)["hidden"]


def dense_bert(config: dict, w: dict[str, np.ndarray], ids: np.ndarray, types: np.ndarray):
    """Compute the hidden states in float64 from the published equations, one head at a time."""
    w = {name: array.astype(np.float64) for name, array in w.items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def gelu(x):
        if config["hidden_act"] == "gelu":
            return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    tables = [w[f"embeddings.{t}_embeddings.weight"] for t in ("word", "position", "token_type")]
    x = tables[0][ids] + tables[1][np.arange(ids.shape[1])] + tables[2][types]
    x = norm(x, "embeddings.LayerNorm")
    size = config["hidden_size"] // config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{at}.attention.self.{n}") for n in ("query", "key", "value"))
        context = np.zeros_like(x)
        for head in range(config["num_attention_heads"]):
            cut = np.s_[..., head * size : (head + 1) * size]
            p = np.exp(q[cut] @ k[cut].swapaxes(-1, -2) / math.sqrt(size))
            context[cut] = p / p.sum(-1, keepdims=True) @ v[cut]
        x = norm(
            x + linear(context, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm"
        )
        h = linear(gelu(linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        x = norm(x + h, f"{at}.output.LayerNorm")
    return x


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_graph_is_bert(tensors, act):
    config = CONFIG | {"hidden_act": act}
    ids = np.array([[3, 16, 0, 5, 5, 1, 2], [7, 7, 7, 8, 9, 10, 11]], np.int32)
    types = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0]], np.int32)
    expected = dense_bert(config, tensors, ids, types)
    got = run(models.build(config, tensors), ids, types)
    assert np.abs(got - expected).max() < 1e-5


def test_limits(tensors):
    model = models.build(CONFIG, tensors)
    limits = (model.vocab_size, model.max_positions, model.token_types)
    assert limits == (17, 9, 2)
    assert (model.hidden_size, model.heads) == (12, 3)


def test_graph_is_built_of_primitive_nodes(tensors):
    for node in models.build(CONFIG, tensors).graph.nodes():
        if node.op == "gemm":
            assert not any(node.inputs[2:])


def test_names_with_prefix_and_old_endings(tensors):
    old = {
        "bert."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in tensors.items()
    }
    assert "bert.embeddings.LayerNorm.gamma" in old
    old["cls.predictions.bias"] = np.zeros(17, np.float32)
    old["bert.pooler.dense.weight"] = np.zeros((12, 12), np.float32)
    digests = [models.build(CONFIG, t).graph.digest() for t in (tensors, old)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "12"),
        ("hidden_size", 13),
        ("hidden_size", None),
        ("num_hidden_layers", -1),
        ("num_attention_heads", 0),
        ("vocab_size", True),
        ("vocab_size", 17.0),
        ("layer_norm_eps", 0),
        ("layer_norm_eps", "1e-12"),
        ("hidden_act", "relu"),
        ("hidden_act", ["gelu"]),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("model_type", None),
        ("model_type", 3),
        ("rope_theta", 1e4),
    ],
)
def test_wrong_config_field_is_named(tensors, field, value):
    with pytest.raises(ConfigError, match=field):
        models.build(CONFIG | {field: value}, tensors)


@pytest.mark.parametrize("config", [[1], "bert", None, 3])
def test_config_that_is_no_mapping(tensors, config):
    with pytest.raises(ConfigError, match=r"config: got .*, expected a mapping"):
        models.build(config, tensors)


def test_fields_of_other_types_are_still_named(tensors):
    with pytest.raises(ConfigError, match="3"):
        models.build(CONFIG | {3: 4, "zoom": 5}, tensors)


def test_numpy_sizes(tensors):
    config = {n: np.int64(v) if type(v) is int else v for n, v in CONFIG.items()}
    config["layer_norm_eps"] = np.float32(1e-12)
    model = models.build(config, tensors)
    assert type(model.vocab_size) is int and model.vocab_size == 17


def test_a_config_as_transformers_writes_it_all_out(tensors):
    more = {
        "_attn_implementation_autoset": True,
        "_num_labels": 3,
        "bad_words_ids": None,
        "id2label": {0: "no", 1: "yes"},
        "is_encoder_decoder": False,
        "max_length": 20,
        "temperature": 1.0,
        "tie_encoder_decoder": False,
        "use_bfloat16": False,
    }
    digests = [models.build(c, tensors).graph.digest() for c in (CONFIG, CONFIG | more)]
    assert digests[0] == digests[1]
    with pytest.raises(ConfigError, match="is_encoder_decoder"):
        models.build(CONFIG | {"is_encoder_decoder": True}, tensors)


def test_heads_of_common_tasks_are_left(tensors):
    heads = ("classifier.weight", "qa_outputs.bias", "cls.seq_relationship.bias", "pooler.x")
    plain = models.build(CONFIG, tensors).graph.digest()
    more = {f"bert.{n}": a for n, a in tensors.items()} | {h: np.zeros(2) for h in heads}
    assert models.build(CONFIG, more).graph.digest() == plain


def test_the_head_of_masked_tokens_may_have_a_matrix_and_a_bias_of_its_own(tensors):
    rng = np.random.default_rng(3)
    width, vocab = CONFIG["hidden_size"], CONFIG["vocab_size"]
    at = "cls.predictions"
    for part, shape in (("dense", (width, width)), ("LayerNorm", (width,))):
        tensors[f"{at}.transform.{part}.weight"] = rng.standard_normal(shape, np.float32)
        tensors[f"{at}.transform.{part}.bias"] = rng.standard_normal(width, np.float32)
    table = tensors["embeddings.word_embeddings.weight"]
    bias = tensors[f"{at}.bias"] = rng.standard_normal(vocab, np.float32)

    def logits(**more: np.ndarray) -> np.ndarray:
        named = {f"{at}.decoder.{part}": array for part, array in more.items()}
        engine = TransformerEngine(tensors | named, config=CONFIG, backend="numpy")
        return engine.run(np.array([[1, 2, 3]]), output="logits")

    tied = logits()
    np.testing.assert_array_equal(logits(weight=table.copy(), bias=bias.copy()), tied)
    own = logits(weight=table[::-1].copy(), bias=bias[::-1].copy())
    np.testing.assert_allclose(own[..., ::-1], tied, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("field", ["hidden_size", "hidden_act", "layer_norm_eps", "model_type"])
def test_missing_config_field_is_named(tensors, field):
    with pytest.raises(ConfigError, match=rf"{field}.*got nothing"):
        models.build({k: v for k, v in CONFIG.items() if k != field}, tensors)


def test_unsupported_family_lists_the_known(tensors):
    with pytest.raises(UnsupportedError, match=r"'mamba'.*'bert'"):
        models.build(CONFIG | {"model_type": "mamba"}, tensors)


def test_missing_weight_names_it_and_the_nearest(tensors):
    tensors["encoder.layer.1.attention.self.qery.weight"] = tensors.pop(QUERY)
    with pytest.raises(WeightError, match=rf"{QUERY}.*qery"):
        models.build(CONFIG, tensors)


def test_extra_weight_is_named(tensors):
    tensors["encoder.layer.2.output.dense.bias"] = np.zeros(12, np.float32)
    with pytest.raises(WeightError, match=r"unexpected 'encoder\.layer\.2\.output\.dense\.bias'"):
        models.build(CONFIG, tensors)


@pytest.mark.parametrize(
    "pair",
    [(QUERY, f"bert.{QUERY}"), ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma")],
)
def test_two_names_of_one_weight_are_named(tensors, pair):
    with pytest.raises(WeightError, match=f"both '{pair[0]}' and '{pair[1]}'"):
        models.build(CONFIG, tensors | {pair[1]: tensors[pair[0]] * 2})


def test_name_that_is_no_string(tensors):
    with pytest.raises(WeightError, match="the name 3"):
        models.build(CONFIG, tensors | {3: tensors[QUERY]})


def test_weight_of_wrong_shape_names_both(tensors):
    tensors[QUERY] = tensors[QUERY][:, :-1]
    with pytest.raises(WeightError, match=r"query\.weight.*\(12, 11\).*\(12, 12\)"):
        models.build(CONFIG, tensors)


def test_weight_of_integers_is_refused(tensors):
    tensors[QUERY] = tensors[QUERY].astype(np.int8)
    with pytest.raises(WeightError, match=r"query\.weight.*int8.*float"):
        models.build(CONFIG, tensors)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_warned_of_once(tensors, value):
    tensors[QUERY][3, 4] = value
    tensors["embeddings.LayerNorm.bias"][0] = value
    with pytest.warns(StofWarning, match=r"2 of them.*embeddings\.LayerNorm\.bias") as caught:
        models.build(CONFIG, tensors)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_finite_weights_are_not_warned_of(tensors, dtype):
    tensors[QUERY] = np.full_like(tensors[QUERY], np.finfo(dtype).max, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models.build(CONFIG, tensors)


def test_random_weights_are_seeded(tensors):
    assert all(np.array_equal(a, tensors[n]) for n, a in models.random_weights(CONFIG, 1).items())
    assert not np.array_equal(tensors[QUERY], models.random_weights(CONFIG, 2)[QUERY])
