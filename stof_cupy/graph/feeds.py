"""The inputs of one run, checked against what the graph declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from stof_cupy.dtypes import dtype_name, is_float
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    StofError,
    mismatch,
)
from stof_cupy.graph.ir import Graph
from stof_cupy.graph.node import Node
from stof_cupy.graph.shapes import Shape, format_shape

__all__ = ["mask_leads", "read_feeds", "settled_masks"]


def mask_leads(nodes: Iterable[Node]) -> dict[str, list[Shape]]:
    """Return, by mask input, the distinct ``(batch, heads)`` of the attentions that read it."""
    leads: dict[str, list[Shape]] = {}
    for node in nodes:
        for each in node.inputs:
            if each is not None and each.dtype == "mask":
                known = leads.setdefault(each.name, [])
                if node.shape[:2] not in known:
                    known.append(node.shape[:2])
    return leads


def read_feeds(
    declared: Mapping[str, Node],
    inputs: Mapping[str, Any],
    float_dtype: np.dtype[Any],
    device: int | None,
    leads: Mapping[str, list[Shape]],
) -> dict[str, Any]:
    """Return a run's inputs by name, in the dtypes that operators take, masks as attention does.

    Parameters
    ----------
    declared : mapping of str to Node
        The graph's inputs.
    inputs : mapping of str to object
        What the caller gave.
    float_dtype : dtype
        What floats are cast to.
    device : int or None
        The CUDA device that arrays have to be on; None: NumPy arrays.
    leads : mapping of str to list
        What the leading axes of masks broadcast to, see `mask_leads`.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError, DeviceError
        As `Executor.run` says.
    """
    unknown = sorted(inputs.keys() - declared.keys())
    if unknown:
        known = ", ".join(declared) or "no input"
        raise ArgumentError(mismatch("input", repr(unknown[0]), known))
    sizes: dict[str, tuple[int, str]] = {}
    feeds = {}
    read: dict[Any, Any] = {}
    # Arrays first: they say what the batch is that the leading axes of masks have to fit.
    for name, node in sorted(declared.items(), key=lambda item: item[1].dtype == "mask"):
        value = inputs.get(name)
        if value is None:
            if node.dtype in ("float", "int"):
                expected = f"{node.dtype} {format_shape(node.shape)}"
                raise ArgumentError(mismatch(f"input {name!r}", "nothing", expected))
            continue
        if node.dtype == "mask":
            own = leads.get(name, [])
            key = id(value), node.shape, *own  # layers have the same one, as a rule
            if key not in read:
                read[key] = _mask(node, value, own, sizes)
            feeds[name] = read[key]
        else:
            feeds[name] = _array(node, value, float_dtype, device)
            _bind(node, feeds[name].shape, sizes)
    return feeds


def settled_masks(
    graph: Graph, inputs: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the masks among a run's inputs, arrays on the host as masks that stay what they are.

    An array is made a mask anew in every run, which a captured one cannot do. What is wrong with
    one is left to the run to say.
    """
    from scipy.sparse import issparse

    leads = mask_leads(graph.nodes())
    known = {name: (size, name) for name, size in sizes.items()}
    settled = {}
    for name, node in graph.inputs.items():
        if node.dtype == "mask":
            settled[name] = value = inputs.get(name)
            if isinstance(value, np.ndarray) or issparse(value):
                with suppress(StofError):
                    settled[name] = _mask(node, value, leads.get(name, []), dict(known))
    return settled


def _mask(node: Node, value: Any, leads: list[Shape], sizes: dict[str, tuple[int, str]]) -> Any:
    """Return a mask in the form that attention takes, checked against all that read it."""
    from stof_cupy.masks import as_mask, as_masks

    what = f"input {node.name!r}"
    if not hasattr(value, "shape"):
        return as_mask(value, name=what)  # which says what a mask may be
    shape = tuple(value.shape)
    _bind(node, shape, sizes)
    # One that nothing reads may have any leading axes.
    for lead in leads or [(1, 1, *shape)[-4:-2]]:
        batch, heads = (sizes[dim][0] if isinstance(dim, str) else dim for dim in lead)
        value = as_masks(value, (batch, heads, *shape[-2:]), what)
    return value


def _array(node: Node, value: Any, float_dtype: np.dtype[Any], device: int | None) -> Any:
    """Return an array of the right backend and device, cast to the dtype that operators take."""
    what = f"input {node.name!r}"
    if device is None:
        kind: Any = np.ndarray
        expected = "a NumPy array"
    else:
        import cupy

        kind = cupy.ndarray
        expected = f"a CuPy array on device {device}"
    if not isinstance(value, kind):
        raise DTypeError(mismatch(what, type(value).__name__, expected))
    if device is not None and value.device.id != device:
        raise DeviceError(mismatch(what, f"device {value.device.id}", f"device {device}"))
    float_like = node.dtype in ("float", "cache")
    fits = is_float(value.dtype) if float_like else value.dtype.kind in "iu"
    if not fits:
        wanted = "floats" if float_like else "integers"
        raise DTypeError(mismatch(what, dtype_name(value.dtype), wanted))
    if node.dtype == "int":
        # Positions, which products of all layers read, are repeated for the batch once: here.
        repeated = value.dtype == np.int32 and not value.flags.c_contiguous
        return value.copy() if repeated and device is not None else value
    if node.dtype == "cache":
        # It is written to, so a copy would not do.
        if value.dtype != float_dtype:
            raise DTypeError(mismatch(what, dtype_name(value.dtype), dtype_name(float_dtype)))
        return value
    if float_like:
        return value.astype(float_dtype, copy=False)
    # Attention clips lengths to its keys, of which int32 can count all; a larger length must not
    # wrap around to a small one on the way there.
    if value.dtype == np.int32 and value.flags.c_contiguous:
        return value
    most = min(np.iinfo(value.dtype).max, np.iinfo(np.int32).max)
    return value.clip(0, most).astype(np.int32, order="C", copy=False)


def _bind(node: Node, shape: tuple[int, ...], sizes: dict[str, tuple[int, str]]) -> None:
    """Note what the symbolic dims of `node` are in this run, or raise ShapeError."""
    own = shape[-2:] if node.dtype == "mask" else shape
    fits = len(own) == len(node.shape)
    for dim, size in zip(node.shape, own, strict=True) if fits else ():
        if isinstance(dim, str):
            fits &= sizes.setdefault(dim, (size, node.name))[0] == size
        else:
            fits &= dim == size
    if not fits:
        known = [
            f"{dim} is {sizes[dim][0]} in {sizes[dim][1]!r}"
            for dim in dict.fromkeys(node.shape)
            if isinstance(dim, str) and dim in sizes
        ]
        got, expected = format_shape(tuple(shape)), format_shape(node.shape)
        raise ShapeError(mismatch(f"input {node.name!r}", got, expected, ", ".join(known)))
