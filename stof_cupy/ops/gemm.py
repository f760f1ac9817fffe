"""Matrix products with a fused epilogue: bias, activation, residual and more (`Epilogue`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stof_cupy.ops import (
    gemm_choice,
    gemm_few_rows,
    gemm_sm80,
    gemm_sm90,
    gemm_streamed,
    gemm_vendor,
)
from stof_cupy.ops._arrays import Array, aligned, pointer, unit_last
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_args import Problem, as_rows, validate
from stof_cupy.ops.gemm_choice import Choice
from stof_cupy.ops.gemm_sm90 import Plan
from stof_cupy.ops.gemm_stages import result_shape, stages_of, turn_after
from stof_cupy.ops.gemm_vendor import Vendor

__all__ = ["Choice", "Problem", "chosen", "gemm", "operands_of", "prepared", "readable"]


def gemm(
    a: Array,
    b: Array,
    *,
    epilogue: Epilogue | None = None,
    out: Array | None = None,
    constant: bool = False,
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
        Bias, activation, residual and more; left out: the plain product. A gated one halves the
        columns.
    out : ndarray, optional
        Where to write the result: its shape, dtype of `a`, contiguous last axis. It may be the
        residual itself, but must not overlap any other input.
    constant : bool
        Whether no kernel that may still run writes `b` and the bias: they are weights, say. Then
        those that are before this one in the stream need not have ended when they are read.

    Returns
    -------
    ndarray
        Shape ``(..., M, N)``, or of heads ``(batch, heads, M, N / heads)``; dtype of `a`,
        accumulated in float32 (NumPy: float32 or wider).

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Notes
    -----
    While a stream is captured, what a call needs beside its arguments comes from CuPy's current
    allocator, which has to keep it for the graph: ``cupy.cuda.using_allocator`` with a
    `cupy.cuda.MemoryPool` of the graph's own.

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
        from stof_cupy.ops import cpu, cpu_gemm

        if epilogue.kind.rows_alone and not epilogue.turned_after:
            return cpu.gemm(a, b, epilogue=epilogue, out=out)
        return cpu_gemm.gemm(a, b, epilogue, out)
    return _launch(problem, a, b, epilogue, out, constant=constant)


def chosen(
    a: Array, b: Array, *, epilogue: Epilogue | None = None, out: Array | None = None
) -> str:
    """Return what `gemm` would run for these arguments, by name.

    "cublaslt" and which of its algorithms, "sm90" or "sm80" and which of our tiles, or "numpy".
    Which cuBLASLt that is says `gemm_vendor.version`.

    Examples
    --------
    >>> import numpy as np
    >>> chosen(np.ones((2, 3)), np.ones((3, 4)))
    'numpy'
    """
    epilogue = Epilogue() if epilogue is None else epilogue
    where, problem = validate(a, b, epilogue, out)
    if where == "numpy":
        return where
    import cupy

    with cupy.cuda.Device(a.device.id):
        if out is None:
            out = cupy.empty(result_shape(a, problem.n, epilogue), a.dtype)
        c = out if epilogue.heads else as_rows(out)
        rows, operands = as_rows(a), operands_of(epilogue)
        *vendors, always = _ways(problem, rows, b.T)
        for way in vendors:
            if prepared(way, problem, rows, b.T, c, operands) is not None:
                return gemm_choice.name_of(way)
    return gemm_choice.name_of(always)


def _ways(problem: Problem, a: Array, b: Array) -> tuple[Choice, ...]:
    from stof_cupy.jit.device import facts

    about, found = facts(a.device.id), gemm_sm90.layout(problem, a, b)
    if found is None:  # of two halves, say, that are not multiples of eight
        few = gemm_few_rows.config_for(problem, a, b, about.sm_count)
        if few is not None:
            return (few,)
    return gemm_choice.choices(problem, found, about)


def _launch(
    problem: Problem,
    a: Array,
    b: Array,
    epilogue: Epilogue,
    out: Array | None,
    choice: Choice | None = None,
    *,
    constant: bool = False,
) -> Array:
    """Run a kernel on the arrays' device and CuPy's current stream, by default what is chosen."""
    import cupy

    with cupy.cuda.Device(a.device.id):
        if out is None:
            out = cupy.empty(result_shape(a, problem.n, epilogue), a.dtype)
        if not out.size:
            return out
        c = out if epilogue.heads else as_rows(out)
        in_place = pointer(c) == pointer(out)
        rows, weight, operands = as_rows(a), b.T, operands_of(epilogue)
        # A copy of the bias is written by a kernel that may still run.
        constant = constant and pointer(operands["bias"]) == pointer(epilogue.bias)
        for way in _ways(problem, rows, weight) if choice is None else (choice,):
            run = prepared(way, problem, rows, weight, c, operands, constant=constant)
            if run is not None:
                run()
                break
        if epilogue.rotary is not None and epilogue.turned_after:
            turn_after(epilogue.rotary, c)
        if not in_place:
            out[...] = c.reshape(out.shape)
    return out


def prepared(
    choice: Choice,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    operands: dict[str, Any],
    *,
    constant: bool = False,
) -> Callable[[], None] | None:
    """Return a launch on the current device and stream; None if cuBLASLt cannot run now.

    Parameters
    ----------
    a, b, c : cupy.ndarray
        ``(M, K)``, ``(N, K)`` and the result's rows, all matrices.
    operands : dict
        From `operands_of`.
    constant : bool
        See `gemm`.
    """
    if isinstance(choice, gemm_few_rows.Config):
        few = partial(gemm_few_rows.launch, choice, problem, a, b, c, **operands)
        return partial(few, constant=constant)
    if isinstance(choice, gemm_streamed.Config):
        few = partial(gemm_streamed.launch, choice, problem, a, b, c, **operands)
        return partial(few, constant=constant)
    if isinstance(choice, Vendor):
        return gemm_vendor.prepare(choice, problem, a, b, c, **operands)
    if isinstance(choice, Plan):
        return gemm_sm90.prepare(choice, problem, a, b, c, **operands)
    return partial(gemm_sm80.launch, choice, problem, a, b, c, **operands)


def operands_of(epilogue: Epilogue) -> dict[str, Any]:
    """Return what a kernel reads besides A and B, copied where it could not read it."""
    residual = None if epilogue.residual is None else unit_last(as_rows(epilogue.residual))
    scale = 1.0 if epilogue.scale is None else epilogue.scale
    stages = stages_of(epilogue)
    return {
        "bias": readable(epilogue.bias),
        "residual": residual,
        "scale": scale,
        "stages": stages,
    }


def readable(x: Array | None) -> Array | None:
    """Return an array of one axis, contiguous and 4-byte aligned."""
    if x is None:
        return None
    import cupy

    x = cupy.ascontiguousarray(x)
    return x if aligned(x, 4) else x.copy()
