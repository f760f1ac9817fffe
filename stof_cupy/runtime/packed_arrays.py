"""What a packed run reads, written by one launch and looked at beside the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.interop import to_device
from stof_cupy.ops.packing import Column, pack
from stof_cupy.runtime.packing import POSITIONS, Sequences
from stof_cupy.runtime.program import Array

__all__ = ["Like", "PackedArrays"]


class _Device(NamedTuple):
    id: int


@dataclass(frozen=True)
class Like:
    """What an array would be like that a recorded run, which has its own, does not need.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    device : object
        Its ``id`` is the number of the current device.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: _Device

    def copy(self) -> Array:
        """Return such an array; nothing is written to it."""
        import cupy

        return cupy.empty(self.shape, self.dtype)


class PackedArrays:
    """The arrays of a packed run, with zeros behind the tokens: how they are written and looked at.

    Parameters
    ----------
    inputs : mapping of str to array or Sequences
    lengths : sequence of int
    size : int
        Tokens, padded.
    device : int
        The current one.
    numbers : sequence of cupy.ndarray
        Get the number of each token's sequence.
    positions : bool
        Whether there is an input of these.

    Attributes
    ----------
    room : dict of str to Like
        What the arrays of the run are like.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        lengths: Sequence[int],
        size: int,
        device: int,
        numbers: Sequence[Array],
        *,
        positions: bool,
    ) -> None:
        import cupy

        self._lengths, self._numbers = lengths, numbers
        self._rows: dict[str, Any] = {}
        self._looks: list[tuple[Callable[[Any], Any], Array]] = []
        self._seen: dict[str, Array] = {}  # of the run alone, as the next one may write to the rest
        self._written: Any = None
        self.room: dict[str, Any] = {}
        here = _Device(device)
        for name, x in inputs.items():
            if isinstance(x, Sequences):
                rows, rest, dtype = x.alike(), (), np.dtype(np.int32)
                seen = self._seen[name] = cupy.empty((1, size), dtype)
                self._looks.append((x.look, seen))
            else:
                there = x if isinstance(x, np.ndarray) else to_device(x, device)
                rows, rest, dtype = there[0], x.shape[2:], x.dtype
            self._rows[name] = rows
            self.room[name] = Like((1, size, *rest), dtype, here)
        if positions:
            self.room[POSITIONS] = Like((1, size), np.dtype(np.int32), here)

    def write(self, into: dict[str, Any]) -> None:
        """Write the inputs to these arrays by one launch; what is but `Like` one is made one."""
        import cupy

        for name, x in into.items():
            if isinstance(x, Like):
                into[name] = x.copy()

        rows, seen = self._rows, self._seen
        known = [name for name in rows if name in into]  # the run says what is no input of it
        columns = [Column(rows[name], into[name], seen.get(name)) for name in known]
        places = None if POSITIONS in rows else into.get(POSITIONS)
        pack(self._lengths, columns, positions=places, numbers=self._numbers)
        if seen:
            self._written = cupy.cuda.get_current_stream().record()

    def look(self, kept: threading.local) -> None:
        """Have sequences looked at, on a stream beside the run that has been launched by now.

        `kept` has that of this thread, once there is one.
        """
        import cupy

        if not self._looks:
            return
        stream = getattr(kept, "stream", None)
        if stream is None:
            stream = kept.stream = cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(self._written)
        with stream:
            for look, seen in self._looks:
                look(seen)
