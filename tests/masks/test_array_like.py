"""Masks and stacks as NumPy's functions see them, beside the dense arrays they stand for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, StofError, UnsupportedError
from stof_cupy.masks import BsrMask, MaskStack
from tests.masks.dense import random_dense

LEADS = ((), (4,), (2, 3), (2, 1, 3))


def made(lead: tuple[int, ...], seed: int = 0) -> tuple[Any, np.ndarray]:
    """A mask, or a stack where there are leading axes, and its array; some masks are equal."""
    pool = np.stack([random_dense((70, 130), seed + i) for i in range(3)])
    pool[0, 5] = pool[1, :, 7] = True
    dense = pool[np.random.default_rng(seed).integers(0, 3, lead)]
    return (MaskStack.from_dense(dense) if lead else BsrMask(dense)), dense


@pytest.mark.parametrize("name", ("sum", "any", "all"))
@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_every_axis(lead: tuple[int, ...], name: str) -> None:
    mask, dense = made(lead)
    every = range(-dense.ndim, dense.ndim)
    pairs = [pair for pair in permutations(every, 2) if (pair[0] - pair[1]) % dense.ndim]
    whole = tuple(range(dense.ndim))
    for axis in (None, *every, *pairs, whole, whole[::-1]):
        got, wanted = getattr(mask, name)(axis=axis), getattr(dense, name)(axis=axis)
        assert got.dtype == wanted.dtype and type(got) is type(wanted)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_functions_of_numpy(lead: tuple[int, ...]) -> None:
    mask, dense = made(lead)
    for function in (np.sum, np.any, np.all, np.count_nonzero):
        np.testing.assert_array_equal(function(mask), function(dense))
        np.testing.assert_array_equal(function(mask, axis=-1), function(dense, axis=-1))
        # Found by name, not by way of a dense array.
    np.testing.assert_array_equal(mask.count_nonzero(-1), dense.sum(-1))
    for function in (np.sum, np.any, np.all):
        for dtype in (np.int64, np.float32, bool):
            out = np.zeros(dense.shape[:-1], dtype)
            assert function(mask, axis=-1, out=out) is out
            np.testing.assert_array_equal(out, function(dense, axis=-1).astype(dtype))
    total = np.zeros((), np.int64)
    assert np.sum(mask, out=total) is total and total == dense.sum()


@pytest.mark.parametrize("dtype", (np.float32, np.int8, bool, "u2"))
@pytest.mark.parametrize("axis", (None, 0, 1))
def test_dtypes_like_scipy(axis: int | None, dtype: Any) -> None:
    mask, dense = made(())
    theirs = sp.bsr_array(dense, blocksize=(1, 1))
    got, wanted = mask.sum(axis, dtype), theirs.sum(axis, dtype)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def test_sums_of_more_elements_than_memory_has() -> None:
    mask = masks.sliding_window(1_000_000, window=100).tobsr()
    stacked = masks.stack([mask, masks.causal(1_000_000, align="top-left") & mask])
    assert np.sum(mask) == mask.nnz and np.any(mask) and not np.all(mask)
    assert stacked.sum(axis=(0, 1)).shape == (1_000_000,)
    assert stacked.sum(axis=(1, 2)).tolist() == [mask.nnz, (mask.nnz + 1_000_000) // 2]
    with pytest.raises(UnsupportedError, match="toarray"):
        stacked.sum(axis=0)


def test_axes_as_numpy_gives_them() -> None:
    dense = random_dense((70, 130))
    for axes in ([1, 0], np.array([1, 0]), (-1, 0), None):
        assert BsrMask(dense).transpose(axes).equals(dense.T.copy())
    assert np.transpose(BsrMask(dense)).equals(dense.T.copy())


CALLS: tuple[tuple[type[Exception], str, Callable[[Any], object]], ...] = (
    (ArgumentError, "axis: got 9", lambda x: x.sum(axis=9)),
    (ArgumentError, "axis: got -9", lambda x: x.any(axis=-9)),
    (ArgumentError, r"axis: got \(12, 13\)", lambda x: x.sum(axis=(12, 13))),
    (ArgumentError, r"axis: got \('a', 'b'\)", lambda x: x.all(axis=("a", "b"))),
    (ArgumentError, r"axis: got \(0, 0\)", lambda x: x.sum(axis=(0, 0))),
    (ArgumentError, r"axis: got \(\)", lambda x: x.sum(axis=())),
    (ArgumentError, "axis: got 0.5", lambda x: x.sum(axis=0.5)),
    (ArgumentError, r"axis: got \[0\]", lambda x: np.sum(x, axis=[0])),
    (DTypeError, "dtype: got 'foo'", lambda x: x.sum(dtype="foo")),
    (DTypeError, "out: got list", lambda x: x.sum(out=[1])),
    (ShapeError, r"out: got \(3,\)", lambda x: x.sum(axis=-1, out=np.zeros(3))),
    (ArgumentError, "read-only", lambda x: x.sum(out=np.broadcast_to(np.int64(0), ()))),
)


@pytest.mark.parametrize(("error", "match", "call"), CALLS)
@pytest.mark.parametrize("lead", ((), (2, 3)), ids=str)
def test_errors(
    error: type[Exception], match: str, call: Callable[[Any], object], lead: tuple[int, ...]
) -> None:
    with pytest.raises(error, match=match) as caught:
        call(made(lead)[0])
    assert isinstance(caught.value, StofError)


# ---- stacks ------------------------------------------------------------------------------------


def test_stacks_have_the_manners_of_a_mask() -> None:
    stacked, dense = made((2, 3))
    assert stacked.T.equals(dense.swapaxes(-1, -2).copy()) and stacked.T.T.equals(stacked)
    assert stacked.copy() is stacked


@pytest.mark.parametrize("lead", ((6,), (3, 2), (-1,), (1, -1, 3), [3, 2], (np.int64(6), 1)))
def test_reshape_as_numpy_takes_it(lead: Any) -> None:
    stacked, dense = made((2, 3))
    wanted = dense.reshape(*lead, 70, 130)
    for made_of in (stacked.reshape(lead), stacked.reshape(*lead)):
        assert made_of.shape == wanted.shape and made_of.equals(wanted)


@pytest.mark.parametrize("lead", (4, 1.5, "ab", (2, 2), (-1, -1), (2**70,), (2, "a"), 0), ids=repr)
def test_reshape_errors(lead: Any) -> None:
    with pytest.raises(ShapeError, match=r"lead: got .*expected 6 masks"):
        made((2, 3))[0].reshape(lead)


def test_a_stack_is_indexed_before_it_is_drawn() -> None:
    figure = pytest.importorskip("matplotlib.figure")
    stacked, _ = made((2, 3))
    for one in (stacked, stacked[:1, :1]):
        with pytest.raises(ShapeError, match=r"MaskStack .*stack\[batch, head\] is one"):
            one.plot()
    ax = figure.Figure().add_subplot()
    assert stacked[1, 2].plot(ax) is ax


def test_equal_masks_in_other_blocks_are_one() -> None:
    mask, other = masks.causal(200).tobsr(), masks.full(200).tobsr()
    blocks = mask.tobsr((8, 5))
    stacked = masks.stack([mask, blocks, other, other.tobsr((2, 2))])
    assert stacked.mask_of.tolist() == [0, 0, 1, 1] and stacked.masks == (mask, other)
    assert [each.blocksize for each in masks.stack([blocks, other, mask])] == [(8, 5)] * 3
    schedule = masks.stack([mask, blocks]).schedule()
    assert schedule.row_ptr.shape == (1, 5) and len(schedule.cols) == mask.ntiles


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ArgumentError, "one leading axis", lambda m: MaskStack([m], 0)),
        (
            DTypeError,
            r"masks: got a Pattern.*masks\.stack",
            lambda m: MaskStack([masks.full(3)], [0]),
        ),
        (DTypeError, "mask_of: .* different lengths", lambda m: MaskStack([m], [[0], [0, 0]])),
        (
            DTypeError,
            "masked array",
            lambda m: MaskStack.from_dense(np.ma.ones((1, 2, 2), bool)),
        ),
        (DTypeError, "different lengths", lambda m: MaskStack.from_dense([[1], [1, 2]])),
        (DTypeError, "different lengths", lambda m: masks.stack([m]).equals([[1], [1, 2]])),
        (IndexError, "leading axes", lambda m: masks.stack([m])[[[1], [1, 2]]]),
    ],
)
def test_stack_errors(
    error: type[Exception], match: str, call: Callable[[BsrMask], object]
) -> None:
    with pytest.raises(error, match=match) as caught:
        call(made(())[0])
    assert isinstance(caught.value, StofError)
