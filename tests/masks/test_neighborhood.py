"""Neighbourhoods against a definition written axis by axis, and NATTEN's borders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError
from tests.masks.dense import check


def axis(size: int, window: int, dilation: int, causal: bool) -> np.ndarray:
    """What each coordinate sees, by NATTEN's rule: ``window`` nearest of the same phase."""
    seen = np.zeros((size, size), bool)
    for i in range(size):
        same = np.arange(i % dilation, size, dilation)
        at = i // dilation
        if causal:
            seen[i, same[max(at - window + 1, 0) : at + 1]] = True
        else:
            start = max(at - window // 2, 0)
            start -= max(start + window - len(same), 0)
            seen[i, same[start : start + window]] = True
    return seen


def definition(lattice, windows, dilations, causal) -> np.ndarray:
    whole = np.ones((1, 1), bool)
    for each in zip(lattice, windows, dilations, causal, strict=True):
        whole = np.kron(whole, axis(*each))
    return whole


@pytest.mark.parametrize("size", (1, 7, 63, 64, 65, 127, 129, 300))
@pytest.mark.parametrize("window", (1, 2, 7, 64))
@pytest.mark.parametrize("dilation", (1, 3, 40, 70))
@pytest.mark.parametrize("causal", (False, True))
def test_one_axis(size: int, window: int, dilation: int, causal: bool) -> None:
    if window * dilation <= size:
        made = masks.neighborhood(size, window=window, dilation=dilation, causal=causal)
        check(made, axis(size, window, dilation, causal))


@pytest.mark.parametrize(
    ("lattice", "windows", "dilations"),
    [
        ((1, 1), (1, 1), (1, 1)),
        ((9, 7), (3, 7), (1, 1)),
        ((7, 100), (3, 5), (2, 3)),
        ((100, 7), (5, 3), (3, 2)),
        ((14, 14), (7, 7), (1, 1)),
        ((5, 130), (4, 6), (1, 20)),
        ((3, 64), (1, 64), (1, 1)),
        ((5, 6, 7), (3, 2, 5), (1, 3, 1)),
        ((2, 3, 90), (2, 3, 4), (1, 1, 17)),
        ((40, 2, 3), (5, 1, 3), (8, 2, 1)),
    ],
)
@pytest.mark.parametrize("causal", ((False,) * 3, (True,) * 3, (True, False, False)))
def test_lattices(lattice, windows, dilations, causal) -> None:
    causal = causal[: len(lattice)]
    made = masks.neighborhood(lattice, window=windows, dilation=dilations, causal=causal)
    check(made, definition(lattice, windows, dilations, causal))


def test_borders_move_the_window_and_keep_its_size() -> None:
    made = masks.neighborhood((20, 20), window=(5, 7), dilation=(3, 2)).toarray()
    assert (made.sum(1) == 35).all()
    corner = made[0].reshape(20, 20)
    assert corner[:15:3, :14:2].all() and corner.sum() == 35


def test_one_number_is_for_all_axes() -> None:
    made = masks.neighborhood((12, 12), window=3, dilation=2, causal=True)
    assert made.tobsr().equals(
        masks.neighborhood((12, 12), window=(3, 3), dilation=(2, 2), causal=(True, True))
    )
    assert repr(made).endswith("neighborhood(12x12, window=3x3, dilation=2x2, causal=True)>")


@pytest.mark.parametrize(
    ("match", "make"),
    [
        ("lattice: got 0", lambda: masks.neighborhood(0, window=1)),
        ("lattice: .* 1 to 3 axes", lambda: masks.neighborhood((2,) * 4, window=1)),
        ("window: .* one for all, or 2", lambda: masks.neighborhood((5, 5), window=(1, 1, 1))),
        ("window: got 0", lambda: masks.neighborhood((5, 5), window=0)),
        ("dilation: got -1", lambda: masks.neighborhood(5, window=1, dilation=-1)),
        (
            "window: got 3 tokens, dilation 2, .* at most 5",
            lambda: masks.neighborhood(5, window=3, dilation=2),
        ),
    ],
)
def test_errors(match: str, make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match=match):
        make()
