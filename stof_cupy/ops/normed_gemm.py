"""RMSNorm and the product of what it gives: one kernel where there are few rows."""

from __future__ import annotations

from typing import Any

from stof_cupy.ops import gemm_few_rows
from stof_cupy.ops._arrays import Array, aligned, check_no_overlap, pointer
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm, operands_of
from stof_cupy.ops.gemm_args import Problem, as_rows, validate
from stof_cupy.ops.norm_rows import validate as validate_norm
from stof_cupy.ops.rms_norm import rms_norm

__all__ = ["normed_gemm"]


def normed_gemm(
    x: Array,
    norm: Array,
    b: Array,
    *,
    eps: float,
    epilogue: Epilogue | None = None,
    out: Array | None = None,
    constant: bool = False,
) -> Array:
    """Compute ``gemm(rms_norm(x, norm, eps=eps), b, epilogue=epilogue)``.

    Parameters
    ----------
    x, norm, eps
        As of :func:`stof_cupy.ops.rms_norm.rms_norm`.
    b, epilogue, out
        As of :func:`stof_cupy.gemm`. In the one kernel, which a few rows of float16 or bfloat16
        have on CUDA, what is normalised is not rounded before it is multiplied.
    constant : bool
        As of :func:`stof_cupy.gemm`; so of `norm`.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError, UnsupportedError
        As those two.

    Examples
    --------
    >>> import numpy as np
    >>> x, w = np.float32([[3, -3]]), np.eye(2, dtype=np.float32)
    >>> normed_gemm(x, np.ones(2, np.float32), w, eps=1e-6).round(5)
    array([[ 1., -1.]], dtype=float32)
    """
    epilogue = Epilogue() if epilogue is None else epilogue
    validate_norm(x, eps=eps, residual=None, sum_out=None, out=None, weight=norm)
    where, problem = validate(x, b, epilogue, out)
    check_no_overlap(out, norm=norm)
    alone = not epilogue.turned_after  # which takes one more kernel
    if where == "cuda" and alone and norm.flags.c_contiguous and aligned(norm, 16):
        made = _launch(problem, x, norm, b, eps, epilogue, out, constant)
        if made is not None:
            return made
    return gemm(rms_norm(x, norm, eps=eps), b, epilogue=epilogue, out=out, constant=constant)


def _launch(
    problem: Problem,
    x: Array,
    norm: Array,
    b: Array,
    eps: float,
    epilogue: Epilogue,
    out: Array | None,
    constant: bool = False,
) -> Array | None:
    """Run the kernel, if there is one for these rows."""
    import cupy

    from stof_cupy.jit.device import facts

    device = x.device.id
    with cupy.cuda.Device(device):
        rows, weight = as_rows(x), b.T
        few = gemm_few_rows.config_for(problem, rows, weight, facts(device).sm_count)
        if few is None:
            return None
        if out is None:
            out = cupy.empty((*x.shape[:-1], problem.n), x.dtype)
        c = as_rows(out)
        how: dict[str, Any] = {"norm": norm, "eps": eps, "constant": constant}
        gemm_few_rows.launch(few, problem, rows, weight, c, **operands_of(epilogue), **how)
        if pointer(c) != pointer(out):
            out[...] = c.reshape(out.shape)
    return out
