"""The GEMM on mma.sync, for every GPU and every stride: its launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stof_cupy.errors import mismatch
from stof_cupy.jit.catalogue import GemmTile, gemm_sm80
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops._arrays import Array, aligned, pointer
from stof_cupy.ops.gemm_args import Problem, strides
from stof_cupy.ops.gemm_stages import HeadsOf, Stages, stage_fields

__all__ = ["Config", "fields", "launch", "layout"]


@dataclass(frozen=True)
class Config:
    """How: the tile that a CTA computes, of rows of A times columns of B."""

    tile: GemmTile

    def spec(self, problem: Problem, layout: tuple[str, str] = ("k", "k")) -> KernelSpec:
        """Return the kernel for `problem`, and operands that lie as told."""
        return gemm_sm80(problem.dtype, self.tile, problem.epilogue, layout)

    def fault(self, problem: Problem) -> str | None:
        """Return why the kernel does not compute a problem, or None.

        Examples
        --------
        >>> from stof_cupy.jit.catalogue import GEMM_TILES
        >>> from stof_cupy.jit.epilogues import EpilogueKind
        >>> Config(GEMM_TILES[2]).fault(Problem("float16", 8, 256, 64, EpilogueKind(rotary=128)))
        'rotary: got heads of 128, expected a divisor of 64'
        """
        apart = 2 * problem.epilogue.apart
        if apart and self.tile.n % apart:
            return mismatch("rotary", f"heads of {apart}", f"a divisor of {self.tile.n}")
        return None

    def blocks(self, problem: Problem) -> int:
        """Return the number of CTAs."""
        return -(-problem.m // self.tile.m) * -(-problem.columns // self.tile.n)


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
    stages: Stages | None = None,
) -> None:
    """Run the kernel on the current device and CuPy's current stream.

    Parameters
    ----------
    a, b, c : cupy.ndarray
        ``(M, K)``, ``(N, K)`` and the result's rows, all matrices, or heads; `c` has a unit column
        stride.
    bias, residual : cupy.ndarray, optional
        Contiguous and 4-byte aligned; with a unit column stride.
    stages : Stages, optional
    """
    from stof_cupy.jit.launch import kernel

    run = kernel(config.spec(problem, (layout(a), layout(b, problem.epilogue.halves))), c.device.id)
    params = run.pack(**fields(problem, a, b, c, bias, residual, scale, stages))
    run((config.blocks(problem),), params)


def fields(
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    bias: Array | None,
    residual: Array | None,
    scale: float,
    stages: Stages | None = None,
) -> dict[str, Any]:
    """Return the kernel's parameters."""
    (a_row, a_col), (b_row, b_col) = strides(a), strides(b)
    heads = HeadsOf.of(c)
    if heads is None:
        c_row = strides(c)[0]
        wide = aligned(c, 16, c_row)
    else:
        c_row = heads.step
        wide = aligned(c, 16, c_row, heads.head_step, heads.batch_step, heads.head_dim)
    residual_row = 0 if residual is None else strides(residual)[0]
    return {
        "a": pointer(a),
        "b": pointer(b),
        "c": pointer(c),
        "bias": pointer(bias),
        "residual": pointer(residual),
        "residual_row": residual_row,
        "c_row": c_row,
        **{"a_row": a_row, "a_col": a_col, "b_row": b_row, "b_col": b_col},
        **{"m": problem.m, "n": problem.n, "k": problem.k},
        **stage_fields(stages, c),
        "wide_c": wide,
        "pairs_residual": residual is not None and aligned(residual, 4, residual_row),
        "scale": scale,
    }


def layout(x: Array, halves: int = 1) -> str:
    """Return along which axis a matrix is contiguous, in 16-byte aligned pieces; see `gemm_sm80`.

    Parameters
    ----------
    x : ndarray
    halves : int
        2: its rows are two halves, to be folded.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros((40, 64), np.float16)
    >>> layout(x), layout(x.T), layout(x[::-1, ::-1])
    ('k', 'rows', 'any')
    """
    row, col = strides(x)
    if col == 1 and aligned(x, 16, row):
        return "k"
    whole = halves == 1 or x.shape[0] // halves % 8 == 0
    return "rows" if row == 1 and whole and aligned(x, 16, col) else "any"
