"""What runs one class of shapes, and what a run's inputs say of its sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from stof_cupy.errors import ArgumentError, OutOfMemoryError, mismatch
from stof_cupy.fusion.bench import Site, Stopwatch, wall_clock
from stof_cupy.fusion.cost import NUMPY, machine_of
from stof_cupy.fusion.few_rows import few_row_pieces
from stof_cupy.fusion.norms import fold_norms, pays, told
from stof_cupy.fusion.store import SchemeStore
from stof_cupy.fusion.tune import MODES, Tuned, tune
from stof_cupy.graph import Executor, Graph
from stof_cupy.graph.cuda_recorder import CudaRecorder
from stof_cupy.graph.feeds import settled_masks
from stof_cupy.graph.recorder import Recorder
from stof_cupy.graph.steps import Fused
from stof_cupy.jit.device import facts
from stof_cupy.masks.expression import Pattern

__all__ = [
    "Options",
    "Ready",
    "is_capturing",
    "on_device",
    "out_of_memory",
    "sizes_of",
    "stays",
    "where",
]


@dataclass(frozen=True)
class Options:
    """How a program's runs are tuned and recorded.

    Attributes
    ----------
    tune : {"off", "fast", "full"}
        Whether and how long to search for what runs as one: once for each class of shapes, when it
        is first met. ``"off"``: the exact rewrites alone. On NumPy ``"fast"`` decides by analysis,
        ``"full"`` by the clock.
    tune_seconds : float or None
        What a search may take, for another number than the mode's.
    record : bool or None
        Whether runs of equal shapes are recorded and launched as one CUDA graph. None: on CUDA.
    graphs, graph_bytes : int
        How many recordings are kept, and how much device memory they may hold.
    store : SchemeStore or None
        Where schemes are kept. None: in the cache directory.
    watch : callable or None
        Called with a share and a text while tuning.
    recorder : Recorder or None
        What records. None: CUDA.
    fold_norms : bool or None
        Whether norms that products alone read are applied to the results of these
        (:mod:`stof_cupy.fusion.norms`), except in steps of decoding. None: where analysis expects
        it to pay. On an H200 whole stacks were 5 to 14 % slower so, see benchmarks/notes/engine.md.

    Raises
    ------
    ArgumentError
        If `tune` is no mode, a number is negative, or a switch is no bool.
    """

    tune: str = "off"
    tune_seconds: float | None = None
    record: bool | None = None
    graphs: int = 32
    graph_bytes: int = 2 << 30
    store: SchemeStore | None = None
    watch: Callable[[float, str], None] | None = None
    recorder: Recorder | None = None
    fold_norms: bool | None = False

    def __post_init__(self) -> None:
        if not isinstance(self.tune, str) or self.tune not in MODES:
            expected = " or ".join(map(repr, MODES))
            raise ArgumentError(mismatch("tune", repr(self.tune), expected))
        for name in ("tune_seconds", "graphs", "graph_bytes"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise ArgumentError(mismatch(name, repr(value), "a number of 0 or more"))
        for name in ("record", "fold_norms"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise ArgumentError(mismatch(name, repr(value), "True, False or None"))


@dataclass(frozen=True)
class Ready:
    """What was tuned, and what runs it: as it is, and in an arena, for recording.

    Attributes
    ----------
    tuned : Tuned
    plain, placed : Executor
    site : Site
        Where they run, and the weights that they share.
    """

    tuned: Tuned
    plain: Executor
    placed: Executor
    site: Site

    @classmethod
    def made(
        cls,
        graph: Graph,
        sizes: Mapping[str, int],
        inputs: Mapping[str, Any],
        options: Options,
        backend: str,
        dtype: str,
        device: int | None,
        uploads: MutableMapping[str, Any],
        classed: bool,
        steps: bool,
    ) -> Ready:
        """Tune a graph, on its device, for the class of some sizes or, not `classed`, for all.

        `steps`, for runs that write to caches.
        """
        machine = NUMPY
        stopwatch: Stopwatch | None = wall_clock if options.tune == "full" else None
        if device is not None:
            machine, stopwatch = machine_of(facts(device)), CudaRecorder(device).seconds
        given = settled_masks(graph, inputs, sizes)
        given |= {n: inputs.get(n) for n, x in graph.inputs.items() if x.dtype == "lengths"}
        site = Site(backend, dtype, device, machine, sizes, stopwatch, given, uploads)
        fold = options.fold_norms
        if fold is None:
            fold = pays(graph, sizes, site.itemsize, machine)
        fold &= not steps
        graph = _folded(graph) if fold else graph
        mode = options.tune if classed else "off"
        tuned = tune(
            graph,
            site,
            mode,
            seconds=options.tune_seconds,
            store=None if mode == "off" else options.store or SchemeStore(),
            watch=options.watch,
        )
        if fold:
            tuned = replace(tuned, lowered=told(tuned.lowered))
        site.compile(tuned.lowered, lengths=classed)
        return cls.of(tuned, site)

    @classmethod
    def of(cls, tuned: Tuned, site: Site) -> Ready:
        """Make the executors; they share the weights that `site` holds."""
        fused = tuned.lowered.fused
        plain, placed = (_executor(tuned, site, fused, arena) for arena in (False, True))
        return cls(tuned, plain, placed, site)

    def explain(self) -> list[str]:
        """Return as lines of text how it was tuned, and what runs so far keep in memory."""
        self.placed.plan(self.site.sizes)  # which is the least that there is to say
        lines = [str(self.tuned.report)]
        for plan in self.placed.plans:
            sizes = ", ".join(f"{name} {size}" for name, size in plan.sizes.items())
            lines.append(f"memory at {sizes}: {plan}")
        return lines

    def for_few_rows(self, *, arena: bool) -> Executor:
        """Return an executor for runs of few rows, in an arena or not."""
        lowered = self.tuned.lowered
        # What was tuned has its own pieces, which stay as they are.
        fused = (*lowered.fused, *few_row_pieces(lowered.graph, lowered.fused))
        return _executor(self.tuned, self.site, fused, arena)


_known: WeakKeyDictionary[Graph, Graph] = WeakKeyDictionary()


def _folded(graph: Graph) -> Graph:
    """Return a program's graph with norms folded; its weights take long to be made, so once."""
    found = _known.get(graph)
    if found is None:
        found = _known[graph] = fold_norms(graph)
    return found


def _executor(tuned: Tuned, site: Site, fused: tuple[Fused, ...], arena: bool) -> Executor:
    return Executor(
        tuned.lowered.graph,
        backend=site.backend,
        dtype=site.dtype,
        device=site.device,
        fused=fused,
        arena=arena,
        uploads=site.uploads,
    )


def sizes_of(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return what the symbolic dims are as far as the shapes of `inputs` say.

    Raises
    ------
    ArgumentError
        If `inputs` is no mapping.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("one")
    >>> x = g.input("x", ("batch", "seq", 4), "float")
    >>> sizes_of(g, {"x": np.zeros((2, 3, 4))})
    {'batch': 2, 'seq': 3}
    """
    if not isinstance(inputs, Mapping):
        got = type(inputs).__name__
        raise ArgumentError(mismatch("inputs", got, "a mapping of input names to arrays"))
    sizes: dict[str, int] = {}
    for name, node in graph.inputs.items():
        if len(sizes) == len(graph.dims):
            break
        shape = tuple(getattr(inputs.get(name), "shape", ()))
        shape = shape[-2:] if node.dtype == "mask" else shape
        if len(shape) == len(node.shape):
            for dim, size in zip(node.shape, shape, strict=True):
                if isinstance(dim, str):
                    sizes[dim] = size
    return sizes


def stays(value: Any) -> bool:
    """Whether what an object holds is the same as long as it is the same object: masks of ours."""
    return isinstance(value, Pattern) or hasattr(value, "schedule")


def where(array: Any) -> int:
    """Return the number of an array's CUDA device; -1 on the host."""
    device = getattr(array, "device", None)
    return -1 if device is None or isinstance(device, str) else int(device.id)


def on_device(device: int | None) -> AbstractContextManager[Any]:
    """Return a context in which a CUDA device is CuPy's current one; None: it does nothing."""
    if device is None:
        return nullcontext()
    import cupy

    context: AbstractContextManager[Any] = cupy.cuda.Device(device)
    return context


def is_capturing(device: int | None) -> bool:
    """Whether the caller captures a CUDA graph himself: then a run is a part of his."""
    if device is None:
        return False
    import cupy

    return bool(cupy.cuda.get_current_stream().is_capturing())


@contextmanager
def out_of_memory(
    give_up: Callable[[], int],
    what: str = "what lies between operators",
    hint: str = "run fewer sequences at a time",
) -> Iterator[None]:
    """Turn any MemoryError, which CuPy's is too, into one that says how much is needed.

    Parameters
    ----------
    give_up : callable
        Frees what it can, and returns that number of bytes.
    what : str
        What they are for.
    hint : str

    Raises
    ------
    OutOfMemoryError
    """
    try:
        yield
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        needed = f"about {give_up() / 2**20:.1f} MiB for {what}"
        raise OutOfMemoryError(
            mismatch("run", f"too little memory ({error})", needed, hint)
        ) from error
