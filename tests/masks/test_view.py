"""Crops and shifts of patterns against slices of arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, ShapeError
from stof_cupy.masks import Pattern
from tests.masks.dense import check


def some(sq: int, sk: int) -> dict[str, Pattern]:
    rng = np.random.default_rng(0)
    layout = rng.random((-(-sq // 50), -(-sk // 50))) < 0.5
    return {
        "full": masks.full(sq, sk),
        "causal": masks.causal(sq, sk, align="top-left"),
        "window": masks.sliding_window(sq, sk, window=30, align="top-left"),
        "blocks": masks.blocks((sq, sk), *layout.nonzero(), block=50),
        "both": masks.causal(sq, sk, align="top-left")
        ^ masks.key_padding(rng.random(sk) < 0.5, sq),
    }


def moved(array: np.ndarray, dq: int, dk: int, shape: tuple[int, int]) -> np.ndarray:
    q, k = np.arange(shape[0])[:, None] - dq, np.arange(shape[1]) - dk
    inside = (q >= 0) & (q < array.shape[0]) & (k >= 0) & (k < array.shape[1])
    padded = np.pad(array, ((0, 1), (0, 1)))
    return padded[np.clip(q, -1, array.shape[0]), np.clip(k, -1, array.shape[1])] & inside


@pytest.mark.parametrize("name", ("full", "causal", "window", "blocks", "both"))
@pytest.mark.parametrize("shape", ((1, 1), (64, 200), (130, 129), (300, 260)))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_crop_and_shift(name: str, shape: tuple[int, int], data: st.DataObject) -> None:
    pattern = some(*shape)[name]
    array = pattern.toarray()
    (top, bottom), (left, right) = (
        sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2))) for size in shape
    )
    check(pattern.crop((top, bottom), (left, right)), array[top:bottom, left:right])
    down, across = (data.draw(st.integers(-size - 70, size + 70)) for size in shape)
    check(pattern.shift(down, across), moved(array, down, across, shape))
    size = data.draw(st.sampled_from(((0, 5), (5, 0), (65, 400), (200, 63))))
    check(pattern.shift(down, across, size), moved(array, down, across, size))


def test_empty_operands() -> None:
    check(masks.full(0, 5).shift(3, 3, (10, 70)), np.zeros((10, 70), bool))
    check(masks.full(5, 0).crop((1, 3), (0, 0)), np.zeros((2, 0), bool))


def test_whole_tiles_stay_known() -> None:
    """A crop by whole tiles, or of a full mask, settles as many tiles as the mask itself."""
    assert masks.full(1000).crop((3, 997), (11, 900)).tobsr().bitmaps.size == 0
    assert masks.full(1000).crop((3, 997), (11, 900)).runs.starts.tolist() == [0]
    causal = masks.causal(64_000).crop((6400, 12_800), (6400, 12_800))
    assert len(causal.runs.starts) == len(masks.causal(6400).runs.starts)


def test_slices() -> None:
    pattern = masks.causal(300)
    array = pattern.toarray()
    for index in (np.s_[10:20], np.s_[:, 5:7], np.s_[-20:, :-1], np.s_[7:3, :], np.s_[:1000, 290:]):
        check(pattern[index], array[index])
    assert repr(pattern[10:20]) == "<Pattern (10, 300): causal()[10:20, 0:300]>"
    assert repr(pattern.shift(1, -2)) == "<Pattern (300, 300): causal().shift(1, -2)>"


def test_a_view_of_a_million_tokens_touches_its_own_tiles() -> None:
    s = 1_000_000
    near = masks.sliding_window(s, window=100)
    assert near.crop((s // 2, s // 2 + 1000), (0, s)).nnz == 201_000
    assert near.shift(s - 10, s - 10).nnz == 100


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (ArgumentError, r"queries: got \(3, 9\)", lambda: masks.full(8).crop((3, 9), (0, 1))),
        (ArgumentError, r"keys: got \(3, 2\)", lambda: masks.full(8).crop((0, 8), (3, 2))),
        (ArgumentError, "two slices of step 1", lambda: masks.full(8)[::2]),
        (ArgumentError, "two slices of step 1", lambda: masks.full(8)[3, 4]),
        (ShapeError, r"\(-1, 3\)", lambda: masks.full(8).shift(0, 0, (-1, 3))),
        (ArgumentError, "queries: got 1.5", lambda: masks.full(8).shift(1.5, 0)),
    ],
)
def test_errors(error: type[Exception], match: str, make: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        make()
