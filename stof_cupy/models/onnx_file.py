"""Reads the weights of an ONNX file; the graph only gives nameless ones their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.errors import CheckpointError, WeightError, mismatch
from stof_cupy.models.extras import require

__all__ = ["open_onnx"]

Array = np.ndarray[Any, Any]

_NAMELESS = "onnx::"
_PRODUCTS = {"MatMul": "MatMul", "Gemm": "Gemm", "MatMulInteger": "MatMul_quant"}
"""Operators that multiply by a weight -> the end of such a node's name in exports of PyTorch."""


def open_onnx(path: Path) -> dict[str, Callable[[], Array]]:
    """Return, for the name of each weight in a file, a function that returns it as float.

    Exports of PyTorch keep the names of most parameters. The matrices of linear layers lose theirs
    and are transposed; here they are called after the module of the product that reads them, with
    rows as outputs again. Int8 weights (``*_quantized``, ``*_scale``, ``*_zero_point``) become the
    floats they stand for.

    Raises
    ------
    CheckpointError
        If it is no ONNX file, or its weights lie in other files.
    MissingDependencyError
        Without the ``models`` extra.
    """
    onnx = require("onnx")
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except Exception as bad:  # protobuf's errors have no common base that is public
        raise CheckpointError(mismatch(str(path), f"unreadable ({bad})", "an ONNX file")) from bad
    raw = {each.name: each for each in graph.initializer}
    products = [node for node in graph.node if node.op_type in _PRODUCTS and len(node.input) > 1]
    # What is no UTF-8 comes as bytes.
    for name in (*raw, *(node.input[1] for node in products)):
        if not isinstance(name, str):
            raise CheckpointError(mismatch(str(path), f"the name {name!r}", "names in UTF-8"))
    for name, tensor in raw.items():
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            expected = "weights inside the file"
            raise CheckpointError(mismatch(f"{path}: {name!r}", "in another file", expected))
    readers: dict[str, Callable[[], Array]] = {}
    for name in raw:
        if name.endswith(("_scale", "_zero_point")) and _stem(name) in raw:
            continue
        plain = name.removesuffix("_quantized")
        readers[plain] = partial(_value, onnx, raw, name)
    for node in products:
        plain = node.input[1].removesuffix("_quantized")
        module = _module(node)
        if plain.startswith(_NAMELESS) and plain in readers and module:
            transposed = partial(_transposed, readers.pop(plain))
            readers[f"{module}.weight"] = transposed
    return {name: read for name, read in readers.items() if not name.startswith("/")}


def _stem(name: str) -> str:
    """Return the name of the int8 tensor that a scale or a zero point belongs to."""
    return name.removesuffix("_scale").removesuffix("_zero_point") + "_quantized"


def _module(node: Any) -> str:
    """Return the dotted path of the module that a product stands for, or ""."""
    path, _, last = str(node.name).strip("/").rpartition("/")
    return path.replace("/", ".") if last == _PRODUCTS[node.op_type] else ""


def _value(onnx: Any, raw: dict[str, Any], name: str) -> Array:
    try:
        array = np.asarray(onnx.numpy_helper.to_array(raw[name]))
        if not name.endswith("_quantized"):
            return array
        stem = name.removesuffix("_quantized")
        if f"{stem}_scale" not in raw:
            raise WeightError(mismatch(f"weight {stem!r}", "int8 without a scale", "one"))
        values = array.astype(np.float32)
        if f"{stem}_zero_point" in raw:
            values -= _spread(onnx, raw[f"{stem}_zero_point"])
        values *= _spread(onnx, raw[f"{stem}_scale"])
        return values
    except WeightError:
        raise
    except (ValueError, TypeError, LookupError) as bad:
        raise WeightError(mismatch(f"weight {name!r}", f"damaged ({bad})", "a tensor")) from bad


def _spread(onnx: Any, tensor: Any) -> Array:
    """Return a scale or a zero point, which broadcasts to the weights and never beyond them."""
    array = np.asarray(onnx.numpy_helper.to_array(tensor))
    if array.dtype.kind == "c":
        raise ValueError(f"{tensor.name} of {array.dtype}")
    return array.astype(np.float32)


def _transposed(read: Callable[[], Array]) -> Array:
    return np.asarray(read().T)
