"""The GEMM on mma.sync, for every GPU and every stride: its launch."""

from __future__ import annotations

from dataclasses import dataclass

from stof_cupy.jit.catalogue import GemmTile, gemm_sm80
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops._arrays import Array, aligned, pointer
from stof_cupy.ops.gemm_args import Problem, strides

__all__ = ["Config", "launch"]


@dataclass(frozen=True)
class Config:
    """How: the tile that a CTA computes, of rows of A times columns of B."""

    tile: GemmTile

    def spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel for `problem`."""
        return gemm_sm80(problem.dtype, self.tile, problem.epilogue)

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
) -> None:
    """Run the kernel on the current device and CuPy's current stream.

    Parameters
    ----------
    a, b, c : cupy.ndarray
        ``(M, K)``, ``(N, K)`` and the result's rows, all matrices; `c` has a unit column stride.
    bias, residual : cupy.ndarray, optional
        Contiguous and 4-byte aligned; with a unit column stride.
    """
    from stof_cupy.jit.launch import kernel

    run = kernel(config.spec(problem), c.device.id)
    (a_row, a_col), (b_row, b_col) = strides(a), strides(b)
    c_row = strides(c)[0]
    residual_row = 0 if residual is None else strides(residual)[0]
    params = run.pack(
        a=pointer(a),
        b=pointer(b),
        c=pointer(c),
        bias=pointer(bias),
        residual=pointer(residual),
        residual_row=residual_row,
        a_row=a_row,
        a_col=a_col,
        b_row=b_row,
        b_col=b_col,
        c_row=c_row,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        wide_a=a_col == 1 and aligned(a, 16, a_row),
        wide_b=b_col == 1 and aligned(b, 16, b_row),
        pairs_c=aligned(c, 4, c_row),
        pairs_residual=residual is not None and aligned(residual, 4, residual_row),
        scale=scale,
    )
    run((config.blocks(problem),), params)
