"""A batch of sequences that a decoder continues token by token; all that changes is on the device.

What one token leaves the next, itself among it, lies in arrays that stay where they are, and how
far each sequence has come is a number in one of them: so a token is one launch of a recorded CUDA
graph, the same for every token, and nothing waits for the host.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import as_dtype
from stof_cupy.graph import Graph
from stof_cupy.models import Model
from stof_cupy.models.inputs import masks_of
from stof_cupy.models.target import Target
from stof_cupy.ops.greedy import take_best

__all__ = ["Runner", "Session", "Sessions", "capacity_for"]

_LEAST = 64
"""Keys that a cache has at least; from there on powers of two, so that few sizes are recorded."""


@dataclass(frozen=True)
class Runner:
    """What runs a model's graphs.

    Attributes
    ----------
    run : callable
        ``(graph, inputs) -> outputs``, on inputs that lie where they are needed.
    bind : callable
        ``(graph, inputs, finish, changes)``: what runs on these very arrays, see `bound.bind`.
    """

    run: Callable[[Graph, Mapping[str, Any]], dict[str, Any]]
    bind: Callable[..., Callable[[], dict[str, Any]]]


def capacity_for(model: Model, tokens: int) -> int:
    """Return the keys of a cache for so many tokens.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(max_positions=1000)
    >>> [capacity_for(model, tokens) for tokens in (1, 64, 65, 700)]
    [64, 64, 128, 1000]
    """
    return min(max(_LEAST, 1 << (tokens - 1).bit_length()), max(model.max_positions, tokens))


class Session:
    """The caches of a batch of sequences, and how far each has come.

    The caches of layers with a window are rings of its size. A decoder that reads a source is told
    of it by `begin`, others by `prefill` of their prompts.

    Parameters
    ----------
    model : Model
        A decoder.
    runner : Runner
    target : Target
        Has to be active whenever the session is used.
    batch : int
    capacity : int
        The most tokens of a sequence.
    source : int
        The most tokens of a source, where the decoder reads one.

    Attributes
    ----------
    tokens : int64 array (batch,)
        The last of each sequence, which the model has not read yet.
    """

    def __init__(
        self,
        model: Model,
        runner: Runner,
        target: Target,
        batch: int,
        capacity: int,
        source: int = 0,
    ) -> None:
        self._model, self._runner, self._target = model, runner, target
        xp = target.xp
        dtype = as_dtype(target.dtype) if target.device is not None else np.dtype(np.float32)
        windows = [mask.window for mask in model.layer_masks if mask.window is not None]
        self._near = min([capacity, *(window + 1 for window in windows)])
        sizes = {"batch": batch, "keys": capacity, "near": self._near, "source": source}
        declared = model.graph.inputs

        def rooms(names: list[str]) -> dict[str, Any]:
            shapes = {
                n: [sizes[d] if isinstance(d, str) else d for d in declared[n].shape] for n in names
            }
            return {name: xp.zeros(shape, dtype) for name, shape in shapes.items()}

        self._caches = rooms([name for name, node in declared.items() if node.dtype == "cache"])
        self._rings = {name for name in self._caches if declared[name].shape[2] == "near"}
        self._source = rooms([name for name, node in declared.items() if "source" in node.shape])
        if self._source:
            self._source["source_lengths"] = xp.zeros(batch, np.int32)
        self.tokens = xp.zeros(batch, np.int64)
        self._positions, self._lengths = xp.zeros(batch, np.int32), xp.ones(batch, np.int32)
        self._inputs = {
            "ids": self.tokens[:, None],
            "positions": self._positions[:, None],
            "rows": xp.arange(batch, dtype=np.int64)[:, None],
            "lengths": self._lengths,
            **self._caches,
            **self._source,
        }
        if "query_at" in declared:  # one for all: such sequences are equally long
            self._inputs["query_at"] = self._positions[:1]
        self._steps: dict[bool, Callable[[], dict[str, Any]]] = {}
        self._copied: Any = None

    def prefill(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> Any:
        """Take the prompts, padded; return the logits (batch, vocab) of what follows them."""
        put = self._target.xp.asarray
        batch, seq = ids.shape
        caches = {name: self._room(name, seq) for name in self._caches}
        positions = np.ascontiguousarray(np.broadcast_to(np.arange(seq, dtype=np.int32), ids.shape))
        last = np.arange(batch, dtype=np.int32) * seq + lengths - 1
        given = {
            "ids": put(ids),
            "positions": put(positions),
            "rows": put(last[:, None]),
            "lengths": None,
            **caches,
            **masks_of(self._model, self._target, None, None, (batch, self._model.heads, seq, seq)),
        }
        logits = self._runner.run(self._model.graph, given)["logits"][:, 0]
        if seq > self._near:
            self._keep_latest(caches, lengths)
        self._positions[...] = put(lengths.astype(np.int32) - 1)
        self._lengths[...] = put(lengths.astype(np.int32))
        return logits

    def begin(self, token: int, source: Mapping[str, Any]) -> None:
        """Let this be the first token of each sequence, which the model has not read yet.

        `source` has, on the target, the inputs of the decoder that its source makes.
        """
        self.tokens[...] = token
        self._positions[...], self._lengths[...] = 0, 1
        for name, room in self._source.items():
            given = source[name]
            if room.ndim == 1:
                room[...] = given
            else:  # what lies beyond is masked by `source_lengths`
                given = given.astype(room.dtype, copy=False)
                _bits(room)[:, :, : given.shape[2]] = _bits(given)

    def take_best(self, logits: Any) -> None:
        """Let the token of the highest logit be the next one of each sequence."""
        take_best(logits, self.tokens, self._positions, self._lengths)

    def take(self, tokens: NDArray[Any]) -> None:
        """Let these be the next ones."""
        self.tokens[...] = self._target.xp.asarray(tokens.astype(np.int64))
        self._positions += 1
        self._lengths += 1

    def step(self, *, greedy: bool) -> Any:
        """Read the last tokens and return the logits (batch, vocab) of what follows them.

        With `greedy` the best are taken as well, in the same launch.
        """
        bound = self._steps.get(greedy)
        if bound is None:
            changes = (self.tokens, self._positions, self._lengths) if greedy else ()
            finish = self._finish if greedy else None
            bound = self._runner.bind(self._model.graph, self._inputs, finish, changes)
            self._steps[greedy] = bound
        return bound()["logits"][:, 0]

    def _finish(self, _: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        self.take_best(outputs["logits"][:, 0])
        return {"logits": outputs["logits"]}

    def reading(self) -> Callable[[], NDArray[np.int64]]:
        """Start to copy the last tokens to the host; return what waits for them.

        Runs that are launched in between do not change what it returns.
        """
        if self._target.device is None:
            copied = self.tokens.copy()
            return lambda: copied
        import cupy

        if self._copied is None:
            memory = cupy.cuda.alloc_pinned_memory(self.tokens.nbytes)
            self._copied = np.frombuffer(memory, np.int64, self.tokens.size)
        self.tokens.get(out=self._copied, blocking=False)
        event = cupy.cuda.get_current_stream().record()

        def wait() -> NDArray[np.int64]:
            event.synchronize()
            return np.array(self._copied)

        return wait

    def _room(self, name: str, seq: int) -> Any:
        """Return where prompts of `seq` tokens are written to."""
        cache = self._caches[name]
        if name not in self._rings or seq <= self._near:
            return cache[:, :, :seq]
        batch, heads, _, width = cache.shape
        return self._target.xp.empty((batch, heads, seq, width), cache.dtype)

    def _keep_latest(self, caches: Mapping[str, Any], lengths: NDArray[np.int32]) -> None:
        """Fill the rings: position p at p modulo their size, as far as a sequence goes."""
        last = lengths.astype(np.int64)[:, None] - 1
        places = last - (last - np.arange(self._near)) % self._near
        found = self._target.xp.asarray(np.maximum(places, 0))  # of what is masked, anything
        for name in self._rings:
            for row, ring in enumerate(self._caches[name]):
                _bits(ring)[...] = _bits(caches[name][row])[:, found[row]]


def _bits(x: Any) -> Any:
    """View floats as integers: CuPy indexes no bfloat16."""
    return x.view(np.dtype(f"u{x.itemsize}"))


class Sessions:
    """Sessions that are not in use, kept for the next batch of the same size: what was recorded is.

    Safe to use from several threads: a session is one's alone while it is used.

    Parameters
    ----------
    most : int
        How many are kept, the latest ones; 0: none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: OrderedDict[tuple[int, ...], Session] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def use(self, size: tuple[int, ...], make: Callable[[], Session]) -> Iterator[Session]:
        """Give a session of that size, made if none is kept; one that failed is dropped."""
        with self._lock:
            session = self._idle.pop(size, None)
        session = make() if session is None else session
        yield session
        with self._lock:
            self._idle[size] = session
            while len(self._idle) > self._most:
                self._idle.popitem(last=False)

    def clear(self) -> None:
        """Drop all that are kept."""
        with self._lock:
            self._idle.clear()
