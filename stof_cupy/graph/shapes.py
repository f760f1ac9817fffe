"""Shape inference: what each operator demands of its inputs' shapes, and the shape it gives back.

A dim is a number or a name such as ``"seq"``. A name stands for one size in the whole graph, known
only in a run: it fits itself and nothing else, so no rule here ever guesses that ``"batch"`` and 8
might be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from stof_cupy.errors import ArgumentError, GraphError, ShapeError, mismatch
from stof_cupy.ops.relative_bias import check_table

__all__ = ["Attrs", "Dim", "Shape", "Shapes", "expect", "format_shape", "known", "ranked"]

Dim: TypeAlias = "int | str"
Shape: TypeAlias = "tuple[int | str, ...]"
Shapes: TypeAlias = "Mapping[str, Shape | None]"
Attrs: TypeAlias = "Mapping[str, Any]"


def format_shape(shape: tuple[Dim | None, ...]) -> str:
    """Return a shape as it is printed everywhere: names bare, None as ``any``.

    Examples
    --------
    >>> format_shape(("batch", "seq", 384)), format_shape((None,))
    ('(batch, seq, 384)', '(any,)')
    """
    dims = ["any" if dim is None else str(dim) for dim in shape]
    return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"


def expect(port: str, got: Shape | None, expected: tuple[Dim | None, ...], hint: str) -> None:
    """Raise GraphError unless `got` fits `expected` (None: any dim); an absent input passes."""
    if got is None:
        return
    fits = len(got) == len(expected) and all(
        want is None or want == dim for dim, want in zip(got, expected, strict=True)
    )
    if not fits:
        raise GraphError(mismatch(port, format_shape(got), format_shape(expected), hint))


def known(port: str, dim: Dim, what: str) -> int:
    """Return a dim that has to be a number, or raise GraphError."""
    if isinstance(dim, str):
        raise GraphError(mismatch(f"{what} of {port}", dim, "a number, not a symbolic dim"))
    return dim


def ranked(shapes: Shapes, port: str, rank: int | None = None, *, least: int = 1) -> Shape:
    """Return the shape of a required input that has `rank` dims, or at least `least`."""
    shape = shapes[port] or ()
    if len(shape) < least or (rank is not None and len(shape) != rank):
        want = f"{rank} dims" if rank else f"at least {least} dims"
        raise GraphError(mismatch(port, format_shape(shape), want))
    return shape


def gemm(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., K), w (N, K), bias (N,), residual (..., N) -> (..., N)``; gated, N / 2.

    Beside them statistics (..., 2).
    """
    x = ranked(shapes, "x", least=2)
    w = ranked(shapes, "w", 2)
    hint = f"x has shape {format_shape(x)}"
    expect("w", w, (None, x[-1]), f"{hint}; weights are stored (N, K)")
    out = (*x[:-1], _halved(w, attrs) if attrs["gated"] else w[0])
    expect("bias", shapes["bias"], (w[0],), f"w has shape {format_shape(w)}")
    expect("residual", shapes["residual"], out, f"{hint}, w {format_shape(w)}")
    expect("statistics", shapes["statistics"], (*x[:-1], 2), hint)
    return out


def told_gemm(shapes: Shapes, attrs: Attrs) -> Shape:
    """As gemm."""
    return gemm(shapes, {**attrs, "gated": False})


def row_statistics(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., C) -> (..., 2)``."""
    return (*ranked(shapes, "x")[:-1], 2)


def _halved(w: Shape, attrs: Attrs) -> int:
    """Return half the rows of the weight of a gated product."""
    rows = known("w", w[0], "the first dim")
    if rows % 2:
        raise GraphError(mismatch("w", format_shape(w), "an even number of rows, to be gated"))
    if attrs["activation"] is None:
        raise GraphError(mismatch("activation", None, "one, because it is gated"))
    return rows // 2


def add(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., *s), y (*s) -> (..., *s)``."""
    x = ranked(shapes, "x")
    y = ranked(shapes, "y")
    hint = f"y broadcasts over the leading axes of x {format_shape(x)}"
    expect("y", y, x[max(len(x) - len(y), 0) :], hint)
    return x


def elementwise(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (...) -> (...)``."""
    return ranked(shapes, "x")


def layer_norm(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (..., C), weight (C,), bias (C,) -> (..., C)``."""
    x = ranked(shapes, "x")
    for port in ("weight", "bias"):
        expect(port, shapes[port], x[-1:], f"the last axis of x {format_shape(x)} is normalised")
    return x


def embedding(shapes: Shapes, attrs: Attrs) -> Shape:
    """``ids (batch, seq), table (vocab, C) -> (batch, seq, C)``.

    Beside them position_table (positions, C), token_types (batch, seq), type_table (types, C).
    """
    ids = ranked(shapes, "ids", 2)
    table = ranked(shapes, "table", 2)
    hint = f"table has shape {format_shape(table)}"
    positions, seq = shapes["position_table"], ids[1]
    expect("position_table", positions, (None, table[1]), hint)
    expect("token_types", shapes["token_types"], ids, f"ids has shape {format_shape(ids)}")
    expect("type_table", shapes["type_table"], (None, table[1]), hint)
    if (shapes["token_types"] is None) != (shapes["type_table"] is None):
        given = "token_types" if shapes["type_table"] is None else "type_table"
        raise GraphError(mismatch("token_types and type_table", f"only {given}", "both or neither"))
    if positions and isinstance(seq, int) and seq > known("position_table", positions[0], "size"):
        raise GraphError(mismatch("position_table", f"{positions[0]} positions", f"at least {seq}"))
    return (*ids, table[1])


def split_heads(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (batch, seq, heads * head_dim) -> (batch, heads, seq, head_dim)``."""
    x = ranked(shapes, "x", 3)
    width, heads = known("x", x[2], "the last dim"), attrs["heads"]
    if width % heads:
        raise GraphError(mismatch("x", format_shape(x), f"a last dim divisible by heads={heads}"))
    return (x[0], heads, x[1], width // heads)


def merge_heads(shapes: Shapes, attrs: Attrs) -> Shape:
    """``x (batch, heads, seq, head_dim) -> (batch, seq, heads * head_dim)``."""
    x = ranked(shapes, "x", 4)
    return (x[0], x[2], known("x", x[1], "heads") * known("x", x[3], "head_dim"))


def attention(shapes: Shapes, attrs: Attrs) -> Shape:
    """``q (batch, heads, sq, d), k (batch, kv, sk, d), v (batch, kv, sk, dv) -> as q, with dv``.

    Beside them lengths (batch,), relative_bias (buckets, heads), query_at (sq,) and mask (sq, sk),
    which in a run may have leading axes that broadcast to (batch, heads).
    """
    q = ranked(shapes, "q", 4)
    k = ranked(shapes, "k", 4)
    v = ranked(shapes, "v", 4)
    expect("k", k, (q[0], None, None, q[3]), f"q has shape {format_shape(q)}")
    expect("v", v, (k[0], k[1], k[2], None), f"k has shape {format_shape(k)}")
    heads, kv_heads = known("q", q[1], "heads"), known("k", k[1], "heads")
    if not kv_heads or heads % kv_heads:
        raise GraphError(mismatch("k", f"{kv_heads} heads", f"a divisor of the {heads} heads of q"))
    expect("mask", shapes["mask"], (q[2], k[2]), "a mask is (query positions, key positions)")
    expect("lengths", shapes["lengths"], (q[0],), f"q has shape {format_shape(q)}")
    table = shapes["relative_bias"]
    expect("relative_bias", table, (None, heads), "it is (buckets, heads)")
    if table is not None and isinstance(table[0], int):
        try:
            how = bool(attrs["bidirectional"]), int(attrs["max_distance"])
            check_table("relative_bias", (table[0], heads), *how)
        except (ShapeError, ArgumentError) as error:
            raise GraphError(str(error)) from None
    expect("query_at", shapes["query_at"], (q[2],), f"q has shape {format_shape(q)}")
    if table is None and shapes["query_at"] is not None:
        raise GraphError(mismatch("query_at", "an input", "None: there is no relative_bias"))
    return (q[0], heads, q[2], v[3])
