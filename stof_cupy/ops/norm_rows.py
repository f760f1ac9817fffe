"""What LayerNorm and RMSNorm share: their arguments, and the launch of their kernel."""

from __future__ import annotations

from typing import Any

from stof_cupy.errors import ArgumentError, ShapeError, UnsupportedError, mismatch
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops._arrays import (
    Array,
    aligned,
    backend,
    check_dtype,
    check_eps,
    check_no_overlap,
    check_out,
    check_shape,
    memory_order,
    permuted,
    pointer,
    unit_last,
)

__all__ = ["arguments", "launch", "validate"]

_KEPT = 1024
"""Elements that a warp keeps in registers: `kPieces` of 8 in each of 32 lanes."""

_MOST = 2**31 - 2**14
"""Columns: a thread counts in 32 bits, in steps of 8192 at most."""

_MANY = 4096
"""Warps that keep a GPU's memory busy."""

_FITS = 2**25
"""Bytes of a matrix that a GPU's L2 may still hold when all of it has been written.

Of larger ones it holds the last rows, so those are normalised first, and the first rows last, with
which the next kernel begins: 1 % of a BERT's or GPT-2's time at 16x2048 on an H200.
"""


def validate(
    x: Array,
    *,
    eps: float,
    residual: Array | None,
    sum_out: Array | None,
    out: Array | None,
    **weights: Array,
) -> str:
    """Return the backend of a norm's arguments, or raise as the norms say."""
    where = backend(x=x, residual=residual, **weights, sum_out=sum_out, out=out)
    check_dtype("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ShapeError(mismatch("x", tuple(x.shape), "(..., hidden) with hidden at least 1"))
    for name, y in weights.items():
        check_dtype(name, y, x, "x")
        check_shape(name, y, x.shape[-1:])
    if residual is not None:
        check_dtype("residual", residual, x, "x")
        check_shape("residual", residual, x.shape)
    elif sum_out is not None:
        raise ArgumentError(mismatch("sum_out", "an array", "None, as there is no residual"))
    for name, to in (("out", out), ("sum_out", sum_out)):
        check_out(to, x.shape, x, name=name)
        check_no_overlap(to, x, name, x=x, **weights)
        check_no_overlap(to, residual, name, residual=residual)
    check_no_overlap(out, sum_out=sum_out)
    check_eps(eps)
    return where


def launch(
    spec: KernelSpec,
    x: Array,
    weight: Array,
    bias: Array | None,
    out: Array,
    *,
    eps: float,
    residual: Array | None,
    sum_out: Array | None,
) -> None:
    """Run the kernel on the current device and CuPy's current stream."""
    from stof_cupy.jit.launch import kernel

    if not out.size:
        return
    run = kernel(spec, x.device.id)
    results = {"out": out} if sum_out is None else {"out": out, "sum_out": sum_out}
    order = memory_order(out)
    rows = {name: _rows(to, order) for name, to in results.items()}
    # What is copied has to live until the kernel has been launched.
    rows["x"] = _rows(unit_last(x), order)
    if residual is not None:
        rows["residual"] = _rows(unit_last(residual), order)
    weight, bias = unit_last(weight), None if bias is None else unit_last(bias)
    added, summed = rows.get("residual"), rows.get("sum_out")
    blocks, fields = arguments(
        rows["x"], weight, bias, rows["out"], eps=eps, residual=added, sum_out=summed
    )
    run((blocks,), run.pack(**fields))
    for name, to in results.items():
        if pointer(rows[name]) != pointer(to):
            lying = rows[name].reshape([out.shape[axis] for axis in order])
            to[...] = permuted(lying, [order.index(axis) for axis in range(out.ndim)])


def arguments(
    rows: Array,
    weight: Array | None,
    bias: Array | None,
    to: Array | None,
    *,
    eps: float,
    residual: Array | None = None,
    sum_out: Array | None = None,
    told: bool = False,
) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters for matrices with contiguous rows.

    With `told` for a kernel that keeps nothing: a row then has no more warps than a GPU needs.

    Raises
    ------
    UnsupportedError
        If a row is longer than the kernel counts.
    """
    count, cols = rows.shape
    if cols > _MOST:
        raise UnsupportedError(mismatch("columns", cols, f"at most {_MOST}"))
    matrices = {"x": rows, "residual": residual, "sum": sum_out, "out": to}
    steps = {name: 0 if y is None else y.strides[0] // y.itemsize for name, y in matrices.items()}
    wide = cols % 8 == 0 and all(
        y is None or aligned(y, 16, step)
        for y, step in [
            *zip(matrices.values(), steps.values(), strict=True),
            (weight, 0),
            (bias, 0),
        ]
    )
    warps = next((each for each in (1, 2, 4) if cols <= each * _KEPT), 8)
    while told and warps > 1 and count * warps >= 2 * _MANY:
        warps //= 2
    fields = {
        **{name: pointer(y) for name, y in matrices.items()},
        **{f"{name}_row": step for name, step in steps.items()},
        "weight": pointer(weight),
        "bias": pointer(bias),
        "rows": count,
        "cols": cols,
        "wide": wide,
        "warps": warps,
        "backwards": count * cols * rows.itemsize > _FITS,
        "eps": eps,
    }
    return -(-count // (8 // warps)), fields


def _rows(y: Array, order: list[int]) -> Array:
    """Return `y` as a matrix, rows by axes in that order; a view if they can be."""
    lying = permuted(y, order)
    return lying if y.ndim == 2 else lying.reshape(-1, y.shape[-1])
