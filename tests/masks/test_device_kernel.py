"""The kernels that build masks, run on the CPU, against the lists that the CPU makes itself.

No GPU is needed. Buffers lie between guards and are poisoned, so that it is seen what is written.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.jit.mask_kernels import MASK_COLUMNS
from stof_cupy.masks import BsrMask, Pattern
from stof_cupy.masks.block_arrays import DeviceScores
from stof_cupy.masks.device.leaf import DenseArray, KeyFlags, StoredOnDevice
from stof_cupy.masks.schedule import Layout
from tests.masks.host_lists import (
    ALL_OF,
    OWN,
    Job,
    check,
    counts,
    needed,
    progress,
    ranked,
    reference,
    untouched,
)
from tests.masks.host_program import on_device, program_of
from tests.masks.test_device_build import OBLONG, SQUARE, draw, grow, leaf

Geometry = tuple[tuple[int, int], Layout]
WORDS: Geometry = ((64, 64), "words")
GEOMETRIES: tuple[Geometry, ...] = (
    WORDS,
    ((128, 64), "words"),
    ((64, 64), "accumulator"),
    ((64, 128), "accumulator"),
    ((128, 128), "accumulator"),
)
every_geometry = pytest.mark.parametrize(
    "geometry", GEOMETRIES, ids=lambda each: f"{each[0][0]}x{each[0][1]} {each[1]}"
)


def check_build(
    pattern: Pattern, expected: np.ndarray | None, geometry: Geometry, **how: int
) -> None:
    """With just as much room as it needs, the pattern is `expected`, ``(*lead, queries, keys)``."""
    if expected is None:
        each = [pattern.tobsr()]
    else:
        each = [BsrMask(mask) for mask in expected.reshape(-1, *expected.shape[-2:])]
    lists = reference(each, *geometry)
    check(Job(program_of(pattern), pattern.shape, *geometry, needed(lists)).build(**how), lists)


# ------------------------------------------------------------------ patterns


@every_geometry
@pytest.mark.parametrize("name", OBLONG)
def test_patterns_of_any_shape(name: str, geometry: Geometry) -> None:
    for shape in ((1, 1), (5, 0), (63, 129), (130, 64), (200, 300)):
        check_build(OBLONG[name](*shape), None, geometry)


@every_geometry
@pytest.mark.parametrize("name", SQUARE)
def test_square_patterns(name: str, geometry: Geometry) -> None:
    for size in (1, 65, 300):
        check_build(SQUARE[name](size), None, geometry)


@every_geometry
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_any_expression_is_its_elementwise_meaning(geometry: Geometry, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(((65, 130), (129, 64), (200, 200), (150, 300))))
    pattern, expected = grow(data.draw, *shape, data.draw(st.integers(0, 5)))
    check_build(pattern, expected, geometry)


@every_geometry
@pytest.mark.parametrize("lead", [(1,), (3,), (2, 1), (1, 3), (2, 3)])
def test_leading_axes(lead: tuple[int, ...], geometry: Geometry) -> None:
    """Some masks are empty, or full, or equal: each has its lists all the same."""
    shape = (150, 300)
    density = np.random.default_rng(0).choice([0, 0.0002, 0.3, 1.1], lead)[..., None, None]
    array = draw(*lead, *shape) < density
    check_build(DenseArray(array), array, geometry)
    aligned = np.zeros((*lead, 150, 320), bool)  # rows begin at multiples of 16 bytes
    aligned[..., :300] = array
    near = masks.sliding_window(*shape, window=40, align="top-left")
    made = DenseArray(aligned[..., :300]) & ~near
    check_build(made, array & ~near.toarray(), geometry)
    backwards = np.ascontiguousarray(array.swapaxes(-1, -2))[..., ::-1].swapaxes(-1, -2)
    check_build(DenseArray(backwards), array[..., ::-1, :], geometry)
    check_build(DenseArray(array)[7:, 65:], array[..., 7:, 65:], geometry)


def test_leaves_of_different_leading_axes() -> None:
    array, flags, scores = draw(2, 3, 130, 200) < 0.1, draw(200) < 0.5, draw(3, 5, 4, seed=1)
    kept = np.repeat(np.repeat(scores >= 0.5, 30, -2), 64, -1)[:, :130, :200]
    found = DeviceScores(scores.astype(np.float32), (130, 200), (30, 64), top=None, threshold=0.5)
    made = (DenseArray(array) | found) & KeyFlags(flags, 130)
    check_build(made, (array | kept) & flags, WORDS)


@pytest.mark.parametrize("seed", range(1, 6))
def test_threads_and_rows_in_any_order(seed: int) -> None:
    pattern = leaf("slash", 400, 500) ^ leaf("holes", 400, 500)
    for geometry in GEOMETRIES:
        check_build(pattern, None, geometry, seed=seed)


def test_warps_that_take_longer_than_the_first() -> None:
    """It is done with its tiles at a glance; the others have to look at all of theirs."""
    array = np.ones((128, 128 * 32), bool)
    array[:, :: 128 * 8] = False
    for geometry in (WORDS, ((128, 128), "accumulator")):
        for seed in range(3):
            check_build(DenseArray(array), array, geometry, seed=seed)


def test_rows_one_by_one() -> None:
    """The last one says how many tiles there are in all."""
    array = draw(3, 200, 150) < 0.001
    lists = reference([BsrMask(each) for each in array], *WORDS)
    job = Job(program_of(DenseArray(array)), (200, 150), *WORDS, needed(lists))
    for _ in range(job.masks * job.rows):
        assert untouched(job.totals)
        job.build(ctas=1)
    check(job, lists)


# ------------------------------------------------------------------ formulas


@pytest.mark.parametrize("geometry", (WORDS, ((128, 128), "accumulator")))
def test_formulas(geometry: Geometry) -> None:
    """Two of them, their arrays, and what a moved one is asked of beyond its shape."""
    rng = np.random.default_rng(0)
    doc, low = rng.integers(0, 3, 150).repeat(2), rng.integers(-3, 4, 70).astype(np.int8)
    first = masks.predicate((300, 300), "doc[i] == doc[j] && i >= j", arrays={"doc": doc})
    second = masks.predicate(
        (200, 100),
        "x[i - 5] * 2 < y[j] + w || abs(i - j) < n",
        arrays={"x": low, "y": rng.standard_normal(100, np.float32), "w": 0.25, "n": 9},
        within=masks.causal(200, 100, align="top-left"),
    )
    both = first & ~second.shift(65, 130, (300, 300))
    assert len(program_of(both).formulas) == 2
    check_build(both, None, geometry)
    check_build(both[3:290, 70:], None, geometry)
    i, j = np.indices((300, 300))
    seen = (doc[i] == doc[j]) & (i >= j)
    np.testing.assert_array_equal(first.toarray(), seen)


# ------------------------------------------------------------------ long and wide


def test_more_columns_than_threads() -> None:
    """Classified in several chunks; part tiles, full ones and empty ones in all of them."""
    shape = (130, 64 * 700 + 3)
    holes = draw(shape[1]) < 0.9999
    holes[:5000] = False
    pattern = masks.key_padding(holes, shape[0]) ^ masks.causal(*shape, align="bottom-right")
    for geometry in (WORDS, ((128, 128), "accumulator")):
        check_build(pattern, None, geometry)


@pytest.mark.parametrize("at_the_end", (False, True))
def test_as_many_columns_as_there_is_room_for(at_the_end: bool) -> None:
    """They are counted, and listed, in several chunks too."""
    keys = 64 * MASK_COLUMNS
    if at_the_end:
        pattern: Pattern = masks.causal(100, keys, align="bottom-right")[:, 64 * 60_000 :]
        pattern = pattern.shift(0, 64 * 60_000, (100, keys))
    else:
        flags = np.ones(keys, bool)
        flags[np.random.default_rng(0).integers(0, keys, 500)] = False
        flags[64 * 9000 : 64 * 20_000] = False
        pattern = masks.key_padding(flags, 3)
    check_build(pattern, None, WORDS)


@pytest.mark.parametrize("at_once", (1, 3))
def test_more_rows_than_lanes(at_once: int) -> None:
    """Rows that are built at once wait for those before them."""
    pattern = leaf("dilated", 64 * 100 + 7, 200) | leaf("holes", 64 * 100 + 7, 200)
    for seed in range(3):
        check_build(pattern, None, WORDS, at_once=at_once, seed=seed)
    array = draw(4, 3, 640, 130) < np.array([0.3, 0.0001, 0])[:, None, None]
    check_build(DenseArray(array), array, ((64, 128), "accumulator"), at_once=at_once)


# ------------------------------------------------------------------ look-back

TALL = 64 * 110
SEEN = {
    "none": lambda row: [],
    "the first": lambda row: [0],
    "the last": lambda row: [row - 1],
    "the last of a window": lambda row: [row - 32],
    "the first of the next": lambda row: [row - 33],
    "one in the third": lambda row: [row - 70],
    "several": lambda row: [row - 70, row - 40, row - 35],
    "all": lambda row: list(range(row)),
}


@pytest.mark.parametrize("row", (1, 2, 31, 32, 33, 64, 65, 109))
@pytest.mark.parametrize("name", SEEN)
def test_look_back(name: str, row: int) -> None:
    """A row adds up those before it, back to the nearest one that knows all before itself."""
    pattern = leaf("dilated", TALL, 200) | leaf("holes", TALL, 200)
    lists = reference([pattern.tobsr()], *WORDS)
    tiles, bitmaps = counts(lists)
    before = int(tiles[:row].sum()), int(bitmaps[:row].sum())
    after = before[0] + int(tiles[row]), before[1] + int(bitmaps[row])

    job = Job(program_of(pattern), pattern.shape, *WORDS, needed(lists))
    job.progress[:row] = progress(OWN, tiles, bitmaps)[:row]
    who = [each for each in SEEN[name](row) if 0 <= each < row]
    job.progress[who] = progress(ALL_OF, tiles.cumsum(), bitmaps.cumsum())[who]
    if who:
        job.progress[: max(who)] ^= np.uint64(1 << 33 | 1)  # must not matter any more
    told = job.progress[:row].copy()
    job.progress[-1] = row
    job.build(ctas=1)

    np.testing.assert_array_equal(job.progress[:row], told)
    assert job.progress[row] == progress(ALL_OF, *(np.array(each) for each in after))
    assert job.progress[-1] == row + 1
    assert job.row_ptr[0, row] == before[0] and job.full_ptr[0, row] == lists.full_ptr[row]
    listed = slice(before[0], after[0])
    np.testing.assert_array_equal(job.cols[listed], lists.cols[listed])
    for array, (first, end) in (
        (job.cols, (before[0], after[0])),
        (job.bitmaps, (before[1], after[1])),
    ):
        assert untouched(array[:first]) and untouched(array[end:])
    written = lists.bitmaps[lists.bitmap_id[before[0] : int(lists.full_ptr[row])]]
    np.testing.assert_array_equal(job.bitmaps[before[1] : after[1]], written)
    if row == len(tiles) - 1:
        assert job.totals.tolist() == [*needed(lists), 0]
        assert job.row_ptr[0, -1] == after[0]
    else:
        assert untouched(job.totals)


@pytest.mark.parametrize("spare", (0, 1))
def test_counts_that_no_int_holds_are_the_largest_one(spare: int) -> None:
    pattern, most = masks.causal(192), 2**31 - 1
    job = Job(program_of(pattern), pattern.shape, *WORDS, (5, 5))
    job.progress[:2] = progress(ALL_OF, np.array(most - 3 + 1 - spare), np.array(most - spare))
    job.progress[-1] = 2
    job.build(ctas=1)
    assert job.totals.tolist() == [most, most, 1]
    assert job.progress[2] == progress(ALL_OF, np.array(most), np.array(most))
    assert job.row_ptr[0, 2:].tolist() == [5, 5] and job.full_ptr[0, 2] == 5
    assert untouched(job.cols) and untouched(job.bitmap_id) and untouched(job.bitmaps)


# ------------------------------------------------------------------ capacity


@every_geometry
@pytest.mark.parametrize("missing", [(1, 0), (0, 1), (1, 1), (-3, -2), (7, 0), (0, 7), (9, 3)])
def test_one_tile_or_bitmap_less_than_needed(missing: tuple[int, int], geometry: Geometry) -> None:
    """Totals are those of the whole mask, and nothing is written beyond the room there is."""
    pattern = leaf("slash", 500, 600) | leaf("window", 500, 600)
    lists = reference([pattern.tobsr()], *geometry)
    tiles, bitmaps = (max(n - less, 0) for n, less in zip(needed(lists), missing, strict=True))
    check(Job(program_of(pattern), pattern.shape, *geometry, (tiles, bitmaps)).build(), lists)


@every_geometry
def test_any_capacity(geometry: Geometry) -> None:
    array = draw(2, 150, 300) < np.array([0.002, 1.1])[:, None, None]
    array[0, :64, 128:] = array[0, 64:, :128] = True
    lists = reference([BsrMask(each) for each in array], *geometry)
    tiles, bitmaps = needed(lists)
    for room in range(tiles + 2):
        for bitmap_room in {0, 1, bitmaps // 2, bitmaps - 1, bitmaps, bitmaps + 1}:
            job = Job(program_of(DenseArray(array)), (150, 300), *geometry, (room, bitmap_room))
            check(job.build(), lists)


def test_no_room_at_all_counts() -> None:
    """So a mask is measured."""
    for make in (OBLONG["causal"], OBLONG["holes"], OBLONG["empty"]):
        pattern = make(300, 500)
        lists = reference([pattern.tobsr()], *WORDS)
        check(Job(program_of(pattern), pattern.shape, *WORDS, (0, 0)).build(at_once=3), lists)


@every_geometry
def test_what_the_first_pass_found_out(geometry: Geometry) -> None:
    """A second one need not look again: it lists what it is told, whatever the program says."""
    array = draw(2, 150, 4500) < 0.0005
    array[1, :, 300:] = True
    lists = reference([BsrMask(each) for each in array], *geometry)
    first = Job(program_of(DenseArray(array)), array.shape[1:], *geometry, (0, 0))
    words = -(-array.shape[2] // geometry[0][1] // 32)
    found = first.memory.array((first.masks * first.rows, words, 2), np.uint32)
    check(first.build(found=found.ctypes.data), lists)
    columns = np.unpackbits(found.view(np.uint8), axis=-1, bitorder="little")
    tiles, bitmaps = counts(lists)
    assert (
        columns.reshape(len(found), words, 2, 32)[:, :, 0].sum((1, 2)).tolist() == bitmaps.tolist()
    )
    assert columns.sum((1, 2)).tolist() == tiles.tolist()

    second = Job(first.program, first.shape, *geometry, needed(lists))
    check(second.build(known=found.ctypes.data), lists)
    found[0, 0] = 0
    fewer = Job(first.program, first.shape, *geometry, needed(lists))
    fewer.build(known=found.ctypes.data)
    assert fewer.totals[0] < second.totals[0]


@pytest.mark.parametrize("other", (0, 7))
@pytest.mark.parametrize("one", (0, 1))
def test_operands_that_did_not_fit(one: int, other: int) -> None:
    """It is said of all that is made of them, unless that does not fit itself."""
    wrong = [np.array([each], np.int32) for each in (one, other)]
    mask = leaf("stored", 130, 200).tobsr()
    made = masks.causal(130, 200, align="top-left") & StoredOnDevice(on_device(mask, wrong[0]))
    made = made | StoredOnDevice(on_device(mask, wrong[1]))
    for missing in (0, 1):
        room = needed(mask.schedule())[0] - missing, 100
        job = Job(program_of(made), mask.shape, *WORDS, room).build()
        assert job.totals[2] == (1 if missing else 2 if one or other else 0)


# ------------------------------------------------------------------ order of rows


@pytest.mark.parametrize("rows", (1, 2, 255, 256, 257, 1000))
@pytest.mark.parametrize("longest", (0, 1, 3, 10**6))
def test_the_longest_rows_come_first(rows: int, longest: int) -> None:
    lengths = np.random.default_rng(rows).integers(0, longest + 1, (3, rows))
    row_ptr = np.zeros((3, rows + 1), np.int32)
    np.cumsum(lengths, axis=1, out=row_ptr[:, 1:])
    full_ptr = row_ptr[:, :-1] + lengths // 2
    order, work = ranked(row_ptr, full_ptr.astype(np.int32))
    np.testing.assert_array_equal(order, np.argsort(-lengths, axis=1, kind="stable"))
    for mask, row in np.ndindex(order.shape):
        tile = order[mask, row]
        expected = tile, row_ptr[mask, tile], full_ptr[mask, tile], row_ptr[mask, tile + 1]
        assert tuple(work[mask, row]) == expected
