"""Leading axes: stacks of masks beside the dense arrays that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import (
    ArgumentError,
    MaskError,
    OutOfBoundsError,
    ShapeError,
    StofError,
    UnsupportedError,
)
from stof_cupy.masks import BsrMask, MaskStack, as_mask, as_masks, stack


def random_dense(lead: tuple[int, ...], seed: int = 0, sq: int = 70, sk: int = 100) -> np.ndarray:
    """Masks of which some are equal."""
    rng = np.random.default_rng(seed)
    pool = rng.random((3, sq, sk)) < 0.1
    return pool[rng.integers(0, 3, lead)]


@pytest.mark.parametrize("lead", ((4,), (3, 1), (1, 5), (2, 3), (2, 1, 3)))
def test_round_trip_and_sizes(lead: tuple[int, ...]) -> None:
    dense = random_dense(lead)
    stacked = MaskStack.from_dense(dense)
    assert stacked.shape == dense.shape and stacked.lead == lead and stacked.ndim == dense.ndim
    assert stacked.dtype == bool and stacked.nnz == dense.sum()
    assert stacked.density == pytest.approx(dense.mean())
    np.testing.assert_array_equal(stacked.toarray(), dense)
    np.testing.assert_array_equal(np.asarray(stacked), dense)
    assert stacked.equals(dense)
    assert not stacked.equals(~dense) and not stacked.equals(dense[..., 1:])
    assert stacked.mask_of.dtype == np.int32 and not stacked.mask_of.flags.writeable


def test_equal_masks_are_stored_once() -> None:
    """However they were made, in order of first use."""
    causal = masks.causal(200)
    stacked = stack([masks.full(200), causal, np.tri(200, dtype=bool), causal.tobsr().tocsr()])
    assert stacked.mask_of.tolist() == [0, 1, 1, 1] and len(stacked.masks) == 2
    assert stacked.nbytes == sum(mask.nbytes for mask in stacked.masks) + 16
    assert stacked[1] is stacked[3] and stacked[::-1].mask_of.tolist() == [0, 0, 0, 1]
    assert len((stacked | masks.full(200)).masks) == 1


def test_broadcast_arrays_are_read_once() -> None:
    dense = np.broadcast_to(random_dense((2,))[:, None], (2, 5000, 70, 100))
    stacked = MaskStack.from_dense(dense)
    assert stacked.lead == (2, 5000) and len(stacked.masks) <= 2


INDEXES: tuple[Any, ...] = (
    np.s_[1],
    np.s_[-1, 2],
    np.s_[:, 0],
    np.s_[..., 1, :, :],
    np.s_[::-1, [0, 2, 2]],
    np.s_[:, None],
    np.s_[None, ..., 3:50, 10:],
    np.s_[np.array([True, False]), 1:],
    np.s_[1, 2, 5],
    np.s_[1, 2, [3, 4], :],
    np.s_[1, 2, 5, 6],
    np.s_[:, :, 64:],
    np.s_[:, :, None, 1:, 2:],
    np.s_[[0, 1], [1, 2], :, ::3],
)


@pytest.mark.parametrize("index", INDEXES, ids=repr)
def test_indexing_like_numpy(index: Any) -> None:
    dense = random_dense((2, 3))
    got = MaskStack.from_dense(dense)[index]
    np.testing.assert_array_equal(got.toarray() if hasattr(got, "toarray") else got, dense[index])


def test_iteration_and_reshape() -> None:
    dense = random_dense((6,))
    stacked = MaskStack.from_dense(dense)
    assert len(stacked) == 6 and all(isinstance(mask, BsrMask) for mask in stacked)
    for mask, wanted in zip(stacked, dense, strict=True):
        assert mask.equals(wanted)
    assert stacked.reshape(2, -1).equals(dense.reshape(2, 3, 70, 100))
    assert [each.shape for each in stacked.reshape(2, 3)] == [(3, 70, 100)] * 2
    assert stacked.transpose().equals(dense.swapaxes(-1, -2).copy())


@pytest.mark.parametrize("axis", (0, 1, -1))
def test_stacks_of_stacks(axis: int) -> None:
    a, b = random_dense((3,), 1), random_dense((3,), 2)
    joined = stack([MaskStack.from_dense(a), MaskStack.from_dense(b)], axis)
    assert joined.equals(np.stack([a, b], axis if axis >= 0 else 1))


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_broadcast(symbol: str) -> None:
    apply = OPERATORS[symbol]
    a, b, c = random_dense((2, 1), 1), random_dense((3,), 2), random_dense((), 3)
    x, y = MaskStack.from_dense(a), MaskStack.from_dense(b)
    pattern = masks.full(70, 100)
    for made, wanted in (
        (apply(x, y), apply(a, b)),
        (apply(x, b), apply(a, b)),
        (apply(x, BsrMask(c)), apply(a, c)),
        (apply(BsrMask(c), x), apply(c, a)),
        (apply(x, pattern), apply(a, True)),
        (apply(pattern, x), apply(True, a)),
        (apply(x, c), apply(a, c)),
        (apply(x, x), apply(a, a)),
    ):
        assert isinstance(made, MaskStack) and made.equals(wanted)
    assert (~x).equals(~a)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_operands(data: st.DataObject) -> None:
    sizes = st.sampled_from((1, 2, 3))
    lead = data.draw(st.tuples(sizes, sizes))
    other = tuple(data.draw(st.sampled_from((1, n))) for n in lead)
    a, b = (random_dense(each, data.draw(st.integers(0, 99)), 5, 70) for each in (lead, other))
    x, y = MaskStack.from_dense(a), MaskStack.from_dense(b)
    assert ((x | y) & ~(x & y)).equals(a ^ b)
    assert (x | y).nnz == (a | b).sum()


def test_schedule_looks_up_each_batch_and_head() -> None:
    dense = random_dense((2, 3))
    stacked = MaskStack.from_dense(dense)
    schedule = stacked.schedule((64, 32))
    count = len(stacked.masks)
    assert schedule.row_ptr.shape == (count, 3) and schedule.order.shape == (count, 2)
    assert schedule.full_ptr.shape == (count, 2)
    assert schedule is stacked.schedule((64, 32))
    flat, (first, second) = schedule.mask_of.ravel(), schedule.mask_strides(2, 3)
    for batch, head in np.ndindex(2, 3):
        number = flat[batch * first + head * second]
        alone = stacked[batch, head].schedule((64, 32))
        for row in range(2):
            span, own = (
                slice(*each[row : row + 2]) for each in (schedule.row_ptr[number], alone.row_ptr)
            )
            np.testing.assert_array_equal(schedule.cols[span], alone.cols[own])
            for at, i in zip(schedule.bitmap_id[span], alone.bitmap_id[own], strict=True):
                assert (at < 0) == (i < 0)
                if i >= 0:
                    np.testing.assert_array_equal(schedule.bitmaps[at], alone.bitmaps[i])
        np.testing.assert_array_equal(schedule.order[number], alone.order)
    stats = schedule.stats
    each = [mask.schedule((64, 32)).stats for row in stacked for mask in row]
    assert stats.kept == dense.sum() == sum(one.kept for one in each)
    assert (stats.visited, stats.part) == tuple(
        sum(getattr(one, name) for one in each) for name in ("visited", "part")
    )
    assert stats.waste == pytest.approx(1 - stats.kept / (stats.visited * 64 * 32))


@pytest.mark.gpu
@pytest.mark.parametrize("lead", ((2, 1), (3,), (2, 3)))
def test_schedule_on_device(lead: tuple[int, ...]) -> None:
    """What a kernel computes from the device arrays and strides is the mask of its head."""
    import cupy

    stacked = MaskStack.from_dense(random_dense(lead))
    schedule = stacked.schedule(packed=True)
    device, (first, second) = schedule.on_device(), schedule.mask_strides(2, 3)
    batch, head = cupy.indices((2, 3))
    numbers = device.mask_of.ravel()[batch * first + head * second]
    np.testing.assert_array_equal(numbers.get(), np.broadcast_to(stacked.mask_of, (2, 3)))
    for name in ("row_ptr", "full_ptr", "cols", "bitmap_id", "bitmaps", "order", "groups"):
        np.testing.assert_array_equal(getattr(device, name).get(), getattr(schedule, name))


def test_packed_schedule_of_several_masks() -> None:
    """Packed tiles of later masks name their own groups."""
    dense = np.zeros((3, 64, 1024), bool)
    dense[0, :, ::100] = dense[1, :, 5::90] = dense[2, 3, 7] = dense[2, :, 512:576] = True
    schedule = MaskStack.from_dense(dense).schedule(packed=True, layout="accumulator")
    assert schedule.groups is not None
    for number in range(3):
        start, full, stop = (
            schedule.row_ptr[number, 0],
            schedule.full_ptr[number, 0],
            schedule.row_ptr[number, 1],
        )
        groups = schedule.groups[schedule.cols[start:full]]
        keys = np.flatnonzero(
            dense[number].any(axis=0) & ~dense[number].all(axis=0)
            | (number < 2) & dense[number].any(axis=0)
        )
        assert sorted(groups[groups >= 0]) == sorted({int(key) // 8 for key in keys})
        assert schedule.cols[full:stop].tolist() == ([8] if number == 2 else [])


@pytest.mark.parametrize(
    ("lead", "batch", "heads", "strides"),
    [((5, 1), 5, 8, (1, 0)), ((1, 8), 5, 8, (0, 1)), ((8,), 5, 8, (0, 1)), ((5, 8), 5, 8, (8, 1))],
)
def test_mask_strides(
    lead: tuple[int, ...], batch: int, heads: int, strides: tuple[int, int]
) -> None:
    schedule = MaskStack([masks.causal(9).tobsr()], np.zeros(lead, int)).schedule()
    assert schedule.mask_strides(batch, heads) == strides
    with pytest.raises(ShapeError, match="leading axes"):
        schedule.mask_strides(batch + 1, heads + 1)


def test_layouts_of_each_head() -> None:
    """T18: tiles of each head's random layout are exactly its ones."""
    layouts = np.random.default_rng(0).integers(0, 2, (8, 64, 64))
    stacked = stack(masks.blocks((1024, 1024), *layout.nonzero(), block=16) for layout in layouts)
    for _ in range(100):
        assert [mask.nnz for mask in stacked] == [layout.sum() * 256 for layout in layouts]
    for mask, layout in zip(stacked, layouts, strict=True):
        blocks = mask.tobsr((16, 16))
        assert len(blocks.indices) == layout.sum()


def test_as_masks() -> None:
    shape = (2, 3, 70, 100)
    dense = random_dense((2, 3))
    for obj in (dense, MaskStack.from_dense(dense)):
        found = as_masks(obj, shape)
        assert isinstance(found, MaskStack) and found.equals(dense)
    for obj in (dense[:, :1], dense[:1], dense[0]):
        assert as_masks(obj, shape).equals(obj)
    one = as_masks(np.broadcast_to(dense[0, 0], shape), shape)
    assert isinstance(one, BsrMask) and one.equals(dense[0, 0])
    assert isinstance(as_masks(masks.full(70, 100), shape), BsrMask)
    assert as_masks(np.ones((0, 3, 70, 100), bool), (0, 3, 70, 100)).nnz == 0


@pytest.mark.parametrize("lead", ((3, 3), (2, 2), (2,), (1, 1, 3)))
def test_as_masks_names_both_shapes(lead: tuple[int, ...]) -> None:
    """T9, T11, T13: a mask that does not fit is an error, whatever its form."""
    dense = random_dense(lead)
    for obj in (dense, MaskStack.from_dense(dense)):
        with pytest.raises(ShapeError, match=r"bias: got .*70, 100\), expected \(2, 3, 70, 100\)"):
            as_masks(obj, (2, 3, 70, 100), "bias")
    with pytest.raises(ShapeError, match=r"expected \(2, 3, 70, 101\)"):
        as_masks(random_dense((2, 3)), (2, 3, 70, 101))
    with pytest.raises(MaskError, match="dtype float32"):
        as_masks(np.ones((2, 3, 7, 7), np.float32), (2, 3, 7, 7))
    with pytest.raises(ShapeError, match="is one"):
        as_mask(MaskStack.from_dense(random_dense((2, 3))))


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ArgumentError, "none", lambda x: stack([])),
        (
            ShapeError,
            r"\(9, 9\), expected \(9, 8\)",
            lambda x: stack([masks.full(9, 8), masks.full(9)]),
        ),
        (ShapeError, r"\(2, 3, 70, 100\), expected \(70, 100\)", lambda x: stack([x[0, 0], x])),
        (ArgumentError, "axis: got 1", lambda x: stack([x[0, 0]], axis=1)),
        (ArgumentError, "mask_of", lambda x: MaskStack(x.masks, [99])),
        (ArgumentError, "mask_of", lambda x: MaskStack(x.masks, [0.0])),
        (ArgumentError, "some mask", lambda x: MaskStack(x.masks, np.zeros((0, 3), int))),
        (ShapeError, "all of one shape", lambda x: MaskStack([x[0, 0], x[0, 0].T], [0, 1])),
        (ShapeError, "one leading axis", lambda x: MaskStack.from_dense(np.ones((3, 3), bool))),
        (MaskError, "dtype int64", lambda x: MaskStack.from_dense(np.ones((3, 3, 3), np.int64))),
        (OutOfBoundsError, r"leading axes \(2, 3\)", lambda x: x[2]),
        (ArgumentError, "slices", lambda x: x[0, :, 3]),
        (ArgumentError, "4 entries", lambda x: x[0, 0, 0, 0, 0]),
        (ShapeError, "6 masks", lambda x: x.reshape(4)),
        (ShapeError, "broadcast", lambda x: x & x[:, :2]),
        (ShapeError, r"\(70, 100\)", lambda x: x & masks.full(70)),
        (ArgumentError, "equals", lambda x: bool(x == x)),
        (ArgumentError, "packed", lambda x: x.__array__(copy=False)),
        (ShapeError, "at most 2", lambda x: x[None].schedule()),
    ],
)
def test_errors(error: type[Exception], match: str, call: Callable[[MaskStack], object]) -> None:
    with pytest.raises(error, match=match) as caught:
        call(MaskStack.from_dense(random_dense((2, 3))))
    assert isinstance(caught.value, StofError)


def test_asarray_of_what_is_too_large() -> None:
    with pytest.raises(UnsupportedError, match="toarray"):
        np.asarray(stack([masks.causal(2048)] * 300))


def test_repr() -> None:
    text = repr(MaskStack([masks.full(64).tobsr()], [[0, 0]]))
    assert text == "<MaskStack (1, 2, 64, 64): density 1, 1 distinct mask>"
    with pytest.raises(TypeError, match="unhashable"):
        hash(stack([masks.full(3)]))
