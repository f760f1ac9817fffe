"""ONNX files: names from the graph, int8 weights as floats, damage refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from stof_cupy.errors import CheckpointError, ConfigError, MissingDependencyError, WeightError
from stof_cupy.models.checkpoint import read_checkpoint

onnx = pytest.importorskip("onnx")

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((3, 5)).astype(np.float32)
INT8 = RNG.integers(-128, 128, (5, 2)).astype(np.int8)


def save(path: Path, initializers: dict[str, np.ndarray], nodes: list) -> None:
    tensors = [onnx.numpy_helper.from_array(a, name) for name, a in initializers.items()]
    graph = onnx.helper.make_graph(nodes, "g", [], [], tensors)
    onnx.save(onnx.helper.make_model(graph), path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    node = onnx.helper.make_node
    save(
        tmp_path / "m.onnx",
        {
            "block.norm.weight": np.ones(3, np.float32),
            "onnx::MatMul_7": WEIGHT,
            "onnx::MatMul_9_quantized": INT8,
            "onnx::MatMul_9_scale": np.float32(0.5),
            "onnx::MatMul_9_zero_point": np.int8(-3),
            "table.weight_quantized": np.uint8([[0, 255]]),
            "table.weight_scale": np.float32([0.25, 2]),
            "/block/Constant_output_0": np.zeros(1, np.float32),
        },
        [
            node("MatMul", ["x", "onnx::MatMul_7"], ["y"], name="/block.0/fc/MatMul"),
            node("MatMulInteger", ["y", "onnx::MatMul_9_quantized"], ["z"], name="/o/MatMul_quant"),
            node("MatMul", ["y", "y"], ["p"], name="/block.0/MatMul_1"),
        ],
    )
    return tmp_path / "m.onnx"


def test_names_and_values(path):
    checkpoint = read_checkpoint(path)
    assert checkpoint.config is None and checkpoint.tokenizer_path is None
    tensors = dict(checkpoint.tensors)
    assert sorted(tensors) == sorted(
        ["block.norm.weight", "block.0.fc.weight", "o.weight", "table.weight"]
    )
    assert np.array_equal(tensors["block.0.fc.weight"], WEIGHT.T)
    assert np.array_equal(tensors["o.weight"], (INT8.T.astype(np.float32) + 3) * np.float32(0.5))
    assert tensors["table.weight"].tolist() == [[0.0, 510.0]]


def test_config_beside_the_file(path):
    (path.parent / "config.json").write_text('{"model_type": "t5"}')
    assert read_checkpoint(path).config == {"model_type": "t5"}
    (path.parent / "config.json").write_text("[]")
    with pytest.raises(ConfigError):
        read_checkpoint(path)


def test_weights_in_other_files_are_refused(path):
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match="in another file"):
        read_checkpoint(path)


def test_a_tensor_that_is_not_there(path):
    model = onnx.load(path)
    model.graph.initializer[0].dims[0] = 1 << 50
    path.write_bytes(model.SerializeToString())
    with pytest.raises(WeightError, match="damaged"):
        dict(read_checkpoint(path).tensors)


def test_int8_without_its_scale(tmp_path):
    save(tmp_path / "m.onnx", {"w_quantized": INT8}, [])
    with pytest.raises(WeightError, match="without a scale"):
        dict(read_checkpoint(tmp_path / "m.onnx").tensors)


ODD_SCALES = {
    "beyond": ((1, 3000), np.ones((3000, 1), np.float32)),  # a product of 36 MB
    "more axes": ((2, 3), np.ones((4, 1, 1), np.float32)),
    "complex": ((2, 3), np.ones((), np.complex64)),
}


@pytest.mark.parametrize("what", ["scale", "zero_point"])
@pytest.mark.parametrize(("shape", "odd"), ODD_SCALES.values(), ids=ODD_SCALES)
def test_scales_that_do_not_fit_the_weights(shape, odd, what, tmp_path):
    arrays = {"w_quantized": np.ones(shape, np.uint8), "w_scale": np.ones((), np.float32)}
    arrays[f"w_{what}"] = odd
    file = tmp_path / "m.onnx"
    save(file, arrays, [])
    with pytest.raises(WeightError, match=r"'w_quantized'.*damaged"):
        dict(read_checkpoint(file).tensors)


def test_other_bytes(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\xff\xfe not protobuf")
    with pytest.raises(CheckpointError, match="unreadable"):
        read_checkpoint(tmp_path / "m.onnx")


def test_without_the_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"onnx.*pip install 'stof-cupy\[models\]'"):
        read_checkpoint(path)
