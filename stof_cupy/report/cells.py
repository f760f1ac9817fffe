"""Cells: one thing to do, done by us and by others in one run; and what their ratios come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stof_cupy.report.results import Run, Timing

__all__ = ["Cell", "Summary", "joined", "of_every_run"]


@dataclass(frozen=True)
class Cell:
    """Times of one thing to do, all taken in one run.

    Attributes
    ----------
    bench : str
    key : tuple of pairs of str
        See `Timing`.
    run : Run
    timings : tuple of Timing
        One a way.
    """

    bench: str
    key: tuple[tuple[str, str], ...]
    run: Run
    timings: tuple[Timing, ...]

    def timing(self, way: str) -> Timing | None:
        """Return one way's, or None."""
        return next((each for each in self.timings if each.way == way), None)

    def best(self, peers: Sequence[str] = ()) -> Timing | None:
        """Return the fastest peer's, of those named or of all; None if none ran."""
        others = [
            each for each in self.timings if (each.way in peers if peers else not each.is_ours)
        ]
        return min(others, key=lambda each: each.p50, default=None)

    def mine(self, way: str = "") -> Timing | None:
        """Return a way of ours; by default ``ours``, or what a user of a mask starts from."""
        wanted = (way,) if way else ("ours", "measured")
        return next((each for name in wanted if (each := self.timing(name)) is not None), None)

    def ratio(self, ours: str = "", peers: Sequence[str] = ()) -> float | None:
        """Return how many times as fast as the best peer one of ours is; None without both."""
        mine, best = self.mine(ours), self.best(peers)
        return None if mine is None or best is None else best.p50 / mine.p50

    def __getitem__(self, name: str) -> str:
        """Return a parameter, or what was noted by that name, as text; "" if there is none.

        ``machine`` and ``benchmark`` are always there.
        """
        if name == "machine":
            return self.run.machine
        if name == "benchmark":
            return self.bench.partition("::")[2].removeprefix("bench_")
        noted = (timing[name] for timing in self.timings)
        return str(next((value for value in noted if value is not None), ""))


def of_every_run(timings: Iterable[Timing]) -> list[Cell]:
    """Return the cells of several runs, one for each run that has it; those of a cell together."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], dict[Run, dict[str, Timing]]] = {}
    for each in timings:
        found.setdefault((each.bench, each.key), {}).setdefault(each.run, {})[each.way] = each
    return [
        Cell(bench, key, run, tuple(ways.values()))
        for (bench, key), runs in found.items()
        for run, ways in runs.items()
    ]


def joined(timings: Iterable[Timing]) -> list[Cell]:
    """Return the cells of several runs, each from one run alone.

    Where runs on one machine have the same cell, the one in which most ways ran is taken, of equals
    the newest: a ratio is never of times from different runs.
    """
    best: dict[tuple[str, tuple[tuple[str, str], ...], str], Cell] = {}
    for cell in of_every_run(timings):
        at = cell.bench, cell.key, cell.run.machine
        rival = best.get(at)
        if rival is None or _rank(cell) > _rank(rival):
            best[at] = cell
    return list(best.values())


def _rank(cell: Cell) -> tuple[int, str]:
    return len(cell.timings), cell.run.time


@dataclass(frozen=True)
class Summary:
    """What the ratios of some cells come to.

    Attributes
    ----------
    count : int
        Cells with a ratio.
    geomean, worst, best : float
    lost : int
        Cells in which a peer is faster.
    """

    count: int
    geomean: float
    worst: float
    best: float
    lost: int

    @classmethod
    def of(cls, cells: Iterable[Cell], ours: str = "", peers: Sequence[str] = ()) -> Summary | None:
        """Return the summary of all cells that have a ratio; None if none has.

        Examples
        --------
        >>> run = Run("x.json", "2026-11-28", "", "", False, "a GPU", "", {})
        >>> def cell(ours, theirs):
        ...     pairs = (("ours", ours), ("Flex", theirs))
        ...     timings = (Timing(run, "b", way, (), t, t, t, 5, {}) for way, t in pairs)
        ...     return Cell("b", (), run, tuple(timings))
        >>> Summary.of([cell(1.0, 2.0), cell(2.0, 1.0)])
        Summary(count=2, geomean=1.0, worst=0.5, best=2.0, lost=1)
        """
        ratios = [ratio for cell in cells if (ratio := cell.ratio(ours, peers)) is not None]
        if not ratios:
            return None
        mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
        lost = sum(ratio < 1 for ratio in ratios)
        return cls(len(ratios), mean, min(ratios), max(ratios), lost)

    def __str__(self) -> str:
        """Return it in a line."""
        return (
            f"{self.count} cells, geomean {self.geomean:.2f}x, "
            f"worst {self.worst:.2f}x, best {self.best:.2f}x, slower in {self.lost}"
        )
