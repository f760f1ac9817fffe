"""Matrix products with a fused epilogue: ``activation(scale * a @ b + bias) + residual``."""

from __future__ import annotations

from typing import Any

from stof_cupy.ops import gemm_few_rows, gemm_model, gemm_sm80, gemm_sm90
from stof_cupy.ops._arrays import Array, aligned, unit_last
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_args import Problem, as_rows, validate
from stof_cupy.ops.gemm_model import Choice
from stof_cupy.ops.gemm_sm90 import Plan

__all__ = ["Choice", "Problem", "gemm", "operands_of", "readable"]


def gemm(
    a: Array, b: Array, *, epilogue: Epilogue | None = None, out: Array | None = None
) -> Array:
    """Compute ``activation(scale * a @ b + bias) + residual`` in one kernel.

    Parameters
    ----------
    a : ndarray
        Shape ``(..., M, K)``; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float.
    b : ndarray
        Shape ``(K, N)``, dtype of `a`. A weight stored ``(N, K)`` is passed as ``w.T``: nothing is
        copied, and it is the layout the kernel reads fastest.
    epilogue : Epilogue, optional
        Bias, activation and residual; left out: the plain product. A gated one halves the columns.
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
    where, problem = validate(a, b, epilogue, out)
    if where == "numpy":
        from stof_cupy.ops import cpu

        return cpu.gemm(a, b, epilogue=epilogue, out=out)
    return _launch(problem, a, b, epilogue, out)


def _launch(
    problem: Problem,
    a: Array,
    b: Array,
    epilogue: Epilogue,
    out: Array | None,
    choice: Choice | None = None,
) -> Array:
    """Run a kernel on the arrays' device and CuPy's current stream, by default the model's."""
    import cupy

    from stof_cupy.jit.device import facts

    device = a.device.id
    with cupy.cuda.Device(device):
        if out is None:
            out = cupy.empty((*a.shape[:-1], problem.n), a.dtype)
        if not out.size:
            return out
        c = as_rows(out)
        in_place = c.data.ptr == out.data.ptr
        rows, weight = as_rows(a), b.T
        operands = operands_of(epilogue)
        few = None
        if choice is None:
            few = gemm_few_rows.config_for(problem, rows, weight, facts(device).sm_count)
        if choice is None and few is None:
            found = gemm_sm90.layout(problem, rows, weight)
            choice = gemm_model.choose(problem, found, facts(device))
        if few is not None:
            gemm_few_rows.launch(few, problem, rows, weight, c, **operands)
        elif isinstance(choice, Plan):
            gemm_sm90.prepare(choice, problem, rows, weight, c, **operands)()
        elif choice is not None:
            gemm_sm80.launch(choice, problem, rows, weight, c, **operands)
        if not in_place:
            out[...] = c.reshape(out.shape)
    return out


def operands_of(epilogue: Epilogue) -> dict[str, Any]:
    """Return what a kernel reads besides A and B, copied where it could not read it."""
    residual = None if epilogue.residual is None else unit_last(as_rows(epilogue.residual))
    scale = 1.0 if epilogue.scale is None else epilogue.scale
    return {"bias": readable(epilogue.bias), "residual": residual, "scale": scale}


def readable(x: Array | None) -> Array | None:
    """Return an array of one axis, contiguous and 4-byte aligned."""
    if x is None:
        return None
    import cupy

    x = cupy.ascontiguousarray(x)
    return x if aligned(x, 4) else x.copy()
