"""Token, position and type embeddings, summed in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch
from stof_cupy.jit import catalogue
from stof_cupy.ops._arrays import (
    Array,
    aligned,
    backend,
    check_dtype,
    check_no_overlap,
    check_out,
    check_shape,
    device_dtype,
    pointer,
)

__all__ = ["arguments", "embedding"]

_LONG = np.dtype(np.int64)
_READ = (np.dtype(np.int32), _LONG)
"""Of which types the kernel takes ids; those of others are copied."""


def embedding(
    ids: Array,
    table: Array,
    *,
    position_table: Array | None = None,
    type_table: Array | None = None,
    token_types: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Compute ``table[ids] + position_table[0:seq] + type_table[token_types]``.

    Parameters
    ----------
    ids : ndarray of int
        Shape ``(batch, seq)``; NumPy or CuPy.
    table : ndarray
        Shape ``(vocabulary, hidden)``. On CUDA float16 or bfloat16, on NumPy any float.
    position_table : ndarray, optional
        Shape ``(positions, hidden)`` with at least `seq` rows, dtype of `table`.
    type_table : ndarray, optional
        Shape ``(types, hidden)``, dtype of `table`.
    token_types : ndarray of int, optional
        Shape ``(batch, seq)``; goes with `type_table` and only with it.
    out : ndarray, optional
        Where to write the result: shape ``(batch, seq, hidden)``, dtype of `table`,
        contiguous last axis, no overlap with the inputs.

    Returns
    -------
    ndarray
        Shape ``(batch, seq, hidden)``, dtype of `table`.

    Raises
    ------
    ArgumentError
        If an id or type lies outside its table. On CUDA that would need a synchronisation, so there
        the token's row becomes NaN instead.
    ShapeError, DTypeError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> table = np.arange(6, dtype=np.float32).reshape(3, 2)
    >>> embedding(np.array([[2, 0]]), table)
    array([[[4., 5.],
            [0., 1.]]], dtype=float32)
    """
    where = _validate(ids, table, position_table, type_table, token_types, out)
    tables: dict[str, Any] = {
        "position_table": position_table,
        "type_table": type_table,
        "token_types": token_types,
    }
    if where == "numpy":
        from stof_cupy.ops import cpu

        _check_range("ids", ids, table.shape[0])
        if type_table is not None:
            _check_range("token_types", token_types, type_table.shape[0])
        return cpu.embedding(ids, table, **tables, out=out)
    return _launch(ids, table, **tables, out=out)


def _validate(
    ids: Array,
    table: Array,
    position_table: Array | None,
    type_table: Array | None,
    token_types: Array | None,
    out: Array | None,
) -> str:
    """Check shapes, dtypes and devices; return the backend."""
    where = backend(
        ids=ids,
        table=table,
        position_table=position_table,
        type_table=type_table,
        token_types=token_types,
        out=out,
    )
    check_shape("ids", ids, ("batch", "seq"))
    check_dtype("table", table)
    check_shape("table", table, ("vocabulary", "hidden"))
    hidden = table.shape[1]
    for name, x in (("ids", ids), ("token_types", token_types)):
        if x is not None and x.dtype.kind not in "iu":
            raise DTypeError(mismatch(name, x.dtype.name, "an integer array"))
    if (type_table is None) != (token_types is None):
        given = "token_types" if type_table is None else "type_table"
        raise ArgumentError(
            mismatch("type_table and token_types", f"only {given}", "both or neither")
        )
    for name, x in (("position_table", position_table), ("type_table", type_table)):
        if x is not None:
            check_dtype(name, x, table, "table")
            check_shape(name, x, ("rows", hidden))
    if type_table is not None and type_table.shape[0] == 0:
        raise ShapeError(mismatch("type_table", tuple(type_table.shape), "at least one row"))
    if token_types is not None:
        check_shape("token_types", token_types, ids.shape)
    if position_table is not None and position_table.shape[0] < ids.shape[1]:
        expected = f"at least {ids.shape[1]} rows, one a position"
        raise ShapeError(mismatch("position_table", tuple(position_table.shape), expected))
    check_out(out, (*ids.shape, hidden), table)
    tables = {"table": table, "position_table": position_table, "type_table": type_table}
    check_no_overlap(out, ids=ids, token_types=token_types, **tables)
    return where


def _check_range(name: str, ids: Array, rows: int) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise ArgumentError(mismatch(name, int(worst), f"ids from 0 to {rows - 1}"))


def _launch(
    ids: Array,
    table: Array,
    *,
    position_table: Array | None,
    type_table: Array | None,
    token_types: Array | None,
    out: Array | None,
) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = table.device.id
    with cupy.cuda.Device(device):
        run = kernel(catalogue.embedding(device_dtype("table", table)), device)
        if out is None:
            out = cupy.empty((*ids.shape, table.shape[1]), table.dtype)
        if not out.size:
            return out
        to = out if out.flags.c_contiguous else cupy.empty(out.shape, out.dtype)
        # Named, because a copy has to live until the kernel has been launched.
        ids, token_types = _numbers(ids), _numbers(token_types)
        tables = [
            None if x is None else cupy.ascontiguousarray(x)
            for x in (table, position_table, type_table)
        ]
        blocks, fields = arguments(ids, token_types, *tables, out=to)
        run((blocks,), run.pack(**fields))
        if to is not out:
            out[...] = to
    return out


def _numbers(x: Array | None) -> Array | None:
    """Return ids as the kernel takes them, contiguous."""
    import cupy

    return None if x is None else cupy.ascontiguousarray(x, x.dtype if x.dtype in _READ else _LONG)


def arguments(
    ids: Array,
    token_types: Array | None,
    table: Array,
    position_table: Array | None,
    type_table: Array | None,
    *,
    out: Array,
) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters for contiguous arrays."""
    hidden = table.shape[1]
    return -(-ids.size * 32 // 128), {  # a warp each
        "ids": pointer(ids),
        "table": pointer(table),
        "position_table": pointer(position_table),
        "token_types": pointer(token_types),
        "type_table": pointer(type_table),
        "out": pointer(out),
        "tokens": ids.size,
        "seq": ids.shape[1],
        "table_rows": table.shape[0],
        "type_rows": 0 if type_table is None else type_table.shape[0],
        "cols": hidden,
        "wide": all(
            x is None or aligned(x, 16, hidden) for x in (table, position_table, type_table, out)
        ),
        "long_ids": ids.dtype == _LONG,
        "long_types": token_types is not None and token_types.dtype == _LONG,
    }
