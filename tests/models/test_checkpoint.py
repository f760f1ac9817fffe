"""Checkpoint directories: read as they are, refused with the name of what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    MissingDependencyError,
    WeightError,
)
from stof_cupy.models.checkpoint import read_checkpoint

pytest.importorskip("safetensors")


def save(tensors: dict[str, np.ndarray], path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(tensors, path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    save({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, tmp_path / "model.safetensors")
    return tmp_path


def shard(root: Path, weight_map: object) -> None:
    (root / "model.safetensors").unlink()
    save({"a": np.zeros(2, np.float32)}, root / "one.safetensors")
    save({"b": np.ones(3, np.float16)}, root / "two.safetensors")
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_reads_a_directory(root):
    checkpoint = read_checkpoint(str(root))
    assert checkpoint.config == {"model_type": "bert"}
    assert dict(checkpoint.tensors)["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert checkpoint.tokenizer_path is None
    (root / "tokenizer.json").write_text("{}")
    assert read_checkpoint(root).tokenizer_path == root / "tokenizer.json"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_reads_low_precision_weights(root, dtype):
    array = np.array([1.5, -2.0], as_dtype(dtype))
    save({"a": array}, root / "model.safetensors")
    tensor = read_checkpoint(root).tensors["a"]
    assert tensor.dtype == array.dtype and np.array_equal(tensor, array)


def test_reads_shards(root):
    shard(root, {"a": "one.safetensors", "b": "two.safetensors"})
    tensors = read_checkpoint(root).tensors
    assert sorted(tensors) == ["a", "b"] and len(tensors) == 2
    assert tensors["b"].dtype == np.float16


def test_missing_directory(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match=r"nowhere.*no such directory"):
        read_checkpoint(tmp_path / "nowhere")
    assert issubclass(CheckpointNotFoundError, FileNotFoundError)


def test_file_instead_of_directory(root):
    with pytest.raises(CheckpointNotFoundError, match="a file"):
        read_checkpoint(root / "config.json")


def test_missing_config(root):
    (root / "config.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"config\.json"):
        read_checkpoint(root)


@pytest.mark.parametrize(
    "text", [b"{", b"[1]", b"\xff\xfe", b"", b'{"a":' + b"[" * 200_000], ids=range(5)
)
def test_unreadable_config(root, text):
    (root / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_checkpoint(root)


def test_missing_weights_name_what_is_there_instead(root):
    (root / "model.safetensors").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"model\.safetensors"):
        read_checkpoint(root)
    (root / "some.gguf").write_bytes(b"")
    with pytest.raises(CheckpointNotFoundError, match=r"the path of some\.gguf"):
        read_checkpoint(root)


@pytest.mark.parametrize("cut", [0, 4, 20, -3])
def test_truncated_weights(root, cut):
    path = root / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_checkpoint(root)


@pytest.mark.parametrize(
    ("weight_map", "error", "match"),
    [
        (None, CheckpointError, "weight_map"),
        ({"a": 3}, CheckpointError, "weight_map"),
        ({"a": "../one.safetensors"}, CheckpointError, "file beside it"),
        ({"a": "three.safetensors"}, CheckpointNotFoundError, "three"),
        ({"a": ".."}, CheckpointError, "file beside it"),
        ({"a": "x" * 5000}, CheckpointNotFoundError, "xxx"),
        ({"a": "one.safetensors", "c": "two.safetensors"}, WeightError, "no 'c' in two"),
        (
            {"a": "one.safetensors", "b": "one.safetensors"},
            WeightError,
            r"no 'b' in one\.safetensors",
        ),
    ],
)
def test_bad_index(root, weight_map, error, match):
    shard(root, weight_map)
    with pytest.raises(error, match=match):
        read_checkpoint(root)


def test_each_tensor_comes_from_the_shard_that_lists_it(root):
    both = {"a": "one.safetensors", "b": "two.safetensors"}
    shard(root, both)
    save({"b": np.ones(3), "a": np.ones(2)}, root / "two.safetensors")
    with pytest.raises(WeightError, match=r"'a' in two\.safetensors.*it in 'one\.safetensors'"):
        read_checkpoint(root)
    save({"b": np.ones(3), "c": np.ones(2)}, root / "two.safetensors")
    with pytest.raises(WeightError, match=r"'c' in two\.safetensors.*no such weight"):
        read_checkpoint(root)


@pytest.mark.parametrize("where", ["~nosuchuser/x", "x" * 5000, "a\0b"])
def test_paths_that_cannot_be(where):
    with pytest.raises(CheckpointNotFoundError, match="no such directory"):
        read_checkpoint(where)


def test_element_type_without_a_numpy_type(root):
    head = b'{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
    file = root / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + b"\0\0")
    tensors = read_checkpoint(root).tensors
    with pytest.raises(WeightError, match=r"'a'.*F8_E4M3.*BF16"):
        tensors["a"]


def test_without_the_extra(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'stof-cupy\[models\]'"):
        read_checkpoint(root)


def test_flipped_bytes_give_tensors_or_a_typed_error(root):
    path = root / "model.safetensors"
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        changed = bytearray(data)
        changed[int(rng.integers(len(data) - 24))] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            for tensor in read_checkpoint(root).tensors.values():
                assert tensor.nbytes <= len(data)
        except CheckpointError:
            refused += 1
    assert refused > 200


def test_tensors_are_views_of_the_file(root):
    tensor = read_checkpoint(root).tensors["a"]
    assert not tensor.flags.owndata and not tensor.flags.writeable
