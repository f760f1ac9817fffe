"""Shape inference of what decoders need; see `shapes`."""

from __future__ import annotations

from stof_cupy.errors import GraphError, mismatch
from stof_cupy.graph.shapes import Attrs, Shape, Shapes, expect, format_shape, gemm, known, ranked

__all__ = ["kv_cache", "pair", "rms_norm", "rotary", "softcap", "take_rows", "turned_gemm"]


def rms_norm(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., C), weight (C,) -> (..., C)``."""
    x = ranked(shapes, "x")
    hint = f"the last axis of x {format_shape(x)} is normalised"
    expect("weight", shapes["weight"], x[-1:], hint)
    return x


def pair(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (...), y (...) -> (...)``."""
    x = ranked(shapes, "x")
    expect("y", shapes["y"], x, f"x has shape {format_shape(x)}")
    return x


def softcap(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., C), cap (C,) -> (..., C)``."""
    x = ranked(shapes, "x")
    expect("cap", shapes["cap"], x[-1:], f"x has shape {format_shape(x)}")
    return x


def rotary(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (batch, heads, seq, head_dim), positions (batch, seq) -> as x``."""
    x = ranked(shapes, "x", 4)
    expect("positions", shapes["positions"], (x[0], x[2]), f"x has shape {format_shape(x)}")
    head_dim, half = known("x", x[3], "head_dim"), len(attrs["frequency"])
    if 2 * half > head_dim:
        expected = f"at most {head_dim // 2}, half of head_dim"
        raise GraphError(mismatch("frequency", f"{half} numbers", expected))
    return x


def turned_gemm(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (batch, seq, K), w (N, K), positions (batch, seq), bias (N,) -> (batch, seq, N)``.

    Beside them statistics (batch, seq, 2).
    """
    x = ranked(shapes, "x", 3)
    product = {**shapes, "residual": None}
    out = gemm(product, {"activation": None, "gated": False})
    expect("positions", shapes["positions"], x[:2], f"x has shape {format_shape(x)}")
    heads, head_dim, half = attrs["heads"], attrs["head_dim"], len(attrs["frequency"])
    columns = known("w", out[2], "the first dim")
    if head_dim % 2 or heads * head_dim > columns:
        expected = f"heads of an even size within {columns} columns"
        raise GraphError(mismatch("heads", f"{heads} of {head_dim}", expected))
    if 2 * half > head_dim:
        expected = f"at most {head_dim // 2}, half of head_dim"
        raise GraphError(mismatch("frequency", f"{half} numbers", expected))
    return out


def kv_cache(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (batch, heads, seq, d), positions (batch, seq), cache (batch, heads, keys, d)``.

    Returns the shape of the cache, or of x.
    """
    x = ranked(shapes, "x", 4)
    expect("positions", shapes["positions"], (x[0], x[2]), f"x has shape {format_shape(x)}")
    cache = shapes["cache"]
    expect("cache", cache, (x[0], x[1], None, x[3]), f"x has shape {format_shape(x)}")
    return x if cache is None else cache


def take_rows(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (batch, seq, C), rows (batch, n) -> (batch, n, C)``."""
    x = ranked(shapes, "x", 3)
    rows = ranked(shapes, "rows", 2)
    expect("rows", rows, (x[0], None), f"x has shape {format_shape(x)}")
    return (*rows, x[2])
