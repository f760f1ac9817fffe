"""Runs that are recorded once and launched as one CUDA graph ever after.

What records is behind an interface of three methods, so that everything else here, which is what
can go wrong, needs no GPU: which runs are worth recording, how many are kept, whose turn it is.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from stof_cupy.errors import StofWarning
from stof_cupy.ops._arrays import copied

__all__ = ["Recorder", "Recording", "Recordings", "Write"]

Array: TypeAlias = Any
Arrays: TypeAlias = "Mapping[str, Any]"
Write: TypeAlias = "Callable[[Any], None]"  # a dict of arrays by name

_SEEN = 1024
"""Keys whose runs are counted before they are recorded."""


class Recording(Protocol):
    """A run that can be launched again; it reads and writes the arrays that it was recorded with.

    Attributes
    ----------
    nbytes : int
        Device memory that it holds.
    """

    @property
    def nbytes(self) -> int:
        """Return the device memory that it holds."""

    def turn(self) -> AbstractContextManager[None]:
        """Return a context in which its arrays may be used: after all that used them before."""

    def replay(self) -> None:
        """Launch it on the current stream."""


class Recorder(Protocol):
    """Makes recordings."""

    def record(self, run: Callable[[], Any]) -> tuple[Recording, Any]:
        """Return a recording of what `run` launches, and the result that it will write.

        Nothing is in it before the first replay.
        """


@dataclass
class _Entry:
    inputs: Arrays
    outputs: Arrays
    recording: Recording  # which goes after them, with their memory
    kept: Sequence[Any]
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        return self.recording.nbytes + sum(int(array.nbytes) for array in self.inputs.values())


class Recordings:
    """The recordings of one graph, by what a run looks like; bounded in number and bytes.

    Safe to use from several threads: one recording is used by one of them at a time.

    Parameters
    ----------
    recorder : Recorder
    most : int
        How many are kept; the one that was not used for longest goes first.
    most_bytes : int
        Of device memory.
    patience : int
        Runs of a kind before one is recorded, which costs as much as several.
    """

    def __init__(
        self, recorder: Recorder, *, most: int = 32, most_bytes: int = 2 << 30, patience: int = 1
    ) -> None:
        self._recorder = recorder
        self._most, self._most_bytes, self._patience = most, most_bytes, patience
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._seen: OrderedDict[Hashable, tuple[int, tuple[Any, ...]]] = OrderedDict()
        self._refused: OrderedDict[Hashable, bool] = OrderedDict()
        self._warned = False
        self._lock = threading.Lock()
        self._recording = threading.Lock()
        self._closed = False
        self.replayed = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __str__(self) -> str:
        """Return how many there are, what they hold and how often they were used."""
        size = self.nbytes / 2**20
        return f"{len(self)} recorded runs in {size:.1f} MiB, replayed {self.replayed} times"

    @property
    def nbytes(self) -> int:
        """Device memory that all of them hold, their inputs included."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    def run(
        self,
        key: Hashable,
        inputs: Arrays,
        call: Callable[[Arrays], dict[str, Array]],
        kept: Sequence[Any] = (),
        write: Write | None = None,
    ) -> dict[str, Array]:
        """Return ``call(inputs)``, by replaying a recording of it where there is one.

        Parameters
        ----------
        key : hashable
            Equal for runs that launch the same on other contents: shapes and types of `inputs`.
        inputs : mapping of str to array
        call : callable
        kept : sequence of object
            What the run reads beside its inputs, masks say; another object is another run.
        write : callable, optional
            Is given arrays like `inputs` and writes to them what the run is to read. Then `inputs`
            need not hold it: a recording's own are written to, and nothing is copied. Nor need they
            be arrays, if their ``copy()`` is one, and `write` puts arrays in their place.

        Returns
        -------
        dict of str to array
            The caller's to keep.
        """
        key = (key, tuple(map(id, kept)))
        entry = self._find(key)
        if entry is None and self._is_worth_it(key, kept):
            entry = self._record(key, inputs, call, kept, write)
        if entry is None:
            if write is not None:
                write(inputs)
            result = call(inputs)
            self._note(key, kept)  # now that it has run
            return result
        with entry.lock, entry.recording.turn():
            if write is not None:
                write(entry.inputs)
            else:
                for name, array in entry.inputs.items():
                    array[...] = inputs[name]
            entry.recording.replay()
            self.replayed += 1
            return {name: copied(array) for name, array in entry.outputs.items()}

    def clear(self) -> None:
        """Drop all recordings."""
        with self._lock:
            self._entries.clear()
            self._seen.clear()

    def close(self) -> None:
        """Drop all recordings; further runs are not recorded."""
        self._closed = True
        self.clear()

    def _find(self, key: Hashable) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def _is_worth_it(self, key: Hashable, kept: Sequence[Any]) -> bool:
        """Whether there were enough runs of this kind."""
        with self._lock:
            if self._closed or key in self._refused or self._most < 1:
                return False
            return self._count(key, kept) >= self._patience

    def _note(self, key: Hashable, kept: Sequence[Any]) -> None:
        """Count a run."""
        with self._lock:
            count = self._count(key, kept) + 1
            try:
                self._seen[key] = (count, tuple(weakref.ref(each) for each in kept))
            except TypeError:  # what may change or vanish unnoticed is not recorded
                return
            self._seen.move_to_end(key)
            while len(self._seen) > _SEEN:
                self._seen.popitem(last=False)

    def _count(self, key: Hashable, kept: Sequence[Any]) -> int:
        """Return the number of runs on the same objects: an id comes back when one is gone."""
        count, owners = self._seen.get(key, (0, ()))
        same = len(owners) == len(kept)
        same = same and all(owner() is each for owner, each in zip(owners, kept, strict=True))
        return count if same else 0

    def _record(
        self,
        key: Hashable,
        inputs: Arrays,
        call: Callable[[Arrays], dict[str, Array]],
        kept: Sequence[Any],
        write: Write | None,
    ) -> _Entry | None:
        with self._recording:  # one at a time: it needs memory for the run, and then once more
            entry = self._find(key)
            if entry is not None:
                return entry
            own = {name: array.copy() for name, array in inputs.items()}
            if write is not None:
                write(own)
            try:
                recording, outputs = self._recorder.record(lambda: call(own))
            # Of CUDA, CuPy or an operator that cannot be captured. If it is the caller's mistake,
            # the run that follows says so.
            except Exception as error:
                with self._lock:
                    first = not self._warned
                    self._warned = True
                    self._refused[key] = True
                    while len(self._refused) > _SEEN:
                        self._refused.popitem(last=False)
                if first:
                    warnings.warn(
                        f"a run could not be recorded as a CUDA graph ({error}); such runs are "
                        "launched operator by operator",
                        StofWarning,
                        stacklevel=2,
                    )
                return None
            entry = _Entry(own, outputs, recording, kept)
            with self._lock:
                if not self._closed:
                    self._entries[key] = entry
                    self._bound()
            return entry

    def _bound(self) -> None:
        """Drop what is beyond the limits, the newest at last: a run that is too large stays out."""
        while self._entries:
            total = sum(entry.nbytes for entry in self._entries.values())
            if len(self._entries) <= self._most and total <= self._most_bytes:
                return
            self._entries.popitem(last=False)
            self.dropped += 1
