"""Runs on arrays that stay where they are: each run reads what is in them when it is launched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from stof_cupy.errors import StofWarning
from stof_cupy.graph.recorder import Recorder

__all__ = ["Run", "bound"]

Array: TypeAlias = Any
Run: TypeAlias = Callable[[], "dict[str, Any]"]
"""Runs, and returns the outputs; the next run may write to them."""


def bound(call: Run, recorder: Recorder | None, changes: Sequence[Array] = ()) -> Run:
    """Return what does as `call` does, by launching a recording of it where that can be made.

    Parameters
    ----------
    call : callable
        Launches the same each time, on the same arrays.
    recorder : Recorder or None
        None: `call` itself is returned.
    changes : sequence of array
        What a run changes so that another run changes it again, a count say. Recording runs it, so
        what was in them is put back after that; of what a run only overwrites nothing is needed.
    """
    if recorder is None:
        return call
    before = [array.copy() for array in changes]
    try:
        recording, outputs = recorder.record(call)
    # As in `Recordings`: of CUDA, CuPy or an operator that cannot be captured.
    except Exception as error:
        warnings.warn(
            f"a run could not be recorded as a CUDA graph ({error}); it is launched operator by "
            "operator",
            StofWarning,
            stacklevel=2,
        )
        return call
    finally:
        for array, old in zip(changes, before, strict=True):
            array[...] = old

    def replay() -> dict[str, Array]:
        with recording.turn():
            recording.replay()
        return dict(outputs)

    return replay
