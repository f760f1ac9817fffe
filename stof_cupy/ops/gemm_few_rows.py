"""The GEMM of few rows, a token of a decoder say: B is read once, and nothing else takes time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stof_cupy.jit.decoder_kernels import (
    FEW_ROWS,
    SIXTEEN_ROWS,
    gemm_few_rows,
    gemm_sixteen_rows,
)
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops._arrays import Array, aligned, pointer
from stof_cupy.ops.gemm_args import Problem, strides
from stof_cupy.ops.gemm_sm80 import layout

__all__ = ["BUSY", "Config", "config_for", "fields", "launch", "of_few", "of_sixteen"]

_COLUMNS = 2
"""Columns of the output that a warp of few rows computes."""

_COLUMNS_OF_B = 16
"""Columns of B of a warp of sixteen rows."""

_WARPS = 4
_MOST_ROOM = 32 * 1024
BUSY = 16
"""Warps of an SM that keep memory busy."""


@dataclass(frozen=True)
class Config:
    """How: the rows that the kernel is compiled for, and the warps that share a column's sum."""

    rows: int
    slices: int

    def spec(self, problem: Problem, *, normed: bool = False, constant: bool = False) -> KernelSpec:
        """Return the kernel for `problem`; after RMSNorm and for a constant B of few rows alone."""
        how = problem.dtype, self.rows, self.slices, problem.epilogue
        if self.rows in SIXTEEN_ROWS:
            return gemm_sixteen_rows(*how)
        room = _room(problem.m + normed, problem.k)
        return gemm_few_rows(*how, normed=normed, constant=constant, room=room)

    @property
    def step(self) -> int:
        """Elements of K whose loads a warp has in flight."""
        return 128 if self.rows in SIXTEEN_ROWS else 512

    def warps(self, problem: Problem) -> int:
        """Return the number of warps."""
        if self.rows in SIXTEEN_ROWS:
            return self.slices * -(-problem.columns // _COLUMNS_OF_B)
        return self.slices * -(-problem.n // _COLUMNS)

    def blocks(self, problem: Problem) -> int:
        """Return the number of CTAs."""
        if self.rows in SIXTEEN_ROWS:
            columns = _COLUMNS_OF_B // problem.epilogue.halves
            return -(-problem.n // (columns * max(8, self.slices) // self.slices))
        return -(-problem.n // (_COLUMNS * _WARPS // self.slices))


def _room(rows: int, k: int) -> int:
    """Return the shared memory for so many rows of K, that all warps read there; 0 if too much."""
    room = -(-rows * (k // 8) * 16 // 1024) * 1024
    return room if room <= _MOST_ROOM else 0


def config_for(problem: Problem, a: Array, b: Array, sm_count: int) -> Config | None:
    """Return how to compute a product of few rows; None if it has more, or lies otherwise.

    Parameters
    ----------
    problem : Problem
    a, b : cupy.ndarray
        ``(M, K)`` and ``(N, K)``.
    sm_count : int

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.zeros((1, 576), np.float16), np.zeros((960, 576), np.float16)
    >>> config_for(Problem("float16", 1, 960, 576), a, b, 132)
    Config(rows=1, slices=1)
    """
    if layout(a) != "k" or layout(b, problem.epilogue.halves) != "k":
        return None
    return of_few(problem, sm_count)


def of_few(problem: Problem, sm_count: int) -> Config | None:
    """Return how to compute a product of at most four rows, of operands that lie along K."""
    if not 0 < problem.m <= FEW_ROWS[-1] or not problem.n or not problem.epilogue.rows_alone:
        return None
    rows = next(rows for rows in FEW_ROWS if problem.m <= rows)
    slices, warps = 1, -(-problem.n // _COLUMNS)
    # So that a warp loads all that it has of K at once: registers hold 1024 elements of a column,
    # beside several rows 512; and those are kept busy by more than so many warps anyway.
    held, most = (1024, 2**31) if rows == 1 else (512, sm_count * BUSY * 3 // 2)
    while slices < _WARPS and problem.k > held * slices and 2 * slices * warps <= most:
        slices *= 2
    return Config(rows, slices)


def of_sixteen(problem: Problem, sm_count: int) -> Config | None:
    """Return how to compute a product of at most sixteen rows, of operands that lie along K.

    Examples
    --------
    >>> of_sixteen(Problem("float16", 16, 2048, 8192), 132)
    Config(rows=16, slices=16)
    """
    if not 0 < problem.m <= SIXTEEN_ROWS[-1] or not problem.n or not problem.epilogue.rows_alone:
        return None
    rows = next(rows for rows in SIXTEEN_ROWS if problem.m <= rows)
    slices, warps = 1, -(-problem.columns // _COLUMNS_OF_B)
    # Sixteen warps are all of a CTA, and one of an SM: only if each SM has no second one.
    most = 16 if warps <= sm_count else 8
    while slices < most and warps * slices < sm_count * BUSY and problem.k >= 128 * slices:
        slices *= 2
    return Config(rows, slices)


def launch(
    config: Config,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    scale: float = 1.0,
    stages: Any = None,
    norm: Array | None = None,
    eps: float = 0.0,
    constant: bool = False,
) -> None:
    """Run the kernel on the current device and CuPy's current stream; as `gemm_sm80.launch`.

    None of `stages` is in an epilogue that `config_for` takes.

    Parameters
    ----------
    norm : cupy.ndarray, optional
        Shape ``(K,)``, 16-byte aligned: rows of A are normalised by `eps` and this weight first.
    constant : bool
        Whether no kernel that may still run writes `b` and `norm`.
    """
    from stof_cupy.jit.launch import kernel

    spec = config.spec(problem, normed=norm is not None, constant=constant)
    run = kernel(spec, c.device.id)
    values = fields(problem, a, b, c, bias, residual, scale)
    if config.rows not in SIXTEEN_ROWS:
        values |= {"norm": pointer(norm), "eps": eps}
    params = run.pack(**values)
    run((config.blocks(problem),), params)


def fields(
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    bias: Array | None,
    residual: Array | None,
    scale: float,
) -> dict[str, Any]:
    """Return the kernel's parameters, without those of a norm."""
    residual_row = 0 if residual is None else strides(residual)[0]
    return {
        "a": pointer(a),
        "b": pointer(b),
        "c": pointer(c),
        "bias": pointer(bias),
        "residual": pointer(residual),
        "residual_row": residual_row,
        **{"c_row": strides(c)[0], "a_row": strides(a)[0], "b_row": strides(b)[0]},
        **{"m": problem.m, "n": problem.n, "k": problem.k},
        "pairs_residual": residual is not None and aligned(residual, 4, residual_row),
        "scale": scale,
    }
