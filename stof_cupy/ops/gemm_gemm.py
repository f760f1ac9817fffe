"""Two matrix products, one after the other: the small MLP of a layer."""

from __future__ import annotations

import numpy as np

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import DTypeError, ShapeError, mismatch
from stof_cupy.jit.gemm_pair import PairTile
from stof_cupy.ops import gemm_pair
from stof_cupy.ops._arrays import Array, backend, check_dtype, check_no_overlap, check_shape
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm, operands_of
from stof_cupy.ops.gemm_args import as_rows, validate
from stof_cupy.ops.gemm_pair import Pair
from stof_cupy.ops.gemm_stages import arrays_of

__all__ = ["checked", "gemm_gemm", "launch"]


def gemm_gemm(
    a: Array,
    b: Array,
    d: Array,
    *,
    between: Epilogue | None = None,
    epilogue: Epilogue | None = None,
    out: Array | None = None,
) -> Array:
    """Compute ``gemm(gemm(a, b, epilogue=between), d, epilogue=epilogue)``.

    On CUDA in one kernel, where what lies between the products fits the shared memory of the CTAs
    that compute its rows, up to 1024 columns, and that is expected to be faster: of many rows and
    small weights. Else in two. Either rounds what lies between.

    Parameters
    ----------
    a : ndarray
        Shape ``(..., M, K)``, as in :func:`stof_cupy.gemm`.
    b, d : ndarray
        Shapes ``(K, H)``, or ``(K, 2 H)`` if `between` is gated, and ``(H, N)``; dtype of `a`.
        Weights stored ``(H, K)`` and ``(N, H)`` are passed as ``w.T``, and the one kernel takes
        only these, in 16-byte aligned rows.
    between, epilogue : Epilogue, optional
        Of the first product, and of the second.
    out : ndarray, optional
        Where to write the result; it may be the residual of `epilogue`.

    Returns
    -------
    ndarray
        Shape ``(..., M, N)``, or heads; dtype of `a`.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError, UnsupportedError
        As `gemm`; nothing has been computed then.

    Examples
    --------
    >>> import numpy as np
    >>> x, w = np.ones((1, 2), np.float32), np.array([[1, 0], [2, -5]], np.float32)
    >>> gemm_gemm(x, w.T, w.T, between=Epilogue(activation="relu"))
    array([[1., 2.]], dtype=float32)
    """
    between = Epilogue() if between is None else between
    epilogue = Epilogue() if epilogue is None else epilogue
    where, pair = checked(a, b, d, between, epilogue, out)
    tile = None
    alone = not (between.turned_after or epilogue.turned_after)  # which take one more kernel
    if where == "cuda" and alone and gemm_pair.lies(pair, as_rows(a), b.T, d.T):
        from stof_cupy.jit.device import facts

        tile = gemm_pair.choose(pair, facts(a.device.id))
    if tile is None:
        inside = gemm(a, b, epilogue=between)
        return gemm(inside, d, epilogue=epilogue, out=out)
    return launch(tile, pair, a, b, d, between, epilogue, out)


def checked(
    a: Array, b: Array, d: Array, between: Epilogue, epilogue: Epilogue, out: Array | None
) -> tuple[str, Pair]:
    """Check every argument of `gemm_gemm`; return ``"numpy"`` or ``"cuda"``, and the products.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError, UnsupportedError
        See `gemm_gemm`.
    """
    if not isinstance(between, Epilogue):
        raise DTypeError(mismatch("between", type(between).__name__, "an Epilogue"))
    where, first = validate(a, b, between, None)
    if between.heads is not None:
        raise ShapeError(mismatch("between", f"{between.heads} heads", "rows"))
    backend(a=a, d=d)
    check_dtype("d", d, a, "a")
    check_shape("d", d, (first.n, "N"))
    operands = {"bias of between": between.bias, "residual of between": between.residual}
    operands |= {f"{name} of between": x for name, x in arrays_of(between).items()}
    check_no_overlap(out, a=a, b=b, d=d, **operands)
    inside = _like(a, (*a.shape[:-1], first.n))
    _, second = validate(inside, d, epilogue, out)
    check_no_overlap(epilogue.statistics, None, "statistics", a=a, b=b, d=d, **operands)
    return where, Pair(first, second)


def _like(a: Array, shape: tuple[int, ...]) -> Array:
    """Return what stands for the first product's result until that is computed: one element."""
    if not is_cupy(a):
        return np.broadcast_to(np.empty((), a.dtype), shape)
    import cupy

    with cupy.cuda.Device(a.device.id):
        return cupy.broadcast_to(cupy.empty((), a.dtype), shape)


def launch(
    tile: PairTile,
    pair: Pair,
    a: Array,
    b: Array,
    d: Array,
    between: Epilogue,
    epilogue: Epilogue,
    out: Array | None,
) -> Array:
    """Run the kernel on the arrays' device and CuPy's current stream."""
    import cupy

    with cupy.cuda.Device(a.device.id):
        if out is None:
            out = cupy.empty((*a.shape[:-1], pair.second.n), a.dtype)
        c = as_rows(out)
        operands = operands_of(between), operands_of(epilogue)
        gemm_pair.launch(tile, pair, as_rows(a), b.T, d.T, c, *operands)
        if c.data.ptr != out.data.ptr:
            out[...] = c.reshape(out.shape)
    return out
