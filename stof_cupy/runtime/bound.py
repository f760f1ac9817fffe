"""Runs on arrays that stay where they are: each run reads what is in them when it is launched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from stof_cupy.errors import StofWarning
from stof_cupy.graph.recorder import Recorder
from stof_cupy.runtime.program import Finish, Program
from stof_cupy.runtime.ready import on_device, out_of_memory

__all__ = ["Run", "bind"]

Array: TypeAlias = Any
Run: TypeAlias = Callable[[], "dict[str, Any]"]
"""Runs, and returns the outputs; the next run may write to them."""


def bind(
    program: Program,
    inputs: Mapping[str, Any],
    *,
    finish: Finish | None = None,
    changes: Sequence[Array] = (),
) -> Run:
    """Return what runs a program on these very arrays each time that it is called.

    It is one CUDA graph where the program records. Nothing is copied: a run reads what is in the
    arrays by then, writes to caches, and in `finish` may leave the next run its inputs. Its outputs
    hold until the next run.

    Parameters
    ----------
    program : Program
    inputs, finish
        As of `Program.run`. Inputs are kept as long as what is returned; other arrays that a
        recorded `finish` uses are the caller's to keep.
    changes : sequence of array
        What `finish` changes so that another run would change it again, a count say. Recording
        runs it, so what was in them is put back after that.

    Raises
    ------
    ArgumentError, ShapeError, MaskError, DTypeError, DeviceError, OutOfMemoryError
        As `Program.run`; where the run cannot be recorded for that, when it is called.

    Examples
    --------
    >>> import numpy as np
    >>> from stof_cupy import Graph, Program
    >>> g = Graph("double")
    >>> x = g.input("x", ("batch", 2), "float")
    >>> g.output("y", g.add(x, x))
    >>> x = np.ones((1, 2), np.float32)
    >>> run = bind(Program(g), {"x": x})
    >>> x += 1
    >>> run()["y"]
    array([[4., 4.]], dtype=float32)
    """
    ready, recorder = program._for(inputs), program._recorder
    executor = ready.for_few_rows(arena=recorder is not None)

    def call() -> dict[str, Array]:
        give_up = partial(program._give_up, ready, inputs)
        with out_of_memory(give_up), on_device(program.device):
            made = executor.run(inputs)
            return made if finish is None else finish(inputs, made)

    with on_device(program.device):
        if recorder is None:
            return call
        # Not `call`: whoever has a `finish` may have what is returned too, and its memory would
        # stay until Python looks for cycles.
        return _recorded(call, recorder, changes, (executor, inputs))


def _recorded(call: Run, recorder: Recorder, changes: Sequence[Array], kept: Any) -> Run:
    """Return what launches a recording of `call`, or `call` where it cannot be recorded.

    A recording does not hold what it reads, `kept`: inputs, and constants that an executor makes.
    """
    before = [array.copy() for array in changes]
    try:
        recording, outputs = recorder.record(call)
    # As in `Recordings`: of CUDA, CuPy or an operator that cannot be captured.
    except Exception as error:
        warnings.warn(
            f"a run could not be recorded as a CUDA graph ({error}); it is launched operator by "
            "operator",
            StofWarning,
            stacklevel=3,
        )
        return call
    finally:
        for array, old in zip(changes, before, strict=True):
            array[...] = old

    def replay(_kept: Any = kept) -> dict[str, Array]:
        with recording.turn():
            recording.replay()
        return dict(outputs)

    return replay
