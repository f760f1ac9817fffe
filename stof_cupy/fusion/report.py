"""What a search tried, what won and why: as text, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stof_cupy.fusion.kernels import Setting
from stof_cupy.fusion.pieces import Piece
from stof_cupy.fusion.scheme import Scheme
from stof_cupy.fusion.search import Outcome
from stof_cupy.masks.drawing import check_picture

__all__ = ["PieceReport", "Report"]


@dataclass(frozen=True)
class PieceReport:
    """One piece of a graph: its scheme, that of the rules, and the way there.

    Attributes
    ----------
    piece : Piece
    ops : tuple of str
    scheme, rules : Scheme
    settings : tuple of Setting
    outcome : Outcome or None
        None: nothing was searched.
    cached : bool
        Whether the scheme comes from the cache.
    why : tuple of str
        What was gained where the scheme is not the rules'.
    """

    piece: Piece
    ops: tuple[str, ...]
    scheme: Scheme
    rules: Scheme
    settings: tuple[Setting, ...]
    outcome: Outcome | None
    cached: bool
    why: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as lines for people."""
        copies = f", {self.piece.copies} times" if self.piece.copies > 1 else ""
        lines = [f"operators {self.piece.start} to {self.piece.stop - 1}{copies}"]
        parts = (" ".join(self.ops[start:stop]) for start, stop in self.scheme.spans())
        lines.append(f"  {' | '.join(parts)}")
        lines.append(f"  scheme {self.scheme}  ({self.scheme.hex}), by rules {self.rules}")
        if self.cached:
            lines.append("  from the cache")
        if self.outcome is not None:
            tried, kept = len(self.outcome.trials), sum(t.kept for t in self.outcome.trials)
            lines.append(
                f"  {tried} schemes tried, {kept} kept, {self.outcome.timed} settings timed, "
                f"{self.outcome.pruned} ruled out by analysis"
            )
            for trial in self.outcome.trials:
                mark = "+" if trial.kept else "-"
                lines.append(f"    {mark} {trial.stage:8} {trial.scheme}  {_us(trial.seconds)}")
        lines += [f"  {line}" for line in self.why]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """How a graph came to run as it does.

    Attributes
    ----------
    graph, machine : str
    sizes : mapping of str to int
    mode : str
        The word of ``tune=``.
    timed : bool
        By the clock, or by analysis.
    scheme : Scheme
        Of the whole graph.
    pieces : tuple of PieceReport
    spent : float
        Seconds that tuning took.
    seconds, rules_seconds : float or None
        Of the whole graph as tuned and by the rules alone, if they were timed.
    """

    graph: str
    machine: str
    sizes: Mapping[str, int]
    mode: str
    timed: bool
    scheme: Scheme
    pieces: tuple[PieceReport, ...]
    spent: float
    seconds: float | None
    rules_seconds: float | None

    def __str__(self) -> str:
        """Return it as text for people."""
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        how = "by the clock" if self.timed else "by analysis"
        lines = [f"{self.graph} on {self.machine}, {sizes}: tune={self.mode!r} {how}"]
        if self.mode != "off":
            lines.append(f"tuned in {self.spent:.2f} s")
        if self.seconds is not None and self.rules_seconds is not None:
            won = "as tuned" if self.seconds <= self.rules_seconds else "by the rules"
            lines.append(
                f"the whole: {_us(self.seconds)} as tuned, {_us(self.rules_seconds)} by the rules; "
                f"it runs {won}"
            )
        return "\n".join([*lines, *map(str, self.pieces)])

    def save_plot(self, path: str | Path) -> None:
        """Draw the trials of each piece, and the segments of its scheme, to a .png, .svg or .pdf.

        Raises
        ------
        MissingDependencyError
            Without matplotlib (extra ``plot``).
        ArgumentError
            If matplotlib writes no such files.
        """
        check_picture(path)
        from matplotlib.figure import Figure

        rows = len(self.pieces)
        figure = Figure(figsize=(11, 1 + 2.6 * rows), layout="constrained")
        axes = figure.subplots(rows, 2, squeeze=False, width_ratios=(2, 3))
        for (left, right), piece in zip(axes, self.pieces, strict=True):
            _draw_segments(left, piece)
            _draw_trials(right, piece)
        figure.suptitle(str(self).splitlines()[0])
        figure.savefig(path, dpi=120)


def _us(seconds: float) -> str:
    return "not timed" if math.isinf(seconds) else f"{seconds * 1e6:.1f} us"


_COLOURS = ("#4477aa", "#ee8866")


def _draw_segments(axes: Any, piece: PieceReport) -> None:
    """Draw the operators from top to bottom, in the colours of the scheme's digits."""
    bits = piece.scheme.bits
    axes.barh(range(len(bits)), [1] * len(bits), 0.9, color=[_COLOURS[bit] for bit in bits])
    axes.set_yticks(range(len(bits)), piece.ops, fontsize=7)
    axes.invert_yaxis()
    axes.set_xticks([])
    copies = f" x {piece.piece.copies}" if piece.piece.copies > 1 else ""
    axes.set_title(f"{piece.scheme.hex}{copies}", fontsize=9)


def _draw_trials(axes: Any, piece: PieceReport) -> None:
    trials = () if piece.outcome is None else piece.outcome.trials
    shown = [trial for trial in trials if math.isfinite(trial.seconds)]
    if not shown:
        axes.set_axis_off()
        return
    for kept, colour, label in ((False, "#bbbbbb", "taken back"), (True, "#228833", "kept")):
        part = [(t.timed, t.seconds * 1e6) for t in shown if t.kept is kept]
        axes.scatter([x for x, _ in part], [y for _, y in part], s=14, color=colour, label=label)
    best, line = math.inf, []
    for trial in shown:
        best = min(best, trial.seconds * 1e6)
        line.append(best)
    axes.step([t.timed for t in shown], line, where="post", color="#228833", lw=1)
    axes.set_xlabel("settings timed", fontsize=8)
    axes.set_ylabel("us", fontsize=8)
    axes.legend(fontsize=7)
