"""The GEMM of few rows on Hopper: B is read once, at the speed of the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit import tensormap
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.gemm_streamed import STREAMED_COLUMNS, STREAMED_ROWS, gemm_streamed
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops._arrays import Array, aligned, pointer
from stof_cupy.ops.gemm_args import Problem, strides
from stof_cupy.ops.gemm_operand import DEPTH, Operand, matrix, operand

__all__ = ["Config", "config_for", "fields", "launch"]

_WIDTH = 8
"""Columns of the output are given to CTAs by eight."""


@dataclass(frozen=True)
class Config:
    """How: the rows that the kernel is compiled for, and a CTA's columns of the output."""

    rows: int
    columns: int

    def spec(self, problem: Problem, *, bounded: bool = False, alone: bool = False) -> KernelSpec:
        """Return the kernel for `problem`, of which an SM has no two CTAs if they are `alone`."""
        how = problem.dtype, self.rows, self.columns, problem.epilogue
        return gemm_streamed(*how, bounded=bounded, alone=alone)

    def blocks(self, problem: Problem) -> int:
        """Return the number of CTAs."""
        return -(-problem.n // self.columns)


def config_for(problem: Problem, facts: DeviceFacts) -> Config | None:
    """Return how to compute a product of at most sixteen rows, of operands that lie along K.

    Each SM has a CTA, if a CTA can have so many columns. None if there are more rows, no columns,
    stages that the kernel has not, or another GPU.

    Examples
    --------
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> config_for(Problem("float16", 5, 3072, 768), h100)
    Config(rows=8, columns=24)
    """
    p = problem
    some = 0 < p.m <= STREAMED_ROWS[-1] and p.n and p.k
    if facts.arch != "90a" or not some or not p.epilogue.rows_alone:
        return None
    rows = next(rows for rows in STREAMED_ROWS if p.m <= rows)
    each = -(-p.n // (_WIDTH * facts.sm_count)) * _WIDTH
    return Config(rows, min(each, STREAMED_COLUMNS // p.epilogue.halves))


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
    report: int | None = None,
    constant: bool = False,
) -> None:
    """Run the kernel on the current device and CuPy's current stream; as `gemm_sm80.launch`.

    None of `stages` is in an epilogue that `config_for` takes.

    Parameters
    ----------
    report : int, optional
        Take the bounded kernel, and where it writes where it waited: see `gemm_sm90.prepare`.
    constant : bool
        Whether no kernel that may still run writes `b` and `bias`.

    Raises
    ------
    UnsupportedError
        If A or B does not lie along K in rows of 16-byte multiples.
    """
    from stof_cupy.jit.device import facts
    from stof_cupy.jit.launch import kernel

    found = fields(config, problem, a, b, c, bias, residual, scale)
    blocks, device = config.blocks(problem), c.device.id
    # Launched while another kernel ends, two would share an SM while others have none.
    alone = constant and blocks <= facts(device).sm_count
    run = kernel(config.spec(problem, bounded=report is not None, alone=alone), device)
    run((blocks,), run.pack(**found, report=report or 0, constant=constant))


def fields(
    config: Config,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    bias: Array | None,
    residual: Array | None,
    scale: float,
) -> dict[str, Any]:
    """Return the kernel's parameters, without `report` and `constant`.

    Raises
    ------
    UnsupportedError
        See `launch`.
    """
    left, right = _operand(a), _operand(b)
    if left is None or right is None:
        expected = "contiguous along K, rows at multiples of 16 bytes"
        raise UnsupportedError(mismatch("strides of a, b", (a.strides, b.strides), expected))
    maps = {
        f"map_{name}": tensormap.tensor_map(
            each.address, problem.dtype, each.dims, each.strides, (DEPTH, rows, 1, 1)
        )
        for name, each, rows in (("a", left, problem.m), ("b", right, config.columns))
    }
    residual_row = 0 if residual is None else strides(residual)[0]
    return {
        **maps,
        **{"c": pointer(c), "bias": pointer(bias), "residual": pointer(residual)},
        **{"m": problem.m, "n": problem.n, "k": problem.k},
        **{"residual_row": residual_row, "c_row": strides(c)[0]},
        "pairs_residual": residual is not None and aligned(residual, 4, residual_row),
        "scale": scale,
    }


def _operand(x: Array) -> Operand | None:
    found = operand(matrix(x))
    return None if found is None or found.transposed else found
