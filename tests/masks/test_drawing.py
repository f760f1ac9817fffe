"""Pictures: every tile and element has the colour of what it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, MissingDependencyError
from stof_cupy.masks import Pattern

matplotlib = pytest.importorskip("matplotlib")
SHAPES = ((1, 1), (64, 200), (130, 129), (300, 1000))


@pytest.fixture
def ax() -> Any:
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def image(ax: Any) -> np.ndarray:
    return np.asarray(ax.images[0].get_array())


def mixed(sq: int, sk: int) -> Pattern:
    return masks.sliding_window(sq, sk, window=100, align="top-left") & ~masks.blocks(
        (sq, sk), [0], [0], block=64
    )


def tile_states(array: np.ndarray) -> np.ndarray:
    """Empty 0, part 1, full 2 of every tile of a dense mask."""
    rows, cols = (-(-n // 64) for n in array.shape)
    tiles = [
        [array[i * 64 : i * 64 + 64, j * 64 : j * 64 + 64] for j in range(cols)]
        for i in range(rows)
    ]
    return np.array([[int(t.any()) + int(t.all()) for t in row] for row in tiles])


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_are_coloured_by_what_they_are(ax: Any, shape: tuple[int, int]) -> None:
    pattern = mixed(*shape)
    assert pattern.plot(ax) is ax
    states = tile_states(pattern.toarray())
    np.testing.assert_array_equal(image(ax), states)
    assert ax.get_xlim() == (0, shape[1]) and ax.get_ylim() == (shape[0], 0)
    rows, cols = states.shape
    assert ax.images[0].get_extent() == [0, cols * 64, rows * 64, 0]
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == [
        f"{name}: {(states == state).sum()} tiles"
        for state, name in enumerate(("empty", "part", "full"))
    ]


def test_pixels_of_long_masks_show_several_tiles(ax: Any) -> None:
    """2100 tiles along an axis, 1024 pixels: two or three tiles each way."""
    s = 2100 * 64
    pattern = masks.causal(s) & ~masks.blocks((s, s), [2000], [3])
    pattern.plot(ax)
    shown = image(ax)
    assert shown.shape == (1024, 1024)
    pixel = np.arange(2100) * 1024 // 2100
    expected = np.ones((1024, 1024), int)
    expected[np.triu_indices(1024, 1)] = 0
    expected[np.tril_indices(1024, -1)] = 2
    expected[pixel[2000], pixel[3]] = 1
    np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_zoom_shows_elements(ax: Any, shape: tuple[int, int]) -> None:
    mask = mixed(*shape).tobsr()
    (top, bottom), (left, right) = ranges = tuple((n // 3, n) for n in shape)
    mask.plot(ax, zoom=ranges)
    array = mask.toarray()
    tiles = np.kron(tile_states(array), np.ones((64, 64), int))[: shape[0], : shape[1]]
    expected = np.where(tiles == 2, 3, np.where(tiles == 1, 1 + array, 0))
    np.testing.assert_array_equal(image(ax), expected[top:bottom, left:right])
    assert ax.images[0].get_extent() == [left, right, bottom, top]
    assert ax.get_title() == f"queries {top}-{bottom - 1}, keys {left}-{right - 1}"


def test_lines_lie_between_tiles(ax: Any) -> None:
    masks.causal(300).plot(ax, zoom=((100, 200), (60, 70)))
    assert sorted(line.get_xdata()[0] for line in ax.lines if line.get_xdata()[0] > 1) == [64]
    assert sorted(line.get_ydata()[0] for line in ax.lines if line.get_ydata()[0] > 1) == [128, 192]


@pytest.mark.parametrize("shape", ((0, 0), (0, 5), (5, 0)))
def test_masks_without_elements(ax: Any, shape: tuple[int, int]) -> None:
    masks.full(*shape).plot(ax)
    assert not ax.images


def test_new_axes_and_files(tmp_path: Path) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    axes = masks.plot(np.tri(100, dtype=bool))
    assert axes.figure in map(pyplot.figure, pyplot.get_fignums())
    pyplot.close("all")
    for name in ("x.png", "x.SVG", "x.pdf"):
        masks.save_plot(masks.causal(100), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    assert not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("match", "make"),
    [
        ("zoom: .* inside of .8, 8.", lambda ax: masks.causal(8).plot(ax, zoom=((0, 9), (0, 8)))),
        ("zoom", lambda ax: masks.causal(8).plot(ax, zoom=((0, 8), (3, 2)))),
        ("zoom: .*1 to", lambda ax: masks.causal(8).plot(ax, zoom=((5, 5), (0, 8)))),
        ("zoom: got 5", lambda ax: masks.causal(8).plot(ax, zoom=5)),
        ("zoom", lambda ax: masks.causal(8).plot(ax, zoom=((0, 8),))),
        ("zoom", lambda ax: masks.causal(8).plot(ax, zoom=((0, 8), (0.5, 8)))),
        ("zoom", lambda ax: masks.causal(8).plot(ax, zoom=((0, 8), (0, 8, 9)))),
        ("path: got 5", lambda ax: masks.save_plot(masks.causal(8), 5)),
        ("2..22 elements", lambda ax: masks.full(9999).plot(ax, zoom=((0, 9999), (0, 9999)))),
        ("path: got x.nothing", lambda ax: masks.save_plot(masks.causal(8), "x.nothing")),
    ],
)
def test_errors(ax: Any, match: str, make: Callable[[Any], object]) -> None:
    with pytest.raises(ArgumentError, match=match):
        make(ax)


def test_what_is_wrong_is_found_before_the_mask_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Pattern, "tobsr", lambda self: pytest.fail("built"))
    with pytest.raises(ArgumentError, match="path"):
        masks.save_plot(masks.causal(8), tmp_path / "x.nothing")
    with pytest.raises(ArgumentError, match="zoom"):
        masks.save_plot(masks.causal(8), tmp_path / "x.png", zoom=((0, 9), (0, 8)))


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'stof-cupy\[plot\]'"):
        masks.causal(8).plot()
