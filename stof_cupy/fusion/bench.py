"""The segments of a real graph as a space to search: their kernels, predicted and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import StofError
from stof_cupy.fusion import lengths as of_lengths
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import Machine, shapes_class
from stof_cupy.fusion.examples import example_inputs
from stof_cupy.fusion.kernels import Kernel, Setting, is_normed, kernel_of
from stof_cupy.fusion.ledger import Budget, Span
from stof_cupy.fusion.lower import Lowered, fused_by, lower_one
from stof_cupy.fusion.pieces import Piece
from stof_cupy.graph import Executor, Graph, Node
from stof_cupy.jit.ahead import compile_ahead, compiling
from stof_cupy.jit.launch import rehearsal
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks import BsrMask, DeviceMask, MaskStack

__all__ = ["PieceSpace", "Site", "Stopwatch", "wall_clock"]

Stopwatch: TypeAlias = "Callable[[Callable[[], Any]], float]"
"""Takes a call without arguments, returns the seconds that it takes."""


@dataclass(frozen=True)
class Site:
    """Where and on what a graph is to run.

    Attributes
    ----------
    backend : {"numpy", "cuda"}
    dtype : str
        Of weights and results.
    device : int or None
    machine : Machine
        Its rates.
    sizes : mapping of str to int
        What the symbolic dims are.
    stopwatch : callable or None
        None: nothing is timed, analysis decides alone.
    inputs : mapping of str to object
        What to time with: masks and lengths by name. Others are drawn.
    uploads : mapping
        Constants that are on the device already, by name.
    """

    backend: str
    dtype: str
    device: int | None
    machine: Machine
    sizes: Mapping[str, int]
    stopwatch: Stopwatch | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    uploads: MutableMapping[str, Any] = field(default_factory=dict)

    @property
    def itemsize(self) -> int:
        """Bytes of a float between operators."""
        return 4 if self.backend == "numpy" else as_dtype(self.dtype).itemsize

    def seconds(self, lowered: Lowered) -> float:
        """Return the time of a graph by the clock; inf if it does not run."""
        if self.stopwatch is None:
            return float("inf")
        try:
            return self.stopwatch(self._run_of(lowered))
        except (StofError, MemoryError, RuntimeError):  # which CUDA's are, of what is not captured
            return float("inf")

    def kernels(self, lowered: Lowered, *, near: bool = False) -> list[KernelSpec]:
        """Return the kernels that a graph asks for, of which none is compiled for that.

        And those that are `near`, see `rehearsal`.
        """
        with rehearsal(near=near) as wanted:
            try:
                self._run_of(lowered)()
            except (StofError, MemoryError):
                return []  # what is wrong is said when it is run
        return list(wanted)

    def compile(self, *graphs: Lowered, lengths: bool = False) -> None:
        """Compile what graphs ask for, several kernels at a time; without a GPU there is nothing.

        Attention by a mask that is built at every call is not: that takes the GPU.

        Parameters
        ----------
        *graphs : Lowered
        lengths : bool
            Whether to compile what is asked for at other lengths of the class, too: by products,
            and by attention. Of masks of other lengths nothing is known; they may well take what
            takes little longer at this one.
        """
        facts = self.machine.facts
        if facts is not None:
            compile_ahead(self._wanted(graphs, lengths), facts.arch, later=lengths)

    @contextmanager
    def compiling(self, lowered: Lowered) -> Iterator[None]:
        """Compile what is asked for at all lengths of the class while in the context."""
        facts = self.machine.facts
        arch = "" if facts is None else facts.arch
        with compiling(self._wanted((lowered,), True), arch, later=True):
            yield

    def _wanted(self, graphs: Sequence[Lowered], lengths: bool) -> list[KernelSpec]:
        facts = self.machine.facts
        if facts is None or self.device is None:
            return []
        inputs = {name: each for name, each in self.inputs.items() if _is_known(each)}
        built = len(inputs) < sum(each is not None for each in self.inputs.values())
        with rehearsal():
            taken = {
                name: each.rehearsed() if isinstance(each, DeviceMask) else each
                for name, each in inputs.items()
            }
        site = replace(self, inputs=taken)
        masked = any(hasattr(each, "schedule") for each in inputs.values())
        near = lengths and masked
        specs = [spec for each in graphs for spec in site.kernels(each, near=near)]
        if built:  # which attention runs then is another one
            specs = [spec for spec in specs if not spec.name.startswith("attention")]
        if lengths:
            for each in graphs:
                left = each.left_to_the_model()
                specs += of_lengths.kernels(left, self.sizes, self.dtype, facts)
                normed = (piece.nodes[1] for piece in each.fused if is_normed(piece.nodes))
                specs += of_lengths.norm_kernels(normed, self.sizes, self.dtype, facts)
            if not built and not masked:
                specs += self._attention(graphs)
        return specs

    def _attention(self, graphs: Iterable[Lowered]) -> Iterator[KernelSpec]:
        """Yield what each distinct attention asks for at some lengths of the class."""
        most = shapes_class(self.sizes).get("seq", 0)
        for chain in (Chain(each.graph) for each in graphs):
            places = (at for at, node in enumerate(chain.ops) if node.op == "attention")
            for at in {chain.digest(at, at + 1): at for at in places}.values():
                alone = Lowered(lower_one(chain, at, at + 1)[0], ())
                for seq in range(most, most // 2, -max(most // 16, 1)):
                    named = {dim: seq for dim in ("seq", "keys") if dim in self.sizes}
                    yield from replace(self, sizes={**self.sizes, **named}).kernels(alone)

    def _run_of(self, lowered: Lowered) -> Callable[[], Any]:
        executor = Executor(
            lowered.graph,
            backend=self.backend,
            dtype=self.dtype,
            device=self.device,
            fused=lowered.fused,
            uploads=self.uploads,
        )
        inputs = example_inputs(lowered.graph, self.sizes, self.inputs, self.dtype, self.device)
        return lambda: executor.run(inputs)


def _is_known(given: Any) -> bool:
    """Whether an input is a mask that has its lists, or an array of lengths."""
    if isinstance(given, BsrMask | MaskStack | DeviceMask):
        return True
    return getattr(getattr(given, "dtype", None), "kind", "") in ("i", "u")


def wall_clock(run: Callable[[], Any], *, least: int = 3, enough: float = 0.05) -> float:
    """Return the least of several times of a call on the host, seconds."""
    run()
    best, spent, count = float("inf"), 0.0, 0
    while count < least or (spent < enough and count < 50):
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent, count = min(best, took), spent + took, count + 1
    return best


class PieceSpace:
    """The segments within one piece of a chain that there is a kernel for; see `ledger.Space`.

    Parameters
    ----------
    chain : Chain
    piece : Piece
        Spans are counted from its start.
    site : Site
    """

    def __init__(self, chain: Chain, piece: Piece, site: Site) -> None:
        self._chain, self._piece, self._site = chain, piece, site
        self._left: dict[str, tuple[Graph, list[Node], Kernel | None]] = {}
        self._segments = [
            (start - piece.start, stop - piece.start)
            for start, stop in chain.segments()
            if piece.start <= start and stop <= piece.stop
        ]
        self._segments = [span for span in self._segments if self._lowered(span)[2] is not None]

    @property
    def kinds(self) -> Sequence[str]:
        """The class of each operator."""
        return self._chain.kinds[self._piece.start : self._piece.stop]

    def segments(self) -> Sequence[Span]:
        """Return the runs that fit a template and a kernel."""
        return self._segments

    def key(self, span: Span) -> str:
        """Return the digest of a segment."""
        return self._chain.digest(*self._there(span))

    def settings(self, span: Span) -> Sequence[Setting]:
        """Return what the segment's kernel takes."""
        _, nodes, kernel = self._lowered(span)
        if kernel is None:
            return ()
        return kernel.settings(nodes, self._site.sizes, self._site.machine)

    def predicted(self, span: Span, setting: Setting) -> float:
        """Return the time by analysis."""
        _, nodes, kernel = self._lowered(span)
        if kernel is None:
            return float("inf")
        site = self._site
        return kernel.seconds(nodes, site.sizes, site.itemsize, site.machine, setting)

    def measure(self, span: Span, setting: Setting) -> float:
        """Return the time by the clock, or by analysis where there is none."""
        if self._site.stopwatch is None:
            return self.predicted(span, setting)
        return self._site.seconds(self._set(span, setting))

    def ways(self, budget: Budget | None = None) -> Iterator[Lowered]:
        """Yield distinct segments at all their settings.

        With a budget at those alone that a search is likely to time: segments that are not of the
        rules at the one that analysis holds best, as they are timed at others only if they win at
        that.
        """
        rules = {self.key(span) for span in self.rules()}
        for key, span in {self.key(span): span for span in self._segments}.items():
            settings = self.settings(span)
            if budget is not None:
                settings = settings[: budget.choices if key in rules else 1]
            for setting in settings:
                yield self._set(span, setting)

    def _set(self, span: Span, setting: Setting) -> Lowered:
        graph, nodes, kernel = self._lowered(span)
        return Lowered(graph, () if kernel is None else fused_by(kernel, nodes, setting))

    def rules(self) -> list[Span]:
        """Return the scheme of the exact rewrites: as much as is left as one operator.

        Or as is run by a kernel that is sure to be faster.
        """
        legal, spans, at = set(self._segments), [], 0
        while at < len(self.kinds):
            stops = [span[1] for span in legal if span[0] == at and self._is_rule(span)]
            spans.append((at, max(stops)))
            at = spans[-1][1]
        return spans

    def _is_rule(self, span: Span) -> bool:
        _, nodes, kernel = self._lowered(span)
        if len(nodes) == 1 or kernel is None or kernel.sure is None:
            return len(nodes) == 1
        return kernel.sure(nodes, self._site.sizes, self._site.machine)

    def names(self, span: Span) -> str:
        """Return the operators of a segment for people."""
        start, stop = self._there(span)
        return " + ".join(node.op for node in self._chain.ops[start:stop])

    def _there(self, span: Span) -> Span:
        return span[0] + self._piece.start, span[1] + self._piece.start

    def _lowered(self, span: Span) -> tuple[Graph, list[Node], Kernel | None]:
        key = self.key(span)
        if key not in self._left:
            graph, nodes = lower_one(self._chain, *self._there(span))
            self._left[key] = graph, nodes, kernel_of(nodes, self._site.backend)
        return self._left[key]
