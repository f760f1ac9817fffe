"""What a packed run reads, written by one launch and looked at beside the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stof_cupy.interop import to_device
from stof_cupy.ops.packing import Column, pack
from stof_cupy.runtime.packing import POSITIONS, Sequences
from stof_cupy.runtime.program import Array

__all__ = ["PackedArrays"]


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
    room : dict of str to cupy.ndarray
        Arrays that are like those of the run, of which nothing is written yet.
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
        self.room: dict[str, Array] = {}
        for name, x in inputs.items():
            if isinstance(x, Sequences):
                rows, rest, dtype = x.alike(), (), np.dtype(np.int32)
                seen = self._seen[name] = cupy.empty((1, size), dtype)
                self._looks.append((x.look, seen))
            else:
                there = x if isinstance(x, np.ndarray) else to_device(x, device)
                rows, rest, dtype = there[0], x.shape[2:], x.dtype
            self._rows[name] = rows
            self.room[name] = cupy.empty((1, size, *rest), dtype)
        if positions:
            self.room[POSITIONS] = cupy.empty((1, size), np.int32)

    def write(self, into: Mapping[str, Array]) -> None:
        """Write the inputs to these arrays by one launch."""
        import cupy

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
