"""Sequences put one after another: the kernel compiled for the CPU, its stand-in, and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import DTypeError, ShapeError
from stof_cupy.jit.packing_kernel import COPIES, NARROWED, POSITION, SEQUENCE, packing
from stof_cupy.ops.packing import Column, Table, pack
from stof_cupy.testing import poison, random_array, rng
from tests.masks import on_host
from tests.runtime.fake_packing import packed

LENGTHS = np.array([0, 1, 17, 0, 0, 300, 5, 33, 0])
TOKENS, SIZE = int(LENGTHS.sum()), 384
PLACES = np.concatenate([np.arange(n) for n in LENGTHS])
NUMBERS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
HOW = ("kernel", "stand-in")


class There:
    """An array as if it were on a GPU."""

    def __init__(self, x: Any) -> None:
        self.host = x
        self.data = SimpleNamespace(ptr=x.__array_interface__["data"][0])
        for name in ("shape", "strides", "dtype", "ndim", "itemsize"):
            setattr(self, name, getattr(x, name))

    def __len__(self) -> int:
        return len(self.host)


def out_of(dtype: Any, *rest: int, first: bool = True, size: int = SIZE) -> There:
    shape = (1, size, *rest) if first else (size, *rest)
    return There(on_host.fenced(poison(shape, np.dtype(dtype))))


def fenced(x: Any) -> There:
    return There(on_host.fenced(np.ascontiguousarray(x)))


def run(
    how: str,
    columns: Sequence[Column],
    *counted: tuple[int, There],
    lengths: Any = LENGTHS,
    seed: int = 0,
) -> None:
    """Do what `pack` does, on the CPU; memory ends where each array does."""
    again = sum(column.again is not None for column in columns)
    table = Table(lengths, len(columns) + again + len(counted))
    for column in columns:
        table.add(column)
    for kind, out in counted:
        table.add_counted(kind, out)
    grid, sizes = table.launch()
    numbers = on_host.fenced(table.numbers())
    assert numbers.ctypes.data % 16 == 0
    fields = {"table": numbers.ctypes.data, **sizes}
    if how == "kernel":
        on_host.launch(packing(), grid, seed=seed, **fields)
    else:
        packed(grid, fields)


def rows_of(whole: Any, lengths: Any = LENGTHS) -> list[Any]:
    stops = np.cumsum(lengths)
    return [whole[stop - n : stop] for n, stop in zip(lengths, stops, strict=True)]


def padded(whole: Any, size: int = SIZE) -> Any:
    longer = np.zeros((1, size, *whole.shape[1:]), whole.dtype)
    longer[0, : len(whole)] = whole
    return longer


def equal(out: There, want: Any) -> None:
    assert out.dtype == want.dtype and out.shape == want.shape
    np.testing.assert_array_equal(out.host.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seed", range(3))
def test_ids_positions_and_numbers_by_one_launch(how: str, seed: int) -> None:
    ids = rng(seed).integers(0, 2**31, TOKENS).astype(np.int32)
    types = rng(seed).integers(0, 2, TOKENS)
    outs = [out_of(np.int32), out_of(np.int32), out_of(np.int32)]
    numbers = [out_of(np.int32, first=False) for _ in range(2)]
    columns = [Column([fenced(row) for row in rows_of(ids)], outs[0])]
    columns.append(Column([fenced(row) for row in rows_of(types)], outs[1]))
    counted = [(SEQUENCE, each) for each in numbers]
    run(how, columns, *counted, (POSITION, outs[2]), seed=seed)
    equal(outs[0], padded(ids))
    equal(outs[1], padded(types.astype(np.int32)))
    equal(outs[2], padded(PLACES.astype(np.int32)))
    for each in numbers:
        assert each.host[:TOKENS].tolist() == NUMBERS.tolist()
        assert (each.host[TOKENS:] == -1).all()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_what_an_int_cannot_hold_is_minus_one(how: str, dtype: str) -> None:
    numbers = [0, 2**31 - 1, 2**31, 2**32, 2**32 + 7, 2**63 - 1]
    more = [-1, -(2**31), -(2**32) + 5, -(2**63)] if dtype == "int64" else [2**63, 2**64 - 1]
    x = np.array(numbers + more, dtype)
    out = out_of(np.int32, size=16)
    run(how, [Column([fenced(x)], out)], lengths=np.array([len(x)]))
    want = [0, 2**31 - 1] + [-1] * (len(x) - 2)
    assert out.host[0, : len(x)].tolist() == want and not out.host[0, len(x) :].any()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
@pytest.mark.parametrize("step", [2, 3, -1, -2])
def test_ids_with_strides(how: str, dtype: str, step: int) -> None:
    ids = rng(step % 7).integers(0, 2**31, TOKENS).astype(dtype)
    rows = []
    for row in rows_of(ids):
        wide = poison((max(len(row) * abs(step) - abs(step) + 1, 0),), row.dtype)
        wide[:: abs(step)] = row[::-1] if step < 0 else row
        rows.append(There(on_host.fenced(wide)[::step]))
    out = out_of(np.int32)
    run(how, [Column(rows, out)])
    equal(out, padded(ids).astype(np.int32))


RESTS = [((), "uint8", 1), ((5,), "uint8", 1), ((3,), "float16", 2), ((7, 2), "bfloat16", 4)]
RESTS += [((3,), "float32", 4), ((1,), "float64", 8), ((12,), "float16", 8), ((8,), "bfloat16", 16)]
RESTS += [((2, 40), "float16", 16)]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("rest", "dtype", "width"), RESTS)
@pytest.mark.parametrize("place", ["there", "there, together", "here", "here, together", "both"])
def test_rows_of_any_bytes(
    how: str, rest: tuple[int, ...], dtype: str, width: int, place: str
) -> None:
    kind = as_dtype(dtype) if dtype == "bfloat16" else np.dtype(dtype)
    nbytes = TOKENS * int(np.prod(rest)) * kind.itemsize
    whole = rng(width).integers(0, 256, nbytes, np.uint8).view(kind).reshape(TOKENS, *rest)
    rows = rows_of(whole)
    given: Any = {
        "there": [None if not len(row) else fenced(row) for row in rows],
        "there, together": fenced(whole),
        "here": rows,
        "here, together": whole,
        "both": [fenced(row) if number % 2 else row for number, row in enumerate(rows)],
    }[place]
    out, plain = out_of(kind, *rest), out_of(np.int32)
    table = Table(LENGTHS, 1)
    table.add(Column(given, out))
    assert table._words[len(LENGTHS) + 1] >= COPIES[1]
    if "together" in place:
        assert table._words[len(LENGTHS) + 1] == COPIES[width]
    run(how, [Column(given, out)], (POSITION, plain))
    equal(out, padded(whole))
    equal(plain, padded(PLACES.astype(np.int32)))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("offset", [0, 1, 4, 8])
def test_rows_far_from_each_other(how: str, offset: int) -> None:
    """Rows are parts of longer ones, and begin where fewer bytes can be copied at a time."""
    wide = rng(offset).integers(0, 2**16, (TOKENS, 24)).astype(np.uint16).view(np.float16)
    part = wide[:, offset : offset + 16]
    together, each = out_of(np.float16, 16), out_of(np.float16, 16)
    given = There(on_host.fenced(wide)[:, offset : offset + 16])
    parts = [There(row) for row in rows_of(given.host)]
    run(how, [Column(given, together), Column(parts, each)])
    equal(together, padded(part))
    equal(each, padded(part))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_same_is_written_again(how: str, dtype: str) -> None:
    ids = rng(3).integers(0, 2**31, TOKENS).astype(dtype)
    out, again, places = out_of(np.int32), out_of(np.int32), out_of(np.int32)
    column = Column([fenced(row) for row in rows_of(ids)], out, again)
    run(how, [column], (POSITION, places))
    for each in (out, again):
        equal(each, padded(ids).astype(np.int32))
    equal(places, padded(PLACES.astype(np.int32)))


def test_pieces_fit_both_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU stops at a piece of 16 bytes that lies between two."""
    pieces: list[int] = []
    monkeypatch.setattr(Table, "_add", lambda self, out, kind, count: pieces.append(count))
    memory = np.zeros(SIZE * 16 + 32, np.uint8)
    at = -memory.ctypes.data % 16
    whole, off = (
        There(np.ndarray((1, SIZE, 4), np.float32, memory, at + shift)) for shift in (0, 4)
    )
    x = There(np.ndarray((TOKENS, 4), np.float32, memory, at))
    for again in (None, off):
        Table(LENGTHS, 2).add(Column(x, whole, again))
    assert pieces == [1, 4, 4]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rest", [(), (8,)])
def test_zeros_for_all_do_not_go_up(how: str, rest: tuple[int, ...]) -> None:
    zeros = np.broadcast_to(np.float32(0), (TOKENS, *rest))
    out, negative = out_of(np.float32, *rest), out_of(np.float32, *rest)
    table = Table(LENGTHS, 1)
    table.add(Column(zeros, out))
    assert table.numbers() is table._words
    run(how, [Column(zeros, out), Column(-zeros[:1].repeat(TOKENS, 0), negative)])
    equal(out, padded(zeros))
    equal(negative, padded(-zeros))


@pytest.mark.parametrize("how", HOW)
def test_one_row_for_all_goes_up_once(how: str) -> None:
    there, here = out_of(np.int32), out_of(np.int32)
    host = np.broadcast_to(np.int32(7), (TOKENS,))
    device = There(np.broadcast_to(on_host.fenced(np.array([9], np.int32)), (TOKENS,)))
    table = Table(LENGTHS, 1)
    table.add(Column(host, here))
    assert table.numbers().nbytes <= table._words.nbytes + 16
    run(how, [Column(host, here), Column(device, there)])
    equal(here, padded(np.full(TOKENS, 7, np.int32)))
    equal(there, padded(np.full(TOKENS, 9, np.int32)))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("size", [1, 255, 256, 257, 600])
def test_sizes_beside_those_of_blocks(how: str, size: int) -> None:
    for tokens in {1, size - 1, size} - {0}:
        ids = rng(tokens).integers(0, 100, tokens)
        out, places = out_of(np.int32, size=size), out_of(np.int32, size=size)
        numbers = out_of(np.int32, first=False, size=size)
        run(
            how,
            [Column([fenced(ids)], out)],
            (POSITION, places),
            (SEQUENCE, numbers),
            lengths=np.array([tokens]),
        )
        equal(out, padded(ids.astype(np.int32), size))
        equal(places, padded(np.arange(tokens, dtype=np.int32), size))
        assert numbers.host.tolist() == [0] * tokens + [-1] * (size - tokens)


def test_wide_pieces_are_copied_where_all_allow_it() -> None:
    def kind(given: Any, out: There) -> int:
        table = Table(np.array([3]), 1)
        table.add(Column(given, out))
        return int(table._words[2])

    rows = There(on_host.fenced(np.zeros((3, 24), np.float16)))
    out = out_of(np.float16, 8, size=3)
    assert kind(There(rows.host[:, :8]), out) == COPIES[16]
    assert kind(There(rows.host[:, 4:12]), out) == COPIES[8]
    assert kind(There(rows.host[:, 1:9]), out) == COPIES[2]
    assert kind(fenced(np.zeros(3, np.int64)), out_of(np.int32, size=3)) == NARROWED
    assert kind(fenced(np.zeros(3, np.int64)), out_of(np.int64, size=3)) == COPIES[8]


ROWS = np.zeros((TOKENS, 4), np.float16)
OF_BOTH_WIDTHS = [np.zeros(n, f"i{4 + 4 * (number % 2)}") for number, n in enumerate(LENGTHS)]


@pytest.mark.parametrize(
    ("column", "error"),
    [
        (Column(ROWS[1:], out_of(np.float16, 4)), ShapeError),
        (Column(ROWS, out_of(np.float16, 5)), ShapeError),
        (Column(ROWS[:, 0], out_of(np.float16, 4)), ShapeError),
        (Column(rows_of(ROWS)[::-1], out_of(np.float16, 4)), ShapeError),
        (Column(rows_of(ROWS)[1:], out_of(np.float16, 4)), ShapeError),
        (Column([None] * len(LENGTHS), out_of(np.float16, 4)), ShapeError),
        (Column(rows_of(ROWS[:, :3]), out_of(np.float16, 4)), ShapeError),
        (Column(ROWS, out_of(np.float32, 4)), DTypeError),
        (Column(ROWS, out_of(np.uint16, 4)), DTypeError),
        (Column(ROWS.astype(np.float64), out_of(np.int32, 4)), DTypeError),
        (Column(np.zeros(TOKENS, np.int16), out_of(np.int32)), DTypeError),
        (Column(OF_BOTH_WIDTHS, out_of(np.int32)), DTypeError),
        (Column(ROWS, out_of(np.float16, 4, size=TOKENS - 1)), ShapeError),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(column: Column, error: type[Exception]) -> None:
    table = Table(LENGTHS, 1)
    with pytest.raises(error):
        table.add(column)
        table.launch()


def test_arrays_that_count_are_of_int32_and_of_one_size() -> None:
    table = Table(LENGTHS, 2)
    with pytest.raises(DTypeError, match="int64"):
        table.add_counted(POSITION, out_of(np.int64))
    table.add_counted(POSITION, out_of(np.int32))
    table.add_counted(SEQUENCE, out_of(np.int32, size=SIZE + 1))
    with pytest.raises(ShapeError, match="one number of rows"):
        table.launch()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_on_a_gpu(seed: int) -> None:
    import cupy

    g = rng(seed)
    lengths = g.integers(0, 400, g.integers(1, 200))
    tokens = int(lengths.sum())
    size = tokens + int(g.integers(0, 200))
    ids, long = g.integers(0, 2**31, tokens).astype(np.int32), g.integers(0, 2**31, tokens)
    hidden = random_array(g, (tokens, 96), "bfloat16")
    there = [cupy.asarray(np.repeat(row, 2))[::2] for row in rows_of(long, lengths)]
    mixed = [row if i % 2 else cupy.asarray(row) for i, row in enumerate(rows_of(ids, lengths))]
    outs = [cupy.asarray(poison((1, size), np.dtype(np.int32))) for _ in range(4)]
    wide, part = (cupy.asarray(poison((1, size, n), hidden.dtype)) for n in (96, 40))
    numbers = cupy.asarray(poison((size,), np.dtype(np.int32)))
    columns = [Column(mixed, outs[0]), Column(there, outs[1]), Column(long, outs[2])]
    columns += [Column(cupy.asarray(hidden), wide)]
    columns += [Column(cupy.asarray(hidden)[:, 3:43], part)]
    pack(lengths, columns, positions=outs[3], numbers=[numbers])
    places = np.concatenate([np.arange(n) for n in lengths])
    want = [ids, long, long, places]
    for out, each in zip(outs, want, strict=True):
        np.testing.assert_array_equal(out.get(), padded(each.astype(np.int32), size))
    for out, each in ((wide, hidden), (part, np.ascontiguousarray(hidden[:, 3:43]))):
        bits = out.get().view(np.uint16)
        np.testing.assert_array_equal(bits, padded(each, size).view(np.uint16))
    want_numbers = np.full(size, -1)
    want_numbers[:tokens] = np.repeat(np.arange(len(lengths)), lengths)
    np.testing.assert_array_equal(numbers.get(), want_numbers)
