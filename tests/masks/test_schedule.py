"""Schedules: the same tiles as the mask, in the order a kernel wants them."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.masks import BsrMask, Schedule
from stof_cupy.ops import reference
from stof_cupy.ops.attention import attention
from stof_cupy.testing import assert_close, random_array, rng

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


def longformer() -> BsrMask:
    """Return a mask of its own on every call, with a schedule of its own."""
    return masks.longformer(1000, window=64, global_tokens=5).tobsr()


@pytest.mark.gpu
def test_streams_share_a_mask() -> None:
    """Each may be the first to use it; neither waits for the other, nor for the default stream."""
    import cupy

    x = random_array(rng(0), (1, 2, 1000, 64), "float16")
    exact = reference.attention(x, x, x, longformer().toarray())
    low = reference.attention(x, x, x, longformer().toarray(), precision="float16")
    on_device = cupy.asarray(x)
    cupy.cuda.Device().synchronize()
    mask = longformer()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    results = []
    for stream in streams * 5:
        with stream:
            results.append(attention(on_device, on_device, on_device, mask))
    for stream in streams:
        stream.synchronize()
    for result in results:
        assert_close(result, exact, low)


@pytest.mark.gpu
def test_a_mask_may_be_dropped_before_a_kernel_has_read_it() -> None:
    import cupy

    spin = cupy.ElementwiseKernel(
        "int64 cycles",
        "int64 end",
        "long long start = clock64(); do end = clock64(); while (end - start < cycles);",
        "keep_busy",
    )
    end = cupy.zeros(1, cupy.int64)
    spin(cupy.int64(1), end)  # compiled before anybody waits for it, as is attention
    x = cupy.asarray(random_array(rng(0), (1, 2, 1000, 64), "float16"))
    expected = attention(x, x, x, longformer()).get()
    mask = longformer()
    mask.schedule().on_device()  # on the default stream; the kernel is on another one
    sizes = [
        array.nbytes
        for schedule in [mask.schedule()]
        for array in (schedule.row_ptr, schedule.cols, schedule.bitmap_id, schedule.bitmaps)
    ]
    cupy.cuda.Device().synchronize()
    pending = cupy.cuda.Stream(non_blocking=True)
    with pending:
        spin(cupy.int64(50 * cupy.cuda.Device().attributes["ClockRate"]), end)  # 50 ms
        got = attention(x, x, x, mask)
    del mask
    gc.collect()
    reused = [cupy.zeros(size, np.uint8) for size in sizes]
    cupy.cuda.Device().synchronize()
    assert [array.nbytes for array in reused] == sizes
    np.testing.assert_array_equal(got.get(), expected)


@pytest.mark.gpu
def test_the_upload_is_not_in_the_memory_pool() -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    schedule = longformer().schedule()
    before = pool.used_bytes()
    device = schedule.on_device()
    assert pool.used_bytes() <= before
    assert device.cols.nbytes == schedule.cols.nbytes
