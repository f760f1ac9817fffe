"""Pictures of masks, with matplotlib (extra ``plot``)."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy.errors import ArgumentError, MissingDependencyError, mismatch
from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.bsr import BsrMask, as_mask
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.tiles import FULL, grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["check_picture", "check_zoom", "plot", "save_plot"]

_PIXELS = 1024  # the most tiles drawn one by one along an axis
_ELEMENTS = 2**22  # the most drawn one by one
_SIZE = (6.4, 6.4)  # inches
_LINES = 64  # the most tiles along an axis between which lines are drawn

_TILE_COLOURS = {"empty": "#eef0f2", "part": "#e8963a", "full": "#1f4e79"}
_ELEMENT_COLOURS = {
    "empty tile": "#eef0f2",
    "part tile, masked": "#fbe3c6",
    "part tile, kept": "#e8963a",
    "full tile": "#1f4e79",
}


def plot(
    mask: Any, ax: Any = None, *, zoom: tuple[tuple[int, int], tuple[int, int]] | None = None
) -> Any:
    """Draw the tiles of a mask, coloured full, part and empty; or the elements of a region.

    Queries run down and keys to the right. Of a mask with more than 1024 tiles along an axis a
    pixel shows several, full or empty only if all of them are.

    Parameters
    ----------
    mask : BsrMask, Pattern, bool array (queries, keys), or scipy.sparse matrix
        What to draw.
    ax : matplotlib.axes.Axes, optional
        Where; default new ones of ``matplotlib.pyplot``.
    zoom : pair of pairs of int, optional
        Range of queries and range of keys, half-open, whose elements are drawn one by one; 2**22
        of them at most.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    ArgumentError
        If `zoom` is not two ranges inside of the mask, not empty and not too large.

    Examples
    --------
    >>> import pytest; _ = pytest.importorskip("matplotlib").use("agg")
    >>> from stof_cupy import masks
    >>> pattern = masks.longformer(4096, window=256, global_tokens=64)
    >>> axes = plot(pattern)
    >>> axes = pattern.plot(zoom=((0, 300), (200, 500)))
    >>> axes.get_title()
    'queries 0-299, keys 200-499'
    """
    _require()
    given = mask if isinstance(mask, Pattern) else as_mask(mask)
    check_zoom(zoom, given.shape)  # a pattern is yet to be lowered
    lowered = as_mask(given)
    if zoom is None:
        image, colours = _tile_states(lowered), _TILE_COLOURS
        origin, end = (0, 0), lowered.shape
    else:
        image, colours = _elements(lowered, zoom), _ELEMENT_COLOURS
        origin, end = (zoom[0][0], zoom[1][0]), (zoom[0][1], zoom[1][1])
    ax = _new_axes() if ax is None else ax
    if image.size:
        _draw(ax, image, list(colours.values()), origin, end, whole_tiles=zoom is None)
    counts = _counts(lowered) if zoom is None else {}
    _legend(ax, {f"{name}{counts.get(name, '')}": colour for name, colour in colours.items()})
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    ax.set_title(
        f"{lowered.shape[0]} x {lowered.shape[1]}, density {lowered.density:.3g}"
        if zoom is None
        else f"queries {origin[0]}-{end[0] - 1}, keys {origin[1]}-{end[1] - 1}"
    )
    return ax


def save_plot(
    mask: Any, path: str | Path, *, zoom: tuple[tuple[int, int], tuple[int, int]] | None = None
) -> None:
    """Write what `plot` draws to a file; its suffix says how, ``.png``, ``.svg`` or ``.pdf``.

    Raises
    ------
    MissingDependencyError, ArgumentError
        As `plot`, and if matplotlib writes no such files.

    Examples
    --------
    >>> import pytest; _ = pytest.importorskip("matplotlib")
    >>> import pathlib, tempfile
    >>> from stof_cupy import masks
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_plot(masks.causal(1000), f"{folder}/causal.svg")
    ...     sorted(path.name for path in pathlib.Path(folder).iterdir())
    ['causal.svg']
    """
    check_picture(path)
    from matplotlib.figure import Figure  # no pyplot: needs no display and keeps no state

    figure = Figure(figsize=_SIZE, layout="constrained")
    plot(mask, figure.add_subplot(), zoom=zoom)
    figure.savefig(path, dpi=160)


def check_picture(path: str | Path) -> None:
    """Check a file to draw to, before there is a mask.

    Raises
    ------
    MissingDependencyError, ArgumentError
        As `save_plot`.
    """
    _require()
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.get_supported_filetypes()
    if not isinstance(path, str | Path) or Path(path).suffix[1:].lower() not in kinds:
        raise ArgumentError(mismatch("path", path, f"one that ends in .{', .'.join(kinds)}"))


def check_zoom(zoom: Any, shape: tuple[int, int]) -> None:
    """Check a region to draw of a mask of `shape`, before there is one.

    Raises
    ------
    ArgumentError
        Unless `zoom` is None or as `plot` has it.
    """
    if zoom is None:
        return
    known = isinstance(zoom, tuple | list) and len(zoom) == 2 and all(map(_is_range, zoom))
    inside = known and all(
        0 <= first < stop <= size for (first, stop), size in zip(zoom, shape, strict=True)
    )
    if not inside or math.prod(stop - first for first, stop in zoom) > _ELEMENTS:
        expected = f"ranges (first, last + 1) inside of {shape}, 1 to 2**22 elements"
        raise ArgumentError(mismatch("zoom", zoom, expected))


def _is_range(pair: Any) -> bool:
    return (
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(isinstance(end, int | np.integer) for end in pair)
    )


def _require() -> None:
    try:
        import_module("matplotlib")
    except ImportError as absent:
        hint = "pip install 'stof-cupy[plot]'"
        raise MissingDependencyError(
            mismatch("matplotlib", "not installed", "installed", hint)
        ) from absent


def _new_axes() -> Any:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=_SIZE, layout="constrained")[1]


def _tile_states(mask: BsrMask) -> NDArray[np.uint8]:
    """Return the image of a mask's tiles, `runs.EMPTY`, `runs.PART` or `runs.FULL` a pixel."""
    size = grid(mask.shape)
    height, width = (min(n, _PIXELS) for n in size)
    # Which pixel each tile row and column falls into, and how many tiles fall into a pixel.
    row, col = (
        np.arange(n) * pixels // max(n, 1) for n, pixels in zip(size, (height, width), strict=True)
    )
    total = np.outer(np.bincount(row, minlength=height), np.bincount(col, minlength=width))
    pixel = np.repeat(row, np.diff(mask.load_row_ptr)) * width + col[mask.load_col_idx]
    listed = np.bincount(pixel, minlength=height * width).reshape(height, width)
    full = np.bincount(pixel[mask.bitmap_id == FULL], minlength=height * width)
    states = np.where(full.reshape(height, width) == total, runs.FULL, runs.PART)
    return np.where(listed == 0, runs.EMPTY, states).astype(np.uint8)


def _elements(mask: BsrMask, zoom: tuple[tuple[int, int], tuple[int, int]]) -> NDArray[np.uint8]:
    """Return the image of a region's elements: empty tile, masked, kept, full tile."""
    (top, bottom), (left, right) = zoom
    kept = mask[top:bottom, left:right].toarray()
    rows = np.arange(top // TILE, -(-bottom // TILE))
    states = np.zeros((len(rows), grid(mask.shape)[1]), np.uint8)
    for at, row in enumerate(rows):
        listed = slice(mask.load_row_ptr[row], mask.load_row_ptr[row + 1])
        full = mask.bitmap_id[listed] == FULL
        states[at, mask.load_col_idx[listed]] = np.where(full, runs.FULL, runs.PART)
    tile = states[np.arange(top, bottom) // TILE - top // TILE][:, np.arange(left, right) // TILE]
    return np.choose(tile, (0, kept.astype(np.uint8) + 1, 3)).astype(np.uint8)


def _counts(mask: BsrMask) -> dict[str, str]:
    full = int((mask.bitmap_id == FULL).sum())
    rows, cols = grid(mask.shape)
    counts = {"empty": rows * cols - mask.ntiles, "part": mask.ntiles - full, "full": full}
    return {name: f": {count:,} tiles" for name, count in counts.items()}


def _draw(
    ax: Any,
    image: NDArray[np.uint8],
    colours: list[str],
    origin: tuple[int, int],
    end: tuple[int, int],
    *,
    whole_tiles: bool,
) -> None:
    """Draw an image over the positions from `origin` to `end`; its tiles may stick out."""
    from matplotlib.colors import ListedColormap

    (top, left), (bottom, right) = origin, end
    rows, cols = grid(end) if whole_tiles else (0, 0)
    extent = (left, cols * TILE or right, rows * TILE or bottom, top)
    ax.imshow(
        image,
        cmap=ListedColormap(colours),
        vmin=0,
        vmax=len(colours) - 1,
        extent=extent,
        aspect="equal",
        interpolation="nearest",
    )
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    lines = [range(-(-a // TILE) * TILE, b, TILE) for a, b in ((left, right), (top, bottom))]
    if max(map(len, lines)) <= _LINES:
        style = {"color": "white", "linewidth": 0.6}
        for draw, positions in zip((ax.axvline, ax.axhline), lines, strict=True):
            for position in positions:
                draw(position, **style)


def _legend(ax: Any, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, edgecolor="#888", label=name) for name, c in colours.items()]
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1),
        ncols=2 if len(handles) > 3 else 3,
        frameon=False,
        fontsize="small",
    )
