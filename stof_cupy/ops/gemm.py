"""Matrix products with a fused epilogue: ``activation(a @ b + bias) + residual``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stof_cupy.errors import DTypeError, ShapeError, UnsupportedError, mismatch
from stof_cupy.jit import catalogue
from stof_cupy.jit.catalogue import GemmTile
from stof_cupy.jit.spec import KernelSpec
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
    unit_last,
)
from stof_cupy.ops.epilogue import Epilogue

__all__ = ["Config", "Problem", "gemm"]


@dataclass(frozen=True)
class Problem:
    """What is to be computed; sizes in elements."""

    dtype: str
    m: int
    n: int
    k: int
    bias: bool
    activation: str | None
    residual: bool


@dataclass(frozen=True)
class Config:
    """How: the tile of C that a CTA computes."""

    tile: GemmTile

    def spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel for `problem`."""
        return catalogue.gemm_sm80(
            problem.dtype,
            self.tile,
            bias=problem.bias,
            activation=problem.activation,
            residual=problem.residual,
        )

    def blocks(self, problem: Problem) -> int:
        """Return the number of CTAs."""
        return -(-problem.m // self.tile.m) * -(-problem.n // self.tile.n)


def gemm(
    a: Array, b: Array, *, epilogue: Epilogue | None = None, out: Array | None = None
) -> Array:
    """Compute ``activation(a @ b + bias) + residual`` in one kernel.

    Parameters
    ----------
    a : ndarray
        Shape ``(..., M, K)``; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float.
    b : ndarray
        Shape ``(K, N)``, dtype of `a`. A weight stored ``(N, K)`` is passed as ``w.T``: nothing is
        copied, and it is the layout the kernel reads fastest.
    epilogue : Epilogue, optional
        Bias, activation and residual; left out: the plain product.
    out : ndarray, optional
        Where to write the result: shape ``(..., M, N)``, dtype of `a`, contiguous last axis. It may
        be the residual itself, but must not overlap any other input.

    Returns
    -------
    ndarray
        Shape ``(..., M, N)``, dtype of `a`, accumulated in float32 (NumPy: float32 or wider).

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> a, w = np.eye(2, 3, dtype=np.float32), np.arange(12, dtype=np.float32).reshape(4, 3)
    >>> gemm(a, w.T, epilogue=Epilogue(bias=np.ones(4, np.float32)))
    array([[ 1.,  4.,  7., 10.],
           [ 2.,  5.,  8., 11.]], dtype=float32)
    """
    epilogue = Epilogue() if epilogue is None else epilogue
    where, problem = _validate(a, b, epilogue, out)
    if where == "numpy":
        from stof_cupy.ops import cpu

        return cpu.gemm(a, b, epilogue=epilogue, out=out)
    return _launch(problem, a, b, epilogue, out)


def _validate(a: Array, b: Array, epilogue: Epilogue, out: Array | None) -> tuple[str, Problem]:
    """Check every argument and describe the problem."""
    if not isinstance(epilogue, Epilogue):
        raise DTypeError(mismatch("epilogue", type(epilogue).__name__, "an Epilogue"))
    bias, residual = epilogue.bias, epilogue.residual
    where = backend(a=a, b=b, bias=bias, residual=residual, out=out)
    check_dtype("a", a)
    check_dtype("b", b, a, "a")
    if a.ndim < 2:
        raise ShapeError(mismatch("a", tuple(a.shape), "(..., M, K)"))
    k = a.shape[-1]
    check_shape("b", b, (k, "N"))
    n = b.shape[1]
    shape = (*a.shape[:-1], n)
    if bias is not None:
        check_dtype("bias", bias, a, "a")
        check_shape("bias", bias, (n,))
    if residual is not None:
        check_dtype("residual", residual, a, "a")
        check_shape("residual", residual, shape)
    check_out(out, shape, a)
    check_no_overlap(out, residual, a=a, b=b, bias=bias, residual=residual)
    m = math.prod(a.shape[:-1])
    if where == "cuda" and max(m, n, k) > 2**31 - 128:
        raise UnsupportedError(mismatch("(M, N, K)", (m, n, k), "each at most 2^31 - 128"))
    dtype = device_dtype("a", a) if where == "cuda" else a.dtype.name
    return where, Problem(
        dtype, m, n, k, bias is not None, epilogue.activation, residual is not None
    )


def _choose(problem: Problem, sm_count: int) -> Config:
    """Return the large tile if it fills `sm_count` multiprocessors, else the small one."""
    large, small = map(Config, catalogue.GEMM_TILES)
    return large if large.blocks(problem) >= sm_count else small


def _launch(problem: Problem, a: Array, b: Array, epilogue: Epilogue, out: Array | None) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.device import facts
    from stof_cupy.jit.launch import kernel

    device = a.device.id
    with cupy.cuda.Device(device):
        config = _choose(problem, facts(device).sm_count)
        run = kernel(config.spec(problem), device)
        if out is None:
            out = cupy.empty((*a.shape[:-1], problem.n), a.dtype)
        if not out.size:
            return out
        c = _rows(out)
        in_place = c.data.ptr == out.data.ptr
        rows = _rows(a)
        weight = b.T
        bias = None if epilogue.bias is None else cupy.ascontiguousarray(epilogue.bias)
        residual = None if epilogue.residual is None else unit_last(_rows(epilogue.residual))
        (a_row, a_col), (b_row, b_col) = _strides(rows), _strides(weight)
        params = run.pack(
            a=rows.data.ptr,
            b=weight.data.ptr,
            c=c.data.ptr,
            bias=pointer(bias),
            residual=pointer(residual),
            residual_row=0 if residual is None else _strides(residual)[0],
            a_row=a_row,
            a_col=a_col,
            b_row=b_row,
            b_col=b_col,
            c_row=_strides(c)[0],
            m=problem.m,
            n=problem.n,
            k=problem.k,
            wide_a=a_col == 1 and aligned(rows, 16, a_row),
            wide_b=b_col == 1 and aligned(weight, 16, b_row),
            pairs_c=aligned(c, 4, _strides(c)[0]),
        )
        run((config.blocks(problem),), params)
        if not in_place:
            out[...] = c.reshape(out.shape)
    return out


def _rows(x: Array) -> Array:
    """Return `x` as a matrix; a copy only where its leading axes do not collapse."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _strides(x: Array) -> tuple[int, int]:
    """Return the strides of a matrix in elements; an axis of length one counts as contiguous."""
    row, col = (s // x.itemsize for s in x.strides)
    return row, 1 if x.shape[1] == 1 else col
