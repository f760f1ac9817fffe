"""Operators that only a spelled-out graph holds: what attention is made of, and plain views.

Each means the same on NumPy and on CuPy arrays, which is how it is run where no rewrite absorbed
it. Beside the meaning stands the shape rule.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import GraphError, mismatch
from stof_cupy.graph.shapes import Attrs, Shape, Shapes, expect, format_shape, known, ranked
from stof_cupy.masks import BsrMask, MaskStack
from stof_cupy.ops._arrays import lasting

__all__ = [
    "columns",
    "columns_shape",
    "masked",
    "masked_shape",
    "matmul",
    "matmul_shape",
    "scale",
    "softmax",
    "to_axes",
    "transpose",
    "transpose_shape",
]

Array = Any


def matmul(x: Array, y: Array) -> Array:
    """Return x @ y, batched over the leading axes; a y of two axes is for all of them."""
    return (x @ y).astype(x.dtype, copy=False)  # of bfloat16 a library may make float32


def scale(x: Array, *, factor: float) -> Array:
    """Return x * factor, in the type of x."""
    return x * x.dtype.type(factor)


def masked(x: Array, mask: Any, lengths: Array | None) -> Array:
    """Return x where a query may attend to a key, -inf elsewhere."""
    kept = x == x  # of the library and device of x
    kept[...] = True
    if mask is not None:
        kept &= _dense(mask) if isinstance(x, np.ndarray) else _dense_on_device(mask)
    if lengths is not None:
        xp = np if isinstance(x, np.ndarray) else _cupy()
        kept &= xp.arange(x.shape[-1]) < xp.asarray(lengths)[:, None, None, None]
    out = x.copy()
    out[~kept] = -math.inf
    return out


def _dense(mask: Any) -> NDArray[np.bool_]:
    return np.asarray(mask.toarray() if hasattr(mask, "toarray") else mask, bool)


_UPLOADED: dict[tuple[int, int], tuple[weakref.ref[Any], Array]] = {}
"""Masks that stay what they are, by id and device: a run that is captured cannot upload them."""


def _dense_on_device(mask: Any) -> Array:
    """Return a mask as an array on CuPy's current device; it is uploaded once."""
    device = int(_cupy().cuda.Device().id)
    if not isinstance(mask, BsrMask | MaskStack):
        return _cupy().asarray(_dense(mask))
    key = id(mask), device
    owner, array = _UPLOADED.get(key, (None, None))
    if owner is None or owner() is not mask:
        array = lasting(_dense(mask), device)
        _UPLOADED[key] = weakref.ref(mask, lambda _: _UPLOADED.pop(key, None)), array
    return array


def softmax(x: Array) -> Array:
    """Return exp(x) over its sum along the last axis; a row of nothing but -inf is 0."""
    if not x.size:  # of no elements there is no largest one
        return x.copy()
    xp = np if isinstance(x, np.ndarray) else _cupy()
    peak = x.max(axis=-1, keepdims=True)
    weights = xp.exp(x - xp.where(xp.isfinite(peak), peak, peak.dtype.type(0)))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / xp.where(total > 0, total, total.dtype.type(1))


def transpose(x: Array, *, axes: Sequence[int]) -> Array:
    """View x with its axes in another order."""
    return x.transpose(axes)


def columns(x: Array, *, start: int, stop: int) -> Array:
    """View x[..., start:stop]."""
    return x[..., start:stop]


def _cupy() -> Any:
    import cupy

    return cupy


def to_axes(value: Any) -> tuple[int, ...]:
    """Return a permutation of 0, 1, ... as a tuple, or raise ValueError."""
    axes = tuple(int(axis) for axis in value)
    if not axes or sorted(axes) != list(range(len(axes))):
        raise ValueError(value)
    return axes


def matmul_shape(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., M, K), y (..., K, N) or (K, N) -> (..., M, N)``."""
    x = ranked(shapes, "x", least=2)
    y = ranked(shapes, "y", least=2)
    if len(y) == 2:
        expect("y", y, (x[-1], None), f"x has shape {format_shape(x)}")
        return (*x[:-1], y[-1])
    expect("y", y, (*x[:-2], x[-1], None), f"x has shape {format_shape(x)}")
    return (*x[:-1], y[-1])


def masked_shape(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (batch, heads, sq, sk), mask (sq, sk), lengths (batch,) -> as x``."""
    x = ranked(shapes, "x", 4)
    hint = f"x has shape {format_shape(x)}"
    expect("mask", shapes["mask"], x[2:], hint)
    expect("lengths", shapes["lengths"], x[:1], hint)
    return x


def transpose_shape(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x -> its dims in the order of axes``."""
    axes = attrs["axes"]
    x = ranked(shapes, "x")
    if len(axes) != len(x):
        raise GraphError(mismatch("x", format_shape(x), f"{len(axes)} dims for axes={axes}"))
    return tuple(x[axis] for axis in axes)


def columns_shape(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., C) -> (..., stop - start)``."""
    x = ranked(shapes, "x")
    start, stop = attrs["start"], attrs["stop"]
    width = known("x", x[-1], "the last dim")
    if not start < stop <= width:
        raise GraphError(mismatch("columns", f"{start}:{stop}", f"a part of 0:{width}"))
    return (*x[:-1], stop - start)
