"""Pictures as data, and their drawing with matplotlib (extra ``plot``)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from stof_cupy.errors import MissingDependencyError, mismatch
from stof_cupy.report.tables import ordered

__all__ = ["Panel", "Picture", "Series", "digest_of", "draw"]

Kind = Literal["bars", "lines"]


@dataclass(frozen=True)
class Series:
    """Points of one colour: what they are over, and how high."""

    name: str
    points: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Picture:
    """What there is to see, and nothing of how it looks.

    Attributes
    ----------
    kind : {"bars", "lines"}
    panels : tuple of Panel
        They share the vertical axis.
    x, y : str
        What the axes are.
    log : bool
        Whether the vertical axis is logarithmic; bars then begin at 1, or at the least height.
    even : bool
        Whether a line is drawn at 1: as fast as each other.
    caption : str
        Card, date and versions.

    Examples
    --------
    >>> picture = Picture("bars", (Panel("causal", (Series("ours", (("1024", 1.5),)),)),), "", "x")
    >>> len(picture.digest)
    16
    """

    kind: Kind
    panels: tuple[Panel, ...]
    x: str
    y: str
    log: bool = False
    even: bool = False
    caption: str = ""

    @property
    def digest(self) -> str:
        """What the picture shows in 16 characters; a drawn file carries it."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:16]


def digest_of(path: Path) -> str:
    """Return the digest of the picture that a file was drawn from; "" if it has none."""
    found = re.search(r"stof-cupy report ([0-9a-f]{16})", path.read_text())
    return found.group(1) if found else ""


# Paul Tol's bright scheme, told apart by colour-blind readers and in grey, and four more.
_COLOURS = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000"),
    *("#ee7733", "#332288", "#994f00", "#99ddbb"),
)
_MARKERS = "osD^vP*Xh<>d"
_PANELS = 4  # in a row
_CHARACTER = 0.07  # inches, of a label
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "stof-cupy",
}


def draw(picture: Picture, path: Path) -> None:
    """Write a picture as .svg.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    try:
        import_module("matplotlib")
    except ImportError as absent:
        hint = "pip install 'stof-cupy[plot]'"
        raise MissingDependencyError(
            mismatch("matplotlib", "not installed", "installed", hint)
        ) from absent
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(len(picture.panels), _PANELS)
    rows = -(-len(picture.panels) // columns)
    with rc_context(_STYLE):
        bars = max((len(series.points) for p in picture.panels for series in p.series), default=0)
        wide = bars * len(_names(picture.panels)) * 0.13 if picture.kind == "bars" else 0.0
        size = (max(4.2, 2.2 * columns, min(wide, 8.8)), 0.9 + 1.8 * rows)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for at, (axis, panel) in enumerate(zip(axes.flat, picture.panels, strict=False)):
            _draw_panel(axis, picture, panel, size[0] / columns - 0.25)
            axis.set_ylabel(picture.y if at % columns == 0 else "")
        _set_heights(axes.flat[0], picture)
        for axis in axes.flat[len(picture.panels) :]:
            axis.set_axis_off()
        _legend(figure, size[0])
        if picture.caption:
            figure.supxlabel(picture.caption, fontsize=6, color="#555555")
        about = f"stof-cupy report {picture.digest}"
        figure.savefig(path, metadata={"Date": None, "Creator": None, "Description": about})


def _draw_panel(axis: Any, picture: Picture, panel: Panel, inches: float) -> None:
    names = ordered(x for series in panel.series for x, _ in series.points)
    every = _names(picture.panels)
    for number, series in enumerate(panel.series):
        look = every.index(series.name)  # the same in all panels
        at = [names.index(x) for x, _ in series.points]
        heights = [y for _, y in series.points]
        colour = _COLOURS[look % len(_COLOURS)]
        if picture.kind == "lines":
            marker = _MARKERS[look % len(_MARKERS)]
            axis.plot(at, heights, color=colour, marker=marker, ms=3.5, lw=1.1, label=series.name)
        else:
            width = 0.8 / len(panel.series)
            left = [x + (number - (len(panel.series) - 1) / 2) * width for x in at]
            axis.bar(left, heights, 0.92 * width, color=colour, label=series.name)
    if picture.even:
        axis.axhline(1, color="#333333", lw=0.7, ls=(0, (4, 2)))
    axis.set_title(fill(panel.title, int(inches / _CHARACTER)))
    axis.set_xlabel(picture.x)
    crowded = sum(len(name) + 1 for name in names) * _CHARACTER > inches
    axis.set_xticks(range(len(names)), names, rotation=30 if crowded else 0)
    if crowded:
        for label in axis.get_xticklabels():
            label.set_horizontalalignment("right")


def _set_heights(axis: Any, picture: Picture) -> None:
    """Say where the vertical axis, which all panels share, begins, and what is marked on it."""
    if not picture.log:
        axis.set_ylim(bottom=0)
        return
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low > 4 else (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.yaxis.set_major_locator(LogLocator(subs=subs if high / low < 500 else (1.0,)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _legend(figure: Any, inches: float) -> None:
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if len(handles) > 1:
        longest = max(map(len, handles)) + 6  # with the mark, and a gap
        columns = max(int(inches / (longest * _CHARACTER)), 1)
        where = "outside upper center"
        figure.legend(list(handles.values()), list(handles), loc=where, ncols=columns)


def _names(panels: Sequence[Panel]) -> list[str]:
    """Return the names of all series, each once."""
    return list(dict.fromkeys(series.name for panel in panels for series in panel.series))
