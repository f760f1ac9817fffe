"""A graph made ready to run again and again: fused, tuned, and on CUDA launched as one graph."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from stof_cupy.dtypes import dtype_name
from stof_cupy.errors import ArgumentError, DTypeError, mismatch
from stof_cupy.fusion import structured
from stof_cupy.fusion.cost import shapes_class
from stof_cupy.fusion.report import Report
from stof_cupy.graph import Executor, Graph
from stof_cupy.graph.cuda_recorder import CudaRecorder
from stof_cupy.graph.memory import MemoryPlan
from stof_cupy.graph.recorder import Recordings, Write
from stof_cupy.runtime.closing import Closing
from stof_cupy.runtime.packing import pack_graph
from stof_cupy.runtime.profile import Profile, clock_of
from stof_cupy.runtime.ready import (
    Options,
    Ready,
    is_capturing,
    on_device,
    out_of_memory,
    sizes_of,
    stays,
    where,
)

if TYPE_CHECKING:
    from stof_cupy.runtime.documents import PackedProgram

__all__ = ["Program"]

Array: TypeAlias = Any
Finish: TypeAlias = "Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]]"


class Program(Closing):
    """Runs a graph: a user's own block, or what a model family builds.

    Parameters
    ----------
    graph : Graph
        Left as it is.
    backend : {"numpy", "cuda"}
    dtype : {"float16", "bfloat16", "float32"}, optional
        As of `Executor`.
    device : int, optional
        CUDA device; default: the current one.
    options : Options, optional
        How runs are tuned and recorded.
    uploads : dict, optional
        Weights by name that are on the device already; see `Executor`.

    Attributes
    ----------
    graph : Graph
        After the rewrites that say what the operators are.
    backend, dtype : str
    device : int or None

    Raises
    ------
    GraphError
        If the graph does not verify.
    ArgumentError, DTypeError, UnsupportedError, DeviceError, MissingDependencyError
        If there is no such backend, type, device or mode.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("block")
    >>> x = g.input("x", ("batch", "seq", 4), "float")
    >>> heads = g.split_heads(g.matmul(x, g.constant("w", np.eye(4, dtype=np.float32))), heads=2)
    >>> scores = g.scale(g.matmul(heads, g.transpose(heads, axes=(0, 1, 3, 2))), factor=0.5)
    >>> g.output("y", g.merge_heads(g.matmul(g.softmax(scores), heads)))
    >>> program = Program(g)
    >>> [node.op for node in program.graph.nodes() if node.kind == "CI"]
    ['gemm', 'attention']
    >>> program.run({"x": np.ones((1, 3, 4), np.float32)})["y"].shape
    (1, 3, 4)
    """

    def __init__(
        self,
        graph: Graph,
        *,
        backend: str = "numpy",
        dtype: str | None = None,
        device: int | None = None,
        options: Options | None = None,
        uploads: dict[str, Array] | None = None,
    ) -> None:
        self.options = options = Options() if options is None else options
        if not isinstance(options, Options):
            raise DTypeError(mismatch("options", type(options).__name__, "Options"))
        self.graph = structured(graph)
        self._uploads: dict[str, Array] = {} if uploads is None else uploads
        kinds = {name: node.dtype for name, node in self.graph.inputs.items()}
        self._arrays = {name for name, kind in kinds.items() if kind != "mask"}
        self._caches = {name for name, kind in kinds.items() if kind == "cache"}
        self._ready: dict[tuple[int | str, ...], Ready] = {}
        self._packed: list[PackedProgram | None] = []
        self._lock = threading.RLock()
        self._making: dict[tuple[int | str, ...], threading.Lock] = {}
        self._closed = False
        # Makes sure that all of this can run before the first run, and puts the weights there.
        hint = "use a type of fewer bytes, or another device"
        width = 2 if backend == "cuda" else 4
        size = sum(array.size for array in self.graph.constants.values()) * width
        with out_of_memory(lambda: size, "the weights", hint):
            first = Executor(
                self.graph, backend=backend, dtype=dtype, device=device, uploads=self._uploads
            )
        self.backend, self.dtype, self.device = first.backend, first.dtype, first.device
        recorder = options.recorder
        if recorder is None and self.device is not None:
            recorder = CudaRecorder(self.device)
        wanted = self.device is not None if options.record is None else options.record
        self._recorder = recorder if wanted else None
        self._recordings = (
            Recordings(recorder, most=options.graphs, most_bytes=options.graph_bytes)
            if wanted and recorder is not None
            else None
        )

    def run(self, inputs: Mapping[str, Any], *, finish: Finish | None = None) -> dict[str, Array]:
        """Compute the outputs; see `Executor.run`.

        Parameters
        ----------
        inputs : mapping of str to array
            By input name.
        finish : callable, optional
            Called as ``finish(inputs, outputs)``; what it returns are the outputs. It is recorded
            with the rest, so it must be the same function in every run.

        Raises
        ------
        OutOfMemoryError
            If the device cannot hold what lies between the operators; the program can be used on.
        ArgumentError, ShapeError, MaskError, DTypeError, DeviceError
            As `Executor.run`; and if the program is closed.
        """
        return self._run(inputs, finish)

    def _run(
        self, inputs: Mapping[str, Any], finish: Finish | None, write: Write | None = None
    ) -> dict[str, Array]:
        """Do what `run` does; `write`, as of `Recordings.run`, is what writes to the inputs."""
        ready = self._for(inputs, write)
        arrays = {n: x for n, x in inputs.items() if n in self._arrays and hasattr(x, "dtype")}
        others = {name: value for name, value in inputs.items() if name not in arrays}

        def call(executor: Executor, given: Mapping[str, Any]) -> dict[str, Array]:
            self._begin(others)
            made = executor.run({**others, **given})
            return made if finish is None else finish({**others, **given}, made)

        def recorded(given: Mapping[str, Any]) -> dict[str, Array]:
            return call(ready.plain if given is arrays else ready.placed, given)

        read = {name: value for name, value in others.items() if value is not None}
        kept = [*read.values()] if finish is None else [*read.values(), finish]
        shapes = tuple((n, x.shape, dtype_name(x.dtype), where(x)) for n, x in arrays.items())
        key = id(ready), shapes, tuple(read)  # one object is another run as another layer's mask
        with out_of_memory(lambda: self._give_up(ready, inputs)), on_device(self.device):
            stay = all(v is finish or stays(v) for v in kept) and not self._writes(inputs)
            if self._recordings is None or not stay or is_capturing(self.device):
                if write is not None:
                    write(arrays)
                return call(ready.plain, arrays)
            return self._recordings.run(key, arrays, recorded, kept, write)

    def tuned(self, inputs: Mapping[str, Any]) -> Report:
        """Return how runs of such inputs came to run as they do; tunes if that is still to do."""
        return self._for(inputs).tuned.report

    def plan(self, inputs: Mapping[str, Any]) -> MemoryPlan:
        """Return where a recorded run of such inputs keeps what lies between its operators."""
        return self._for(inputs).placed.plan(sizes_of(self.graph, inputs))

    def explain(self) -> str:
        """Return as text what runs: the graph, what was tuned, and what is recorded."""
        with self._lock:
            made = list(self._ready.values())
        shown = made[0].tuned.lowered.graph if made else self.graph
        lines = [shown.show()]
        for ready in made:
            lines += ready.explain()
        if self._recordings is not None:
            lines.append(str(self._recordings))
        lines += [f"sequences one after another: {p.explain()}" for p in self._packed if p]
        return "\n".join(lines)

    def profile(self, inputs: Mapping[str, Any], *, repeat: int = 5) -> Profile:
        """Run operator by operator and time each; on CUDA each is an NVTX range as well.

        Parameters
        ----------
        inputs : mapping of str to array
            As of `run`.
        repeat : int
            Timed runs, after one that is not.
        """
        if not isinstance(repeat, int) or repeat < 1:
            raise ArgumentError(mismatch("repeat", repr(repeat), "an int of at least 1"))
        ready = self._for(inputs)
        ready.plain.run(inputs)
        clock = clock_of(self.device)
        began = time.perf_counter()
        for _ in range(repeat):
            ready.plain.run(inputs, around=clock)
        took = time.perf_counter() - began
        with on_device(self.device):  # whose stream it waits for
            return clock.profile(repeat, took).of(ready.tuned.lowered.fused)

    def close(self) -> None:
        """Free the weights and recordings; what is asked of it then is refused."""
        with self._lock:
            self._closed = True
            self.graph = self.graph.emptied()
            self._ready.clear()
            self._uploads.clear()
            if self._recordings is not None:
                self._recordings.close()
            packed, self._packed = self._packed, [None]
        for each in filter(None, packed):
            each.close()

    def packed(self) -> PackedProgram | None:
        """Return the program for sequences one after another, on the same weights.

        See `packing.pack_graph` for its inputs, and for when there is none.
        """
        from stof_cupy.runtime.documents import PackedProgram

        with self._lock:
            if not self._packed:
                graph = pack_graph(self.graph)
                made = None if graph is None else PackedProgram(
                    graph, backend=self.backend, dtype=self.dtype, device=self.device,
                    options=self.options, uploads=self._uploads,
                )  # fmt: skip
                self._packed.append(made)
            return self._packed[0]

    @property
    def records(self) -> bool:
        """Whether runs of equal shapes are recorded."""
        return self._recordings is not None

    @property
    def recorded(self) -> int:
        """How many recorded runs are kept."""
        return 0 if self._recordings is None else len(self._recordings)

    def _begin(self, inputs: Mapping[str, Any]) -> None:
        """Launch what comes before the operators, in a recorded run too."""

    def _writes(self, inputs: Mapping[str, Any]) -> bool:
        """Whether a run writes to an array that it is given: then it cannot be run on a copy."""
        return any(inputs.get(name) is not None for name in self._caches)

    def _give_up(self, ready: Ready, inputs: Mapping[str, Any]) -> int:
        """Free what can be made again, and return the bytes that a run needs."""
        if self._recordings is not None:
            self._recordings.clear()
        return ready.placed.plan(sizes_of(self.graph, inputs)).arena_bytes

    def _for(self, inputs: Mapping[str, Any], write: Write | None = None) -> Ready:
        """Return what runs such inputs, made when their class of shapes is first met."""
        graph = self.graph  # read first: if the program is open after that, it has its weights
        sizes = sizes_of(graph, inputs)
        # Caches grow by a token a run: no class of shapes is worth a search.
        steps = self._writes(inputs)
        classed = (self.options.tune != "off" or self.device is not None) and not steps
        key: tuple[int | str, ...] = ("steps",) if steps else ()
        key = tuple(shapes_class(sizes).values()) if classed else key
        with self._lock:
            ready = self._open(key)
            if ready is not None:
                return ready
            making = self._making.setdefault(key, threading.Lock())
        with making:  # once, and while others run what is made already
            ready = self._open(key)
            if ready is None:
                missing = set(graph.dims) - sizes.keys()
                known = sizes | dict.fromkeys(missing, 1)  # Executor.run says what is wrong
                where = (self.backend, self.dtype, self.device, self._uploads)
                with on_device(self.device):
                    if write is not None:
                        write(inputs)
                    self._begin(inputs)  # tuning reads masks
                    how = (self.options, *where, classed, steps)
                    ready = Ready.made(graph, known, inputs, *how)
                with self._lock:
                    if not self._closed:
                        self._ready[key] = ready
            return ready

    def _open(self, key: tuple[int | str, ...]) -> Ready | None:
        """Return what was made for a class of shapes; refuse if the program is closed."""
        if self._closed:
            raise ArgumentError(mismatch("program", "one that is closed", "an open one"))
        return self._ready.get(key)
