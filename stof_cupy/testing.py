"""Seeded inputs, error budgets and timers, for tests and benchmarks.

Tolerances are derived, not tuned: a result may err by twice what the oracle errs when it rounds
what a low-precision implementation stores (:mod:`stof_cupy.ops.reference`), plus a floor for the
rounding and summing in the type itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.dtypes import as_dtype, dtype_name, is_float
from stof_cupy.errors import ArgumentError, mismatch

__all__ = [
    "Milliseconds",
    "assert_close",
    "budget",
    "poison",
    "random_array",
    "rng",
    "strided",
    "time_ms",
]


def rng(seed: int) -> np.random.Generator:
    """Return a generator that gives the same numbers on every machine.

    Examples
    --------
    >>> rng(0).integers(100, size=3)
    array([85, 63, 51])
    """
    return np.random.default_rng(seed)


def random_array(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    dtype: str = "float32",
    scale: float = 1.0,
    xp: Any = np,
) -> Any:
    """Return normal numbers of standard deviation `scale`, rounded to `dtype`.

    Parameters
    ----------
    generator : numpy.random.Generator
        From :func:`rng`.
    shape : tuple of int
        The array's.
    dtype : {"float16", "bfloat16", "float32", "float64"}
        The array's.
    scale : float
        Standard deviation.
    xp : module
        ``numpy`` or ``cupy``: where the array is to be. The values do not depend on it.

    Examples
    --------
    >>> random_array(rng(0), (2, 3), "float16").dtype
    dtype('float16')
    """
    return xp.asarray((generator.standard_normal(shape) * scale).astype(_dtype(dtype)))


def strided(a: Any) -> dict[str, Any]:
    """Return views equal to `a`, by name, whose memory is laid out otherwise but for the last axis.

    Parameters
    ----------
    a : numpy.ndarray or cupy.ndarray
        At least two axes.

    Returns
    -------
    dict of str to array
        "rows": every second row of a larger array. "slice": columns of a wider array, as one of Q,
        K, V packed in one. "reversed": a negative stride. "transposed": axes -2 and -3 swapped in
        memory, as heads split from (batch, seq, hidden). Whatever lies between the elements is
        :func:`poison`.

    Examples
    --------
    >>> views = strided(np.zeros((2, 3, 4), np.float32))
    >>> [(name, view.strides) for name, view in views.items()][:2]
    [('rows', (96, 32, 4)), ('slice', (144, 48, 4))]
    """
    xp = _namespace(a)
    *lead, rows, columns = a.shape
    views = {
        "rows": poison((*lead, 2 * rows, columns), a.dtype, xp)[..., ::2, :],
        "slice": poison((*lead, rows, 3 * columns), a.dtype, xp)[..., columns : 2 * columns],
        "reversed": poison(a.shape, a.dtype, xp)[..., ::-1, :],
    }
    if a.ndim > 2:
        swapped = (*lead[:-1], rows, lead[-1], columns)
        views["transposed"] = poison(swapped, a.dtype, xp).swapaxes(-2, -3)
    for view in views.values():
        view[...] = a
    return views


def poison(shape: tuple[int, ...], dtype: Any, xp: Any = np) -> Any:
    """Return an array of what must never be read, nor left: NaN, or the type's largest number.

    Parameters
    ----------
    shape : tuple of int
        The array's.
    dtype : dtype or str
        A float type gives NaN, integers and bool their largest value.
    xp : module
        ``numpy`` or ``cupy``.

    Examples
    --------
    >>> poison((2,), np.float32), poison((1,), np.int8)
    (array([nan, nan], dtype=float32), array([127], dtype=int8))
    """
    dtype = _dtype(dtype)
    if is_float(dtype):
        return xp.full(shape, np.nan, dtype)
    return xp.full(shape, True if dtype.kind == "b" else np.iinfo(dtype).max, dtype)


def budget(exact: Any, lowprec: Any, dtype: Any) -> float:
    """Return the largest absolute error that a result of type `dtype` may have.

    Parameters
    ----------
    exact, lowprec : array
        The oracle's result for the inputs as given, and with ``precision=`` the type that is
        tested.
    dtype : dtype or str
        Of the result that is tested.

    Returns
    -------
    float
        ``2 * max|lowprec - exact| + floor`` over finite elements. The floor is one unit in the last
        place of the largest result, and the growth sqrt(1024) of float32's in sums of about a
        thousand terms, which the oracle's float64 sums do not show.

    Examples
    --------
    >>> budget(np.array([1.0]), np.array([1.25]), "float16") == 0.5 + 2**-10 + 32 * 2**-23
    True
    """
    exact, lowprec = np.asarray(exact, np.float64), np.asarray(lowprec, np.float64)
    finite = np.isfinite(exact) & np.isfinite(lowprec)
    exact, lowprec = exact[finite], lowprec[finite]
    largest = np.abs(exact).max(initial=0)
    ulp, single = _eps(dtype), float(np.finfo(np.float32).eps)
    summing = 32 * min(single, ulp)
    return float(2 * np.abs(lowprec - exact).max(initial=0) + largest * (ulp + summing))


def assert_close(got: Any, exact: Any, lowprec: Any) -> None:
    """Raise AssertionError unless `got` is `exact` within the budget of its type.

    Parameters
    ----------
    got : numpy.ndarray or cupy.ndarray
        The result that is tested.
    exact, lowprec : array
        As in :func:`budget`. Where `exact` is NaN or infinite `got` must be the same; an `exact`
        beyond the range of the type may be infinite.

    Raises
    ------
    AssertionError
        If an element, or the shape, differs.
    ArgumentError
        If `lowprec` is `got`, whose error would then be its own budget.

    Examples
    --------
    >>> assert_close(np.array([1.0], np.float16), [1.0001], [1.0])
    >>> assert_close(np.array([1.1], np.float16), [1.0], [1.0])
    Traceback (most recent call last):
        ...
    AssertionError: float16 (1,): max abs error 0.0996 > 0.00098 at (0,): got 1.09961, ...
    """
    if lowprec is got:
        raise ArgumentError(mismatch("lowprec", "the result itself", "the oracle's"))
    dtype = got.dtype
    got = np.asarray(got.get() if hasattr(got, "get") else got).astype(np.float64)
    exact = np.asarray(exact, np.float64)
    title = f"{dtype_name(dtype)} {got.shape}"
    if got.shape != exact.shape:
        raise AssertionError(f"{title}: expected shape {exact.shape}")
    with np.errstate(over="ignore"):
        rounded = exact.astype(_dtype(dtype)).astype(np.float64)  # to infinity beyond the range
    finite = np.isfinite(rounded)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    with np.errstate(invalid="ignore"):
        error = np.where(finite, np.abs(got - exact), np.where(same, 0, np.inf))
    error[np.isnan(error)] = np.inf
    allowed = budget(exact, lowprec, dtype)
    if error.max(initial=0) > allowed:
        at = tuple(map(int, np.unravel_index(error.argmax(), error.shape)))
        raise AssertionError(
            f"{title}: max abs error {error.max():.3g} > {allowed:.2g} at {at}: "
            f"got {got[at]:.6g}, exact {exact[at]:.6g}; "
            f"{(error > allowed).sum()} of {error.size} beyond"
        )


class Milliseconds(NamedTuple):
    """Quantiles of a run time, ms."""

    p20: float
    p50: float
    p80: float


def time_ms(
    fn: Callable[[], object], *, repeat: int = 20, warmup: int = 3, xp: Any = np
) -> Milliseconds:
    """Time a call.

    Parameters
    ----------
    fn : callable
        Without arguments.
    repeat, warmup : int
        Calls timed, and calls before them.
    xp : module
        With ``cupy`` the time between two events on the current stream, else the host's clock.

    Returns
    -------
    Milliseconds
        20 %, 50 % and 80 % quantile over the calls.

    Raises
    ------
    ArgumentError
        If `repeat` is not positive.

    Examples
    --------
    >>> time_ms(lambda: sum(range(1000)), repeat=5).p50 > 0
    True
    """
    if repeat < 1:
        raise ArgumentError(mismatch("repeat", repeat, "at least 1"))
    for _ in range(warmup):
        fn()
    if xp is np:
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            fn()
            times.append(1e3 * (time.perf_counter() - start))
    else:
        events = [(xp.cuda.Event(), xp.cuda.Event()) for _ in range(repeat)]
        for start_event, end_event in events:
            start_event.record()
            fn()
            end_event.record()
        xp.cuda.get_current_stream().synchronize()
        times = [xp.cuda.get_elapsed_time(*pair) for pair in events]
    return Milliseconds(*np.percentile(times, (20, 50, 80)).tolist())


def _dtype(dtype: Any) -> np.dtype[Any]:
    return as_dtype("bfloat16") if dtype == "bfloat16" else np.dtype(dtype)


def _eps(dtype: Any) -> float:
    """Return the distance from 1 to the next number of a float type."""
    one = np.ones(1, _dtype(dtype))
    return float(np.nextafter(one, np.full_like(one, 2))[0]) - 1


def _namespace(a: Any) -> Any:
    """Return ``numpy`` or ``cupy``, whichever made `a`."""
    return sys.modules[type(a).__module__.partition(".")[0]]
