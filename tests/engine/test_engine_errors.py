"""The engine refuses what is wrong with a typed error that names what was given and expected."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stof_cupy import TransformerEngine, masks, models
from stof_cupy.errors import (
    ArgumentError,
    CheckpointNotFoundError,
    ConfigError,
    DeviceError,
    DTypeError,
    MaskError,
    MissingDependencyError,
    ShapeError,
    StofWarning,
    UnsupportedError,
    WeightError,
)
from stof_cupy.jit import device as gpu


def test_weights_without_config(weights):
    with pytest.raises(ConfigError, match="config: got None"):
        TransformerEngine(weights, backend="numpy")


@pytest.mark.parametrize("wrong", [[1], "bert", 3])
def test_config_that_is_no_mapping(weights, wrong):
    with pytest.raises(ConfigError, match=r"config: got .*, expected a mapping"):
        TransformerEngine(weights, config=wrong, backend="numpy")


@pytest.mark.parametrize("path", ["~nosuchuser/x", "x" * 5000])
def test_paths_that_cannot_be(path):
    with pytest.raises(CheckpointNotFoundError, match="no such directory"):
        TransformerEngine(path, backend="numpy")


@pytest.mark.parametrize("what", [None, 3, [1, 2]])
def test_weights_of_no_known_kind(what, config):
    with pytest.raises(DTypeError, match="weights"):
        TransformerEngine(what, config=config, backend="numpy")


def test_weight_that_is_no_array(weights, config):
    with pytest.raises(DTypeError, match=r"embeddings\.LayerNorm\.bias"):
        bad = weights | {"embeddings.LayerNorm.bias": "zeros"}
        TransformerEngine(bad, config=config, backend="numpy")


def test_missing_extra_and_misshapen_weights(weights, config):
    name = "encoder.layer.0.output.dense.bias"
    without = {n: a for n, a in weights.items() if n != name}
    for bad in (without, weights | {"more": weights[name]}, weights | {name: np.zeros(23)}):
        with pytest.raises(WeightError, match=r"more|output\.dense\.bias"):
            TransformerEngine(bad, config=config, backend="numpy")


def test_nan_in_weights_is_warned_of_once_and_runs(weights, ids, config):
    bad = {name: array.copy() for name, array in weights.items()}
    bad["encoder.layer.1.output.dense.bias"][2] = np.nan
    with pytest.warns(StofWarning, match=r"NaN.*output\.dense\.bias") as caught:
        engine = TransformerEngine(bad, config=config, backend="numpy")
        hidden = engine.run(ids, lengths=[131, 70, 1])
        engine.run(ids, lengths=[131, 70, 1])
    assert len(caught) == 1
    assert np.isnan(hidden[0]).any() and not hidden[1, 70:].any()


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"backend": "cpu"}, ArgumentError, "'auto' or 'cuda' or 'numpy'"),
        ({"backend": "numpy", "dtype": "float64"}, DTypeError, "float64.*'float16'.*'float32'"),
        ({"backend": "numpy", "dtype": np.int8}, DTypeError, "int8"),
        ({"backend": "numpy", "dtype": object()}, DTypeError, "dtype"),
        ({"backend": "numpy", "device": 0}, ArgumentError, "device"),
        ({"backend": "numpy", "device": "cuda:0"}, ArgumentError, "number of a CUDA device"),
        ({"backend": "numpy", "device": True}, ArgumentError, "device"),
        ({"backend": "cuda", "dtype": "float32"}, UnsupportedError, "'float16' or 'bfloat16'"),
    ],
)
def test_wrong_settings(weights, settings, error, match, config):
    with pytest.raises(error, match=match):
        TransformerEngine(weights, config=config, **settings)


def test_wrong_architecture(weights, config):
    with pytest.raises(UnsupportedError, match=r"'rwkv'.*'bert'"):
        TransformerEngine(weights, config=config | {"model_type": "rwkv"}, backend="numpy")


def test_cuda_without_a_gpu(weights, config):
    if gpu.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises((DeviceError, MissingDependencyError)):
        TransformerEngine(weights, config=config, backend="cuda")


def test_environment_sets_what_auto_means(weights, monkeypatch, config):
    monkeypatch.setenv("STOF_BACKEND", "numpy")
    assert TransformerEngine(weights, config=config).backend == "numpy"
    monkeypatch.setenv("STOF_BACKEND", "tpu")
    with pytest.raises(ArgumentError, match=r"STOF_BACKEND.*'tpu'"):
        TransformerEngine(weights, config=config)


# Wrong input: (what is given, error, what the message says)


def ones(size: int) -> np.ndarray:
    return np.ones((size, size), bool)


def with_id(value: int) -> np.ndarray:
    ids = np.zeros((2, 4), np.int64)
    ids[1, 2] = value
    return ids


BAD_RUNS = {
    "id beyond the vocabulary": ({"x": with_id(50)}, ArgumentError, r"x\[1, 2\].*50.*0 to 49"),
    "negative id": ({"x": with_id(-1)}, ArgumentError, r"x\[1, 2\].*-1.*0 to 49"),
    "id that wraps in int32": ({"x": with_id(2**32)}, ArgumentError, "4294967296"),
    "padding id beyond the vocabulary": (
        {"x": with_id(99), "lengths": [4, 2]},
        ArgumentError,
        r"x\[1, 2\].*99",
    ),
    "too long": ({"x": np.zeros((1, 151), int)}, ShapeError, "151 tokens.*at most 150"),
    "one axis": ({"x": [1, 2, 3]}, ShapeError, r"\(3,\).*\(batch, seq\); one alone is \[x\]"),
    "nothing": ({"x": []}, ShapeError, "x: got no sequence, expected at least one"),
    "one of nothing": ({"x": [[]]}, ShapeError, r"\(1, 0\).*no size may be 0"),
    "text": ({"x": "hello"}, DTypeError, r"x: got text, expected the ids.*encode\(\)"),
    "texts": ({"x": ["hello", "you"]}, DTypeError, r"x: got text, expected the ids.*encode\(\)"),
    "rows of two axes": ({"x": [np.ones((2, 2), int), [3]]}, DTypeError, "rows differ in shape"),
    "no tokens": ({"x": np.zeros((2, 0), int)}, ShapeError, r"\(2, 0\).*no size may be 0"),
    "ragged and nested": ({"x": [[1, [2]], [3]]}, DTypeError, "x"),
    "ragged floats": ({"x": [[1, 2], [3.5]]}, DTypeError, r"x\[1\].*float64"),
    "floats": ({"x": np.zeros((2, 4))}, DTypeError, "float64.*integers"),
    "bools": ({"x": np.zeros((2, 4), bool)}, DTypeError, "bool.*integers"),
    "another byte order": ({"x": np.zeros((2, 4), ">i4")}, DTypeError, "byte order"),
    "strings": ({"x": [["a"]]}, DTypeError, "x"),
    "lengths of another batch": ({"lengths": [1, 2, 3]}, ShapeError, r"lengths.*\(3,\).*\(2,\)"),
    "length beyond seq": ({"lengths": [1, 5]}, ArgumentError, r"lengths\[1\].*5.*0 to 4"),
    "negative length": ({"lengths": [-1, 4]}, ArgumentError, r"lengths\[0\].*-1"),
    "lengths of floats": ({"lengths": [1.0, 2.0]}, DTypeError, "lengths.*float64"),
    "token types of another shape": (
        {"token_types": np.zeros((2, 5), int)},
        ShapeError,
        r"token_types.*\(2, 5\).*\(2, 4\)",
    ),
    "token type beyond the table": ({"token_types": with_id(3)}, ArgumentError, "3.*0 to 2"),
    "mask of another length": (
        {"mask": ones(5)},
        ShapeError,
        r"mask.*\(5, 5\).*\(4, 4\)",
    ),
    "padding of others": ({"mask": ones(4)[:2]}, ShapeError, r"\(2, 4\).*\(4, 4\).*by lengths"),
    "pattern of another length": ({"mask": masks.causal(7)}, ShapeError, r"\(7, 7\).*\(4, 4\)"),
    "callable's mask of another length": (
        {"mask": lambda s: ones(s - 1)},
        ShapeError,
        "mask",
    ),
    "mask of floats": ({"mask": np.zeros((4, 4))}, MaskError, "mask.*float64.*bool"),
    "mask of no known kind": ({"mask": object()}, DTypeError, "mask.*object"),
    "mask of a layer beyond the last": (
        {"layer_masks": {2: "full"}},
        ArgumentError,
        "layer_masks: got 2, expected layers 0 to 1",
    ),
    "mask of a layer of another length": (
        {"layer_masks": {1: ones(5)}},
        ShapeError,
        r"mask.*\(5, 5\).*\(4, 4\)",
    ),
    "unknown spec": ({"mask": "dilate:d=2"}, ArgumentError, "dilate:.*sliding"),
    "unknown key in spec": ({"mask": "sliding:q=2"}, ArgumentError, "q"),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_wrong_input_is_a_typed_error(engine, case):
    given, error, match = BAD_RUNS[case]
    with pytest.raises(error, match=match):
        engine.run(**({"x": np.zeros((2, 4), int)} | given))


def test_a_model_too_short_for_its_special_tokens(config, tmp_path):
    save = pytest.importorskip("safetensors.numpy").save_file
    tokenizers = pytest.importorskip("tokenizers")
    short = config | {"max_position_embeddings": 1}
    save(models.random_weights(short), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(short))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[S]": 1}, "a"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[S] $A [S]", special_tokens=[("[S]", 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    engine = TransformerEngine(tmp_path, backend="numpy")
    with pytest.raises(ArgumentError, match=r"max_length: got 1, expected at least 2.*config"):
        engine.encode(["a"])
