"""Schedules: the same tiles as the mask, in the order a kernel wants them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.masks import BsrMask, Schedule

MASKS = [
    masks.causal(1000),
    masks.longformer(700, window=70, global_tokens=10),
    masks.bigbird(1000, block=48),
    masks.document([3, 200, 0, 65]),
    ~masks.full(130),
    masks.full(0, 5),
    masks.full(5, 0),
]


def check(mask: BsrMask, schedule: Schedule) -> None:
    rows = len(mask.indptr) - 1
    for array in (schedule.row_ptr, schedule.cols, schedule.bitmap_id, schedule.order):
        assert array.dtype == np.int32 and not array.flags.writeable
    np.testing.assert_array_equal(schedule.row_ptr, mask.indptr)
    for row in range(rows):
        listed = slice(mask.indptr[row], mask.indptr[row + 1])
        pairs = list(zip(schedule.cols[listed], schedule.bitmap_id[listed], strict=True))
        of_mask = zip(mask.indices[listed], mask.bitmap_id[listed], strict=True)
        # Part first, then full; ascending in each.
        assert pairs == sorted(of_mask, key=lambda pair: (pair[1] == -1, pair[0]))
    lengths = np.diff(schedule.row_ptr)
    assert schedule.order.tolist() == sorted(range(rows), key=lambda row: (-lengths[row], row))
    stats = schedule.stats
    assert (stats.kept, stats.visited) == (mask.nnz, mask.ntiles)
    assert stats.part == (mask.bitmap_id >= 0).sum()
    assert stats.waste == pytest.approx(1 - mask.nnz / (4096 * mask.ntiles) if mask.ntiles else 0)


@pytest.mark.parametrize("pattern", MASKS, ids=repr)
def test_patterns(pattern: masks.Pattern) -> None:
    mask = pattern.tobsr()
    check(mask, mask.schedule())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**16))
def test_random(sq: int, sk: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiles = np.kron(rng.integers(0, 3, (-(-sq // 64), -(-sk // 64))), np.ones((64, 64), int))
    mask = BsrMask(
        np.choose(tiles[:sq, :sk], (False, True, rng.random((sq, sk)) < 0.5)).astype(bool)
    )
    check(mask, mask.schedule())


def test_causal_by_hand() -> None:
    schedule = masks.causal(192).tobsr().schedule()
    assert schedule.cols.tolist() == [0, 1, 0, 2, 0, 1]
    assert schedule.bitmap_id.tolist() == [0, 0, -1, 0, -1, -1]
    assert schedule.order.tolist() == [2, 1, 0]
    assert schedule.stats.waste == pytest.approx(1 - 193 / 2 * 192 / (6 * 4096))


def test_built_once() -> None:
    mask = masks.causal(100).tobsr()
    assert mask.schedule() is mask.schedule() is mask.copy().schedule()


@pytest.mark.gpu
def test_on_device() -> None:
    import cupy

    schedule = masks.longformer(1000, window=64, global_tokens=5).tobsr().schedule()
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(schedule.on_device())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device = schedule.on_device()
    assert len(found) == 4 and all(other is device for other in found)
    for name in ("row_ptr", "cols", "bitmap_id", "bitmaps", "order"):
        array = getattr(device, name)
        assert isinstance(array, cupy.ndarray) and array.dtype == getattr(schedule, name).dtype
        np.testing.assert_array_equal(array.get(), getattr(schedule, name))
