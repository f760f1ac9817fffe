"""Schedules: the same tiles as the mask, in the order a kernel wants them."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import ArgumentError
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


TILES = [(64, 64), (128, 64), (128, 128), (64, 128), (192, 128), (16, 8), (48, 80), (128, 176)]


def bits_of(schedule: Schedule, number: int) -> np.ndarray:
    """Boolean tile of a bitmap, element by element from what the classes say."""
    m, n = schedule.tile
    row, col = np.indices((m, n))
    words = schedule.bitmaps[number]
    if schedule.layout == "words":
        word, bit = words[col // 8 * (m // 8) + row // 8], row % 8 * 8 + col % 8
        return (word >> bit.astype(np.uint64)) & np.uint64(1) != 0
    bit = row % 16 // 8 * (n // 4) + col // 8 * 2 + col % 2
    word = words[row // 16, row % 8 * 4 + col % 8 // 2, bit // 32]
    return (word >> (bit % 32).astype(np.uint32)) & np.uint32(1) != 0


def lists_of(schedule: Schedule, number: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pick = () if number is None else (number,)
    return schedule.row_ptr[pick], schedule.full_ptr[pick], schedule.order[pick]


def rebuilt(schedule: Schedule, number: int | None = None) -> np.ndarray:
    """The mask that a kernel would see by the lists; what it visits twice is an error."""
    (m, n), (queries, keys) = schedule.tile, schedule.shape
    row_ptr, full_ptr, order = lists_of(schedule, number)
    assert schedule.work[() if number is None else number].tolist() == [
        [row, row_ptr[row], full_ptr[row], row_ptr[row + 1]] for row in order
    ]
    seen = np.zeros((-(-queries // m) * m, -(-keys // n) * n + 8), np.int64)
    lengths = np.diff(row_ptr)
    assert order.tolist() == sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    for row in range(len(lengths)):
        before = -1
        for at in range(row_ptr[row], row_ptr[row + 1]):
            columns = schedule.cols[at] * n + np.arange(n)
            if at < full_ptr[row] and schedule.groups is not None:
                groups = schedule.groups[schedule.cols[at]]
                assert (np.diff(groups[groups >= 0]) > 0).all()
                columns = (groups[:, None] * 8 + np.arange(8)).ravel()  # -1: the padding above
            else:
                before = -1 if at == full_ptr[row] else before
                assert schedule.cols[at] > before
                before = schedule.cols[at]
            assert at < full_ptr[row] or schedule.bitmap_id[at] == -1
            number_of_bitmap = schedule.bitmap_id[at]
            tile = (
                np.ones((m, n), bool)
                if number_of_bitmap < 0
                else bits_of(schedule, number_of_bitmap)
            )
            assert tile.any()
            np.add.at(seen, (slice(row * m, row * m + m), columns), tile)
    assert seen[:queries, :keys].max(initial=0) <= 1
    return seen[:queries, :keys] > 0


@pytest.mark.parametrize("packed", (False, True))
@pytest.mark.parametrize("layout", ("words", "accumulator"))
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_is_the_same_mask(tile: tuple[int, int], layout: str, packed: bool) -> None:
    rng = np.random.default_rng(0)
    dense = rng.random((300, 333)) < 0.02
    dense[:, ::70] = True
    dense[130:290, 60:300] = True
    for mask in (
        BsrMask(dense),
        masks.longformer(500, window=70, global_tokens=10).tobsr(),
        masks.causal(257).tobsr(),
        *(pattern.tobsr() for pattern in MASKS[-3:]),
    ):
        schedule = mask.schedule(tile, layout=layout, packed=packed)  # type: ignore[arg-type]
        assert schedule is mask.schedule(tile, layout=layout, packed=packed)  # type: ignore[arg-type]
        np.testing.assert_array_equal(rebuilt(schedule), mask.toarray())
        stats, size = schedule.stats, tile[0] * tile[1]
        assert (stats.kept, stats.visited) == (mask.nnz, len(schedule.cols))
        assert stats.part == (schedule.bitmap_id >= 0).sum()
        assert stats.waste == pytest.approx(
            1 - mask.nnz / (len(schedule.cols) * size or 1) if mask.nnz else 0
        )
        assert stats.longest == np.diff(schedule.row_ptr).max(initial=0)
        for name in ("row_ptr", "full_ptr", "cols", "bitmap_id", "order", "mask_of"):
            array = getattr(schedule, name)
            assert array.dtype == np.int32 and not array.flags.writeable
        assert len(np.unique(schedule.bitmaps, axis=0)) == len(schedule.bitmaps)
        assert {*schedule.bitmap_id.tolist()} - {-1} == {*range(len(schedule.bitmaps))}
        assert (schedule.groups is not None) == packed


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_tile(data: st.DataObject) -> None:
    sq, sk = data.draw(st.tuples(st.integers(1, 300), st.integers(1, 300)))
    tile = data.draw(st.integers(1, 16)) * 16, data.draw(st.integers(1, 32)) * 8
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    kind = np.kron(rng.integers(0, 3, (5, 5)), np.ones((64, 64), int))[:sq, :sk]
    dense = np.choose(kind, (False, True, rng.random((sq, sk)) < 0.05)).astype(bool)
    schedule = BsrMask(dense).schedule(tile, packed=data.draw(st.booleans()))
    np.testing.assert_array_equal(rebuilt(schedule), dense)


def test_full_tiles_are_recognised() -> None:
    """Merged tiles are full where all of them are; split ones of a part tile may be full."""
    mask = masks.causal(512).tobsr()
    assert (mask.schedule((128, 128)).bitmap_id >= 0).sum() == 4
    assert len(mask.schedule((128, 128)).bitmaps) == 1
    split = mask.schedule((64, 32)).stats
    assert (split.visited, split.part) == (2 * 36, 2 * 8)
    split = mask.schedule((32, 32)).stats
    assert (split.visited, split.part) == (16 * 17 // 2, 16)


def test_packed_keys_cost_what_they_use() -> None:
    """21 scattered columns take 21 groups of 8 keys: two tiles of 128, where they met 16 tiles."""
    dense = np.zeros((256, 2048), bool)
    dense[:, ::100] = True
    mask = BsrMask(dense)
    loose, packed = (mask.schedule((128, 128), packed=choice) for choice in (False, True))
    assert (loose.stats.visited, packed.stats.visited) == (32, 4)
    assert packed.groups is not None and packed.groups.shape == (4, 16)
    np.testing.assert_array_equal(packed.groups[0], np.arange(0, 1600, 100) // 8)
    np.testing.assert_array_equal(packed.groups[1], [200, 212, 225, 237, 250, *[-1] * 11])
    dense[:] = False
    dense[:128, 8:136] = True  # full once packed
    assert BsrMask(dense).schedule((128, 128), packed=True).bitmap_id.tolist() == [-1]


def test_schedule_errors() -> None:
    mask = masks.causal(100).tobsr()
    with pytest.raises(ArgumentError, match="multiples of 16 and 8"):
        mask.schedule((64, 60))
    with pytest.raises(ArgumentError, match="'rows', expected 'words' or 'accumulator'"):
        mask.schedule(layout="rows")  # type: ignore[arg-type]


def test_copies_and_pickles_leave_schedules_behind() -> None:
    for mask in (masks.causal(100).tobsr(), masks.stack([masks.causal(100)])):
        schedule = mask.schedule()
        for other in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
            assert other.equals(mask) and other.schedule() is not schedule
        assert mask.schedule() is schedule


def test_one_mask_serves_all() -> None:
    schedule = masks.causal(100).tobsr().schedule()
    assert schedule.mask_of.tolist() == [[0]] and schedule.mask_strides(7, 12) == (0, 0)


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
    for name in ("row_ptr", "full_ptr", "cols", "bitmap_id", "bitmaps", "order", "work", "mask_of"):
        array = getattr(device, name)
        assert isinstance(array, cupy.ndarray) and array.dtype == getattr(schedule, name).dtype
        np.testing.assert_array_equal(array.get(), getattr(schedule, name))
    assert device.groups is None


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


@pytest.mark.parametrize("m", (64, 128, 192))
def test_halves_that_64_queries_do_not_need(m: int) -> None:
    keep = np.random.default_rng(m).random((8, 9)) < 0.5
    dense = np.kron(keep, np.ones((64, 64), bool))[:470, :530]
    dense &= np.random.default_rng(0).random(dense.shape) < 0.9
    lists = BsrMask(dense).schedule((m, 128), layout="accumulator")
    assert lists.halves is not None
    padded = np.zeros((1000, 1000), bool)
    padded[:470, :530] = dense
    found = set()
    for row, (begin, end) in enumerate(zip(lists.row_ptr, lists.row_ptr[1:], strict=False)):
        for entry in lists.halves[begin:end].tolist():
            col = entry & 0xFFFFFF
            tile = padded[row * m :, col * 128 :][:m, :128].reshape(m // 64, 64, 2, 64)
            without = ~tile.any(axis=(1, 3))
            assert entry >> 24 == (without.ravel() << np.arange(m // 32)).sum()
            found.add(entry >> 24)
    assert len(found) > 2
    for tile, layout in (
        ((m, 64), "accumulator"),
        ((m, 128), "words"),
        ((256, 128), "accumulator"),
    ):
        assert BsrMask(dense).schedule(tile, layout=layout).halves is None
    assert BsrMask(dense).schedule((m, 128), layout="accumulator", packed=True).halves is None
    empty = BsrMask(np.zeros((64, 128), bool)).schedule((m, 128), layout="accumulator")
    assert empty.halves is not None and empty.halves.size == 0
