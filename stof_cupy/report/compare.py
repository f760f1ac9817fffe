"""What moved between two results files, in ratios to peers, beyond the noise of their rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.report.cells import Cell, of_every_run
from stof_cupy.report.noise import joint, median_noise, student
from stof_cupy.report.results import Results, Timing
from stof_cupy.report.tables import Table, number

__all__ = ["Comparison", "Move", "compare"]

_CHANCE = 0.05
"""Of naming any cell at all when nothing moved."""

_MAD = 0.6745
"""Median of absolute deviations of a normal distribution, in standard deviations."""

_FEW = 8
"""Peers' times from which noise between runs is estimated; cells of which a mean is compared."""

_LISTED = 8
"""Names that are written out in a note; of more, how many a benchmark and peer have."""


@dataclass(frozen=True)
class Move:
    """A ratio before and after.

    Attributes
    ----------
    name : str
        Benchmark, parameters, and whose times are in the ratio.
    before, after : float
        How many times as fast as the peer ours was.
    noise : float
        Standard error of the logarithm of ``after / before``.
    limit : float
        What that logarithm reaches by chance or is not worth a look below.
    """

    name: str
    before: float
    after: float
    noise: float
    limit: float

    @property
    def log(self) -> float:
        """Logarithm of ``after / before``."""
        return math.log(self.after / self.before)

    @property
    def moved(self) -> bool:
        """Whether it moved beyond noise."""
        return abs(self.log) > self.limit

    @property
    def worse(self) -> bool:
        """Whether it moved down beyond noise."""
        return self.log < -self.limit


@dataclass(frozen=True)
class Comparison:
    """All ratios that two files share, the worst first.

    Attributes
    ----------
    moves : tuple of Move
    means : tuple of Move
        The geometric means over a benchmark's cells, by peer, where there are many.
    missing : tuple of str
        What the old file has a ratio of and the new one has not.
    lost : tuple of str
        What is missing because ours failed, or was not measured where the peer was.
    notes : tuple of str
        What makes the files hard to compare.
    """

    moves: tuple[Move, ...]
    means: tuple[Move, ...]
    missing: tuple[str, ...]
    lost: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether any ratio moved down beyond noise, or ours has no time any more."""
        return bool(self.lost) or any(move.worse for move in (*self.means, *self.moves))

    @property
    def table(self) -> Table:
        """What moved; the notes say what did not."""
        rows = tuple(_row(move) for move in (*self.means, *self.moves) if move.moved)
        down = sum(move.worse for move in self.moves)
        moved = sum(move.moved for move in self.moves)
        notes = [f"{down} worse, {moved - down} better, {len(self.moves) - moved} within noise."]
        if self.lost:
            notes.append(f"Ours was not measured: {_listed(self.lost)}.")
        if gone := [name for name in self.missing if name not in self.lost]:
            notes.append(f"No longer measured: {_listed(gone)}.")
        columns = ("ours against", "before", "after", "moved", "noise")
        return Table(columns, rows, (*notes, *self.notes))


def _row(move: Move) -> tuple[str, ...]:
    return (
        move.name,
        f"{number(move.before)}x",
        f"{number(move.after)}x",
        f"{math.expm1(move.log):+.1%}",
        f"{abs(math.expm1(math.copysign(move.limit, move.log))):.1%}",
    )


def _listed(names: Sequence[str]) -> str:
    """Return names, or of many how many there are of each benchmark and peer."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    groups = Counter(_group_name(name) for name in names)
    return ", ".join(f"{count} of {group}" for group, count in groups.items())


def compare(old: Results, new: Results, *, least: float = 0.03) -> Comparison:
    """Compare two files in their ratios to peers.

    Absolute times differ between cards, clocks and drivers by a few per cent; a peer that was timed
    in the same process differs with them. Cells without a peer are not compared.

    Parameters
    ----------
    old, new : Results
    least : float
        Share that is not worth a look, however little noise there is.

    Notes
    -----
    The noise of a median is estimated from the spread of its rounds. Runs differ by more than that,
    where memory lies elsewhere or the clock has another temperature: how far the peers' times
    scatter about the change that is common to all of them is added. The limit is a quantile of
    Student's distribution with the degrees of freedom of Welch and Satterthwaite, so chosen that a
    cell is named by chance in one comparison of twenty. A geometric mean over many cells shows what
    is too little to be seen in one; its noise is estimated from how far they scatter about it.

    Where both files have times of one machine, only those are compared; else the newest machine of
    one with the newest of the other, and a note says that machines differ.

    Raises
    ------
    ArgumentError
        If `least` is negative, or the files have no ratio in common.
    """
    if not least >= 0:
        raise ArgumentError(mismatch("least", least, "0 or more"))
    left_out, old, new = _comparable(old, new)
    before, after = _ratios(old), _ratios(new)
    shared = [name for name in before if name in after]
    if not shared:
        hint = "absolute times are not compared"
        raise ArgumentError(mismatch("new", "no ratio to a peer that old has", "some", hint))
    groups: dict[str, list[str]] = {}
    for name in shared:
        groups.setdefault(_group_name(name), []).append(name)
    groups = {group: names for group, names in groups.items() if len(names) >= _FEW}
    chance = _CHANCE / (len(shared) + len(groups))
    between = _between_runs([(before[name][1], after[name][1]) for name in shared])
    moves = {
        name: _move(name, before[name], after[name], least, chance, between) for name in shared
    }
    means = [_mean(at, [moves[n] for n in names], least, chance) for at, names in groups.items()]
    missing = tuple(name for name in before if name not in after)
    lost = tuple(name for name in missing if _is_lost(before[name], new))
    ranked = [tuple(sorted(each, key=lambda move: move.log)) for each in (moves.values(), means)]
    return Comparison(ranked[0], ranked[1], missing, lost, (*_notes(old, new), *left_out))


_Pair = tuple[Timing, Timing]


def _comparable(old: Results, new: Results) -> tuple[tuple[str, ...], Results, Results]:
    """Return what both files say of machines that can be compared, after a note on the others."""
    every = [[run.machine for run in each.runs] for each in (old, new)]
    both = set(every[0]) & set(every[1])
    taken = [both or set(machines[-1:]) for machines in every]
    others = {*every[0], *every[1]} - taken[0] - taken[1]
    note = (f"Of one file alone, and not compared: {', '.join(sorted(others))}.",) if others else ()
    return note, old.on(taken[0]), new.on(taken[1])


def _ratios(results: Results) -> dict[str, _Pair]:
    """Return ours and the peer's time by what they are of: of the newest run that has both."""
    found: dict[str, _Pair] = {}
    several = len(_machines(results)) > 1
    for cell in sorted(of_every_run(results.timings), key=lambda cell: cell.run.time):
        where = f" on {cell.run.machine}" if several else ""
        for ours in (each for each in cell.timings if each.is_ours):
            for peer in (each for each in cell.timings if not each.is_ours):
                found[_name(cell, ours, peer) + where] = (ours, peer)
    return found


def _name(cell: Cell, ours: Timing, peer: Timing) -> str:
    params = " ".join(value for _, value in cell.key)
    mine = "" if ours.way == "ours" else f", {ours.way}"
    return f"{cell.bench.removeprefix('bench_')} {params}{mine} / {peer.way}"


def _group_name(name: str) -> str:
    """Return a name without the parameters: the benchmark, and whose times are in the ratio."""
    cell, _, peer = name.rpartition(" / ")
    bench, _, rest = cell.partition(" ")
    _, comma, mine = rest.partition(", ")
    return f"{bench}{comma}{mine} / {peer}"


def _is_lost(pair: _Pair, new: Results) -> bool:
    """Whether ours was not measured where the peer was, or failed, which takes peers with it."""
    ours, peer = pair
    runs = new if ours.run.machine not in _machines(new) else new.on({ours.run.machine})
    there = {each.way for each in runs.of(ours.bench) if each.key == ours.key}
    failed = {(skip.bench, skip.case) for skip in runs.skips if skip.failed}
    return ours.way not in there and (peer.way in there or (ours.bench, ours.case) in failed)


def _between_runs(peers: Sequence[_Pair]) -> tuple[float, int]:
    """Return the variance of a logarithm between runs, beyond that of rounds; from so many times.

    A peer's code is the same in both, or other in all of its cells: what they moved by, but for
    the peer's median, is noise.
    """
    moved = {(old.bench, old.key, old.way): (old, new) for old, new in peers}
    logs: dict[str, list[float]] = {}
    for old, new in moved.values():
        logs.setdefault(old.way, []).append(math.log(new.p50 / old.p50))
    far = [abs(log - median(each)) for each in logs.values() if len(each) >= _FEW for log in each]
    if not far:
        return 0.0, 0
    rounds = (median_noise(a) ** 2 + median_noise(b) ** 2 for a, b in moved.values())
    return max((median(far) / _MAD) ** 2 - median(rounds), 0.0), len(far)


def _move(
    name: str,
    before: _Pair,
    after: _Pair,
    least: float,
    chance: float,
    between: tuple[float, int],
) -> Move:
    ratios = [peer.p50 / ours.p50 for ours, peer in (before, after)]
    noise, freedom = joint((*before, *after), between)
    limit = max(math.log1p(least), noise * student(1 - chance / 2, freedom))
    return Move(name, ratios[0], ratios[1], noise, limit)


def _mean(group: str, moves: Sequence[Move], least: float, chance: float) -> Move:
    """Return what the geometric mean of some ratios moved by."""
    noise = stdev(move.log for move in moves) / math.sqrt(len(moves))
    limit = max(math.log1p(least), noise * student(1 - chance / 2, len(moves) - 1))
    before = math.exp(fmean(math.log(move.before) for move in moves))
    after = math.exp(fmean(math.log(move.after) for move in moves))
    return Move(f"{group}, geomean of {len(moves)} cells", before, after, noise, limit)


def _notes(old: Results, new: Results) -> tuple[str, ...]:
    notes = []
    for what in ("machine", "driver"):
        was, now = ({getattr(run, what) for run in each.runs} for each in (old, new))
        if was != now:
            names = [", ".join(sorted(each)) for each in (was, now)]
            notes.append(f"The {what} differs: {names[0]} before, {names[1]} now.")
    if _machines(old) != _machines(new):
        notes.append("Between machines ratios to peers differ with the same code, too.")
    was, now = ({item for run in each.runs for item in run.packages.items()} for each in (old, new))
    changed = dict(was - now).keys() & dict(now - was).keys() - {"stof-cupy"}
    if changed:
        notes.append(f"Other versions: {', '.join(sorted(changed))}.")
    return tuple(notes)


def _machines(results: Results) -> set[str]:
    return {run.machine for run in results.runs}
