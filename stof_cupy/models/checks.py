"""Numbers that a caller gives, checked: on the host at once, on the GPU while it works on the run.

To look at an array on the GPU is to wait for all that was launched before it. So one number is made
of it there, copied while the host goes on, and looked at once the run has been launched. While the
caller captures a CUDA graph there is no looking: what the graph will read has not been written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch
from stof_cupy.interop import import_array
from stof_cupy.models.target import Target
from stof_cupy.runtime.ready import is_capturing

__all__ = ["Checks", "checked", "integers"]

Checks: TypeAlias = "list[Callable[[], None]]"
"""Checks of numbers on the GPU that have been launched; each call waits for one, and may raise."""


@contextmanager
def checked() -> Iterator[Checks]:
    """Give a list for checks of what is launched inside; they are waited for at the end.

    So the GPU has the run to work on while the host waits for what came before it. What is
    launched inside has to bear numbers out of their range: embeddings give NaN for those.

    Raises
    ------
    ArgumentError
        At the end, if a number is out of its range; also where something else was raised inside.
    """
    later: Checks = []
    try:
        yield later
    finally:
        with ExitStack() as waited:  # each, and what the first one raises is what is raised
            for check in later:
                waited.callback(check)


def integers(
    x: Any,
    name: str,
    shape: tuple[int | str, ...],
    most: int,
    target: Target,
    later: Checks | None = None,
) -> Any:
    """Return `x` as a contiguous int32 array on `target`, with nothing in it outside [0, most].

    Parameters
    ----------
    x : array of int
    name : str
        What errors call it.
    shape : tuple of int or str
        A name stands for any size but 0.
    most : int
    target : Target
    later : list of callable, optional
        Where to put the check of numbers on the GPU, see `checked`. Default: it is waited for here.

    Returns
    -------
    int32 array
        While a stream is captured no check is made: it has -1 for what is out of range.

    Raises
    ------
    DTypeError, ShapeError
        If it is no array of integers, or of another shape.
    ArgumentError
        If a number is out of its range: of an array on the host now, of one on the GPU now or when
        what was put into `later` is called. If it is on the host while a stream is captured.
    """
    array, _ = import_array(x, name)
    if array.dtype.kind not in "iu" and array.size:  # of lists of nothing NumPy makes floats
        raise DTypeError(mismatch(name, f"an array of {array.dtype}", "an array of integers"))
    fits = array.ndim == len(shape) and all(
        got > 0 if isinstance(want, str) else got == want
        for got, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        expected = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
        hint = "no size may be 0" if 0 in array.shape else ""
        if array.size and array.ndim + 1 == len(shape):
            hint = f"one alone is [{name}]"
        raise ShapeError(mismatch(name, array.shape, expected, hint))
    captured = is_capturing(target.device)
    # A NumPy array is checked where it is, which costs no wait for the GPU.
    if not isinstance(array, np.ndarray):
        array = target.put(array)
    elif captured:
        expected = "one on the GPU while a CUDA graph is captured, to be written before each launch"
        raise ArgumentError(mismatch(name, "an array on the host", expected))
    if array.itemsize < 4:
        array = array.astype(np.int32)
    # Without its sign a negative number is above all others: one comparison finds both.
    unsigned = array.view(f"u{array.itemsize}")
    if captured:
        return target.xp.where(unsigned > most, -1, array).astype(np.int32)
    largest = _reading(unsigned.max())

    def check() -> None:
        if largest() > most:
            given = array if isinstance(array, np.ndarray) else array.get()
            low, high = int(given.min()), int(given.max())
            bad = low if low < 0 else high
            at = tuple(int(axis[0]) for axis in (given == bad).nonzero())
            raise ArgumentError(mismatch(f"{name}{list(at)}", bad, f"an integer from 0 to {most}"))

    if later is None or isinstance(array, np.ndarray):
        check()
    else:
        later.append(check)
    return target.xp.ascontiguousarray(target.put(array), dtype=np.int32)


def _reading(number: Any) -> Callable[[], int]:
    """Start to copy a number to the host; return what waits for it, and for nothing after it."""
    if isinstance(number, np.generic):
        return lambda: int(number)
    import cupy

    copied = np.frombuffer(cupy.cuda.alloc_pinned_memory(number.nbytes), number.dtype, 1)
    number.get(out=copied.reshape(()), blocking=False)
    event = cupy.cuda.get_current_stream().record()

    def wait() -> int:
        event.synchronize()
        return int(copied[0])

    return wait
