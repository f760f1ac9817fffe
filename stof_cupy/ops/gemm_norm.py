"""A matrix product whose rows are normalised: ``layer_norm(activation(a @ b) + residual)``.

Or ``rms_norm`` of it.
"""

from __future__ import annotations

from dataclasses import replace

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.ops import gemm_choice, gemm_sm90
from stof_cupy.ops._arrays import (
    Array,
    backend,
    check_dtype,
    check_eps,
    check_no_overlap,
    check_shape,
)
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm, operands_of, readable
from stof_cupy.ops.gemm_args import Problem, as_rows, validate
from stof_cupy.ops.gemm_sm90 import Norm, Plan
from stof_cupy.ops.norm import layer_norm
from stof_cupy.ops.rms_norm import rms_norm

__all__ = ["apart", "gemm_layer_norm", "gemm_rms_norm", "launch", "may_be_late"]


def gemm_layer_norm(
    a: Array,
    b: Array,
    weight: Array,
    bias: Array,
    *,
    eps: float,
    epilogue: Epilogue | None = None,
    out: Array | None = None,
) -> Array:
    """Compute `gemm` and normalise the rows of its result.

    On a Hopper in one kernel, where a row of up to 2048 fits the CTAs of a cluster and that is
    expected to be faster: what is normalised is then not rounded before. Else in two, of which on
    CUDA the second adds the residual, unless `out` takes its place: what is rounded between, and in
    float16 has to be below 65520, is then the product without it.

    Parameters
    ----------
    a, b, epilogue, out
        As in :func:`stof_cupy.gemm`.
    weight, bias : ndarray
        Shape ``(N,)``, N the columns of the result, and its dtype.
    eps : float
        Added to the variance, which is that of all N.

    Returns
    -------
    ndarray
        Shape ``(..., M, N)``, dtype of `a`.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError, UnsupportedError
        As `gemm`, and if `weight`, `bias` or `eps` does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> a, w = np.ones((1, 2), np.float32), np.array([[1, 0], [2, 1]], np.float32)
    >>> gemm_layer_norm(a, w.T, np.ones(2, np.float32), np.zeros(2, np.float32), eps=1e-12)
    array([[-1.,  1.]], dtype=float32)
    """
    return _normalised(a, b, {"weight": weight, "bias": bias}, eps, epilogue, out)


def gemm_rms_norm(
    a: Array,
    b: Array,
    weight: Array,
    *,
    eps: float,
    epilogue: Epilogue | None = None,
    out: Array | None = None,
) -> Array:
    """Compute `gemm` and divide the rows of its result by the root of their mean square.

    In one kernel or two as `gemm_layer_norm`, whose parameters these are.

    Parameters
    ----------
    a, b, epilogue, out
        As in :func:`stof_cupy.gemm`.
    weight : ndarray
        Shape ``(N,)``, N the columns of the result, and its dtype.
    eps : float
        Added to the mean square, which is that of all N.

    Returns
    -------
    ndarray
        Shape ``(..., M, N)``, dtype of `a`.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError, UnsupportedError
        As `gemm`, and if `weight` or `eps` does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> a, w = np.ones((1, 2), np.float32), np.array([[1, 0], [2, -3]], np.float32)
    >>> gemm_rms_norm(a, w.T, np.ones(2, np.float32), eps=1e-12)
    array([[ 1., -1.]], dtype=float32)
    """
    return _normalised(a, b, {"weight": weight}, eps, epilogue, out)


def _normalised(
    a: Array,
    b: Array,
    weights: dict[str, Array],
    eps: float,
    epilogue: Epilogue | None,
    out: Array | None,
) -> Array:
    """Check what both norms take, and compute one: LayerNorm if there is a bias."""
    epilogue = Epilogue() if epilogue is None else epilogue
    where, problem = validate(a, b, epilogue, out)
    if not problem.epilogue.rows_alone or epilogue.turned_after:
        got = problem.epilogue.name.lstrip("_") or "rotary"
        raise ArgumentError(mismatch("epilogue", got, "one that changes elements alone"))
    if problem.n == 0:
        raise ShapeError(mismatch("b", tuple(b.shape), "at least one column"))
    backend(a=a, **weights)
    for name, x in weights.items():
        check_dtype(name, x, a, "a")
        check_shape(name, x, (problem.n,))
    check_no_overlap(out, **weights)
    check_eps(eps)
    plan: Plan | str = gemm_choice.APART
    if where == "cuda" and problem.m:
        plan = _choose(problem, a, b, may_be_late(epilogue, out))
    norm = Norm(weights["weight"], weights.get("bias"), eps)
    if isinstance(plan, Plan):
        return launch(plan, problem, a, b, epilogue, norm, out)
    return apart(a, b, epilogue, norm, out, late=plan == gemm_choice.LATE)


def apart(
    a: Array, b: Array, epilogue: Epilogue, norm: Norm, out: Array | None, *, late: bool
) -> Array:
    """Compute both in kernels of their own; if `late` the second adds the residual."""
    residual = epilogue.residual if late else None
    if late:
        epilogue = replace(epilogue, residual=None)
    out = gemm(a, b, epilogue=epilogue, out=out)
    how = {"eps": norm.eps, "residual": residual, "out": out}
    if norm.bias is None:
        return rms_norm(out, norm.weight, **how)
    return layer_norm(out, norm.weight, norm.bias, **how)


def may_be_late(epilogue: Epilogue, out: Array | None) -> bool:
    """Whether the residual is still there when the product has been written to `out`."""
    try:
        check_no_overlap(out, residual=epilogue.residual)
    except ArgumentError:
        return False
    return epilogue.residual is not None


def _choose(problem: Problem, a: Array, b: Array, late: bool) -> Plan | str:
    from stof_cupy.jit.device import facts

    found = gemm_sm90.layout(problem, as_rows(a), b.T)
    return gemm_choice.norm(problem, found, facts(a.device.id), late)


def launch(
    plan: Plan,
    problem: Problem,
    a: Array,
    b: Array,
    epilogue: Epilogue,
    norm: Norm,
    out: Array | None,
) -> Array:
    """Run the kernel on the arrays' device and CuPy's current stream."""
    import cupy

    with cupy.cuda.Device(a.device.id):
        if out is None:
            out = cupy.empty((*a.shape[:-1], problem.n), a.dtype)
        c = as_rows(out)
        norm = Norm(readable(norm.weight), readable(norm.bias), norm.eps)
        arrays = (as_rows(a), b.T, c)
        gemm_sm90.prepare(plan, problem, *arrays, **operands_of(epilogue), norm=norm)()
        if c.data.ptr != out.data.ptr:
            out[...] = c.reshape(out.shape)
    return out
