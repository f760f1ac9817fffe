"""Where the time of a run goes, operator by operator."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stof_cupy.graph import Node
from stof_cupy.graph.node import call
from stof_cupy.graph.steps import Fused

__all__ = ["Clock", "Line", "Profile", "clock_of"]


@dataclass(frozen=True)
class Line:
    """One operator of a run, or several that run as one.

    Attributes
    ----------
    node : Node
        The last of them.
    seconds : float
        Of one run, the mean.
    before : tuple of Node
        The others, in order.
    """

    node: Node
    seconds: float
    before: tuple[Node, ...] = ()

    @property
    def op(self) -> str:
        """The names of the operators: ``"gemm + layer_norm"``."""
        return " + ".join(node.op for node in (*self.before, self.node))


@dataclass(frozen=True)
class Profile:
    """Times of all operators of a run, in order.

    Attributes
    ----------
    lines : tuple of Line
    seconds : float
        Of one run by the host's clock, with what lies between the operators.
    """

    lines: tuple[Line, ...]
    seconds: float

    def of(self, fused: Iterable[Fused]) -> Profile:
        """Return it with all operators named that run as one."""
        before = {each.nodes[-1]: each.nodes[:-1] for each in fused}
        lines = (replace(line, before=before.get(line.node, ())) for line in self.lines)
        return replace(self, lines=tuple(lines))

    def by_op(self) -> dict[str, float]:
        """Return seconds by operator name, the most first."""
        total: dict[str, float] = {}
        for line in self.lines:
            total[line.op] = total.get(line.op, 0.0) + line.seconds
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        """Return sums by operator, then every operator, for people."""
        busy = sum(line.seconds for line in self.lines) or 1.0
        lines = [f"{self.seconds * 1e3:.3f} ms a run, {busy * 1e3:.3f} ms of it in operators"]
        for op, seconds in self.by_op().items():
            count = sum(line.op == op for line in self.lines)
            lines.append(f"  {seconds * 1e3:9.3f} ms {seconds / busy:6.1%}  {count} x {op}")
        for line in self.lines:
            calls = " | ".join(call(node) for node in (*line.before, line.node))
            lines.append(f"  {line.seconds * 1e6:9.1f} us  {calls}")
        return "\n".join(lines)


class Clock(Protocol):
    """Times what runs in its contexts."""

    def __call__(self, node: Node) -> AbstractContextManager[Any]:
        """Return a context for the run of `node`."""

    def profile(self, repeat: int, seconds: float) -> Profile:
        """Return the means of `repeat` runs that took `seconds` together."""


def clock_of(device: int | None) -> Clock:
    """Return the clock of a CUDA device, or of the host for None."""
    return _HostClock() if device is None else _CudaClock()


def _means(nodes: Sequence[Node], times: Sequence[float], repeat: int) -> tuple[Line, ...]:
    """Return the mean time of each operator; runs follow each other."""
    count = len(nodes) // repeat
    return tuple(Line(nodes[i], sum(times[i::count]) / repeat) for i in range(count))


class _HostClock:
    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._times: list[float] = []

    @contextmanager
    def __call__(self, node: Node) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._times.append(time.perf_counter() - start)
        self._nodes.append(node)

    def profile(self, repeat: int, seconds: float) -> Profile:
        return Profile(_means(self._nodes, self._times, repeat), seconds / repeat)


class _CudaClock:
    """Events around each operator: what a launch costs the host counts where it is longer."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def __call__(self, node: Node) -> Iterator[None]:
        import cupy

        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        cupy.cuda.nvtx.RangePush(call(node))
        start.record()
        try:
            yield
        finally:
            end.record()
            cupy.cuda.nvtx.RangePop()
        self._events.append((start, end))
        self._nodes.append(node)

    def profile(self, repeat: int, seconds: float) -> Profile:
        import cupy

        cupy.cuda.get_current_stream().synchronize()
        times = [cupy.cuda.get_elapsed_time(*pair) / 1e3 for pair in self._events]
        return Profile(_means(self._nodes, times, repeat), seconds / repeat)
