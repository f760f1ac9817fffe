"""Predicates as text: on the GPU, by NumPy, and what the text means, written out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import DeviceError, ShapeError, StofError
from stof_cupy.masks import Pattern
from tests.masks.dense import dense
from tests.masks.on_device import check_array, check_same, room

pytestmark = pytest.mark.gpu

SHAPES = ((1, 1), (1, 65), (64, 64), (129, 63), (200, 300), (0, 5), (5, 0))
Ints = np.ndarray


def quotient(a: Ints, b: int) -> Ints:
    """Divide towards zero, as C does."""
    return np.sign(a) * (abs(a) // b)


def remainder(a: Ints, b: int) -> Ints:
    return a - quotient(a, b) * b


MEANINGS: dict[str, Callable[[Ints, Ints], Any]] = {
    "i >= j": lambda i, j: i >= j,
    "i > j": lambda i, j: i > j,
    "i <= j": lambda i, j: i <= j,
    "i < j": lambda i, j: i < j,
    "i == j": lambda i, j: i == j,
    "i != j": lambda i, j: i != j,
    "i >= j && i - j <= 70": lambda i, j: (i >= j) & (i - j <= 70),
    "i < 3 || j < 70": lambda i, j: (i < 3) | (j < 70),
    "!(i < 3 || j < 70)": lambda i, j: ~((i < 3) | (j < 70)),
    "i < 3 || j < 70 && i >= j": lambda i, j: (i < 3) | ((j < 70) & (i >= j)),
    "i + j < 100": lambda i, j: i + j < 100,
    "i - j == -3": lambda i, j: i - j == -3,
    "i - j - 3 > 0": lambda i, j: i - j - 3 > 0,
    "-i + 5 < +j": lambda i, j: 5 - i < j,
    "i + 2 * j < 3 * i + 1": lambda i, j: i + 2 * j < 3 * i + 1,
    "i / 64 == j / 64": lambda i, j: i // 64 == j // 64,
    "(i - j) / 7 == -2": lambda i, j: quotient(i - j, 7) == -2,
    "(i - j) / 7 == 0": lambda i, j: abs(i - j) < 7,
    "(i + j) % 3 == 0": lambda i, j: (i + j) % 3 == 0,
    "(i - j) % 5 == -1": lambda i, j: remainder(i - j, 5) == -1,
    "i / (j - 5) == 0": lambda i, j: (j == 5) | (i < abs(j - 5)),
    "i % (j - 5) == 0": lambda i, j: (j == 5) | (i % np.where(j == 5, 1, abs(j - 5)) == 0),
    "(i ^ j) == 1": lambda i, j: i ^ j == 1,
    "((i ^ j) & 5) == 0": lambda i, j: (i ^ j) & 5 == 0,
    "i & 1 == 1": lambda i, j: (i & 1 == 1) & (j == j),
    "i & 2 == 2": lambda i, j: (i & 1 == 1) & (j == j),  # C's: ``i & (2 == 2)``
    "(i | 1) >= (j | 1)": lambda i, j: (i | 1) >= (j | 1),
    "i | 1 ^ 3 & j": lambda i, j: (i | (1 ^ (3 & j))) != 0,
    "~i + j > 3": lambda i, j: j - i - 1 > 3,
    "(i >> 4) == (j >> 4)": lambda i, j: i // 16 == j // 16,
    "i - j >> 2 == -1": lambda i, j: (i - j) // 4 == -1,
    "(1 << 6) + i > j": lambda i, j: 64 + i > j,
    "i - j": lambda i, j: i != j,
    "!i || j": lambda i, j: (i == 0) | (j != 0),
    "(i < j) == (j < 70)": lambda i, j: (i < j) == (j < 70),
    "(i > 3) + (j > 3) + (i > j) == 2": lambda i, j: (i > 3).astype(int) + (j > 3) + (i > j) == 2,
    "i > j ? j < 9 : i < 5": lambda i, j: np.where(i > j, j < 9, i < 5),
    "i < 9 ? true : j < 9 ? i < 70 : false": lambda i, j: (i < 9) | ((j < 9) & (i < 70)),
    "abs(i - j) <= 20": lambda i, j: abs(i - j) <= 20,
    "min(i, j) < 5 || max(i, 2 * j) < 90": lambda i, j: (
        (np.minimum(i, j) < 5) | (np.maximum(i, 2 * j) < 90)
    ),
    "i * 0.5 >= j - 0.25": lambda i, j: i * 0.5 >= j - 0.25,
    "i / 2.0 > j / 3": lambda i, j: i / 2 > j // 3,
    "i < 0x40 && j >= 1e2": lambda i, j: (i < 64) & (j >= 100),
    "i * 1000000000000 >= j * 999999999999": lambda i, j: i * 10**12 >= j * (10**12 - 1),
    "true": lambda i, j: i == i,
    "0 > 1": lambda i, j: i != i,
}


@pytest.mark.parametrize("text", MEANINGS)
def test_operators(text: str) -> None:
    for shape in SHAPES:
        made, expected = masks.predicate(shape, text), dense(*shape, MEANINGS[text])
        check_array(made.to("cuda"), expected)
        check_same(made)


DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


@pytest.mark.parametrize("bounded", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_type(dtype: str, bounded: bool) -> None:
    """Negative numbers where the type has them, fractions where it has those."""
    import cupy

    g = np.random.default_rng(0)
    low = -4 if np.dtype(dtype).kind in "if" else 0
    step = 0.5 if np.dtype(dtype).kind == "f" else 1
    rows, cols = (
        (g.integers(low, 2 if dtype == "bool" else 5, n) * step).astype(dtype) for n in (200, 300)
    )
    where = masks.sliding_window(200, 300, window=70, align="top-left") if bounded else None
    limit = where.toarray() if where else True
    for text, expected in (
        ("a[i] == b[j]", rows[:, None] == cols),
        ("a[i] >= b[j] && i >= j", (rows[:, None] >= cols) & np.tri(200, 300, dtype=bool)),
        ("a[i] < 2 && b[j] != 0", (rows[:, None] < 2) & (cols != 0)),
    ):
        on_cpu = masks.predicate((200, 300), text, arrays={"a": rows, "b": cols}, within=where)
        check_same(on_cpu)
        np.testing.assert_array_equal(on_cpu.toarray(), expected & limit)
        arrays = {"a": cupy.asarray(rows), "b": cupy.asarray(cols)}
        made = masks.predicate((200, 300), text, arrays=arrays, within=where)
        check_array(made.to("cuda"), expected & limit)


@pytest.mark.parametrize("bounded", (False, True))
def test_scalars(bounded: bool) -> None:
    where = masks.causal(200) if bounded else None
    limit = np.tri(200, dtype=bool) if bounded else True
    i, j = np.indices((200, 200))
    scalars: dict[str, Any] = {"w": 20, "x": 0.25, "on": True, "off": False, "n": -3}
    for text, expected in (
        ("i - j <= w", i - j <= 20),
        ("i * x >= j", i * 0.25 >= j),
        ("on && i > j", i > j),
        ("off || i > j", i > j),
        ("i - j > n && i - j < w", (i - j > -3) & (i - j < 20)),
    ):
        used = {name: value for name, value in scalars.items() if name in text.split()}
        made = masks.predicate((200, 200), text, arrays=used, within=where)
        np.testing.assert_array_equal(made.toarray(), expected & limit)
        check_array(made.to("cuda"), expected & limit)


@pytest.mark.parametrize("bounded", (False, True))
@pytest.mark.parametrize("on_gpu", (False, True))
def test_what_is_read_out_of_bounds_is_zero(on_gpu: bool, bounded: bool) -> None:
    """On either side, however far; nothing wraps around as negative indices of NumPy do."""
    import cupy

    values = np.random.default_rng(0).integers(1, 4, 100)
    values[50:] = 0

    def at(index: np.ndarray) -> np.ndarray:
        inside = (index >= 0) & (index < 100)
        return np.where(inside, values[np.clip(index, 0, 99)], 0)

    i, j = np.indices((200, 260))
    where = masks.sliding_window(200, 260, window=64, align="top-left") if bounded else None
    limit = where.toarray() if where else True
    x = cupy.asarray(values) if on_gpu else values
    for text, expected in (
        ("a[i] == a[j]", at(i) == at(j)),
        ("a[i - 3] == a[j - 70]", at(i - 3) == at(j - 70)),
        ("a[i + 90] != a[j]", at(i + 90) != at(j)),
        ("a[i - j] > 0", at(i - j) > 0),
        ("a[i * 1000 - 50000] >= a[j]", at(i * 1000 - 50_000) >= at(j)),
        ("a[0 - 1] == a[i]", at(i) == 0),
    ):
        made = masks.predicate((200, 260), text, arrays={"a": x}, within=where)
        check_array(made.to("cuda"), expected & limit)
        if not on_gpu:
            np.testing.assert_array_equal(made.toarray(), expected & limit)


def test_lookups_in_lookups() -> None:
    import cupy

    block = cupy.arange(200) // 7
    group = np.random.default_rng(0).integers(0, 3, 29)
    made = masks.predicate(
        (200, 200),
        "group[block[i]] == group[block[j]]",
        arrays={"block": block, "group": cupy.asarray(group)},
    )
    own = group[np.arange(200) // 7]
    check_array(made.to("cuda"), own[:, None] == own)


@pytest.mark.parametrize("step", (2, -1, 3))
def test_arrays_that_are_not_contiguous(step: int) -> None:
    import cupy

    x = cupy.arange(600) // 50
    view = x[::step]
    host = view.get()[:200]
    made = masks.predicate((200, 200), "a[i] == a[j]", arrays={"a": view})
    check_array(made.to("cuda"), host[:, None] == host)
    x += (cupy.arange(600) % 7) * 20
    host = view.get()[:200]
    mask = made.to("cuda", **room((200, 200)))
    x //= 3
    mask.rebuild()
    host = view.get()[:200]
    check_array(mask, host[:, None] == host)


def test_several_formulas_in_one_expression() -> None:
    import cupy

    a, b = (np.random.default_rng(n).integers(0, 3, 300) for n in range(2))
    first = masks.predicate((300, 300), "x[i] == x[j]", arrays={"x": cupy.asarray(a)})
    second = masks.predicate((300, 300), "x[i] < x[j] + w", arrays={"x": cupy.asarray(b), "w": 1})
    third = masks.predicate((200, 100), "i + j < 150").shift(65, 130, (300, 300))
    x, y = a[:, None] == a, b[:, None] < b + 1
    z = np.zeros((300, 300), bool)
    z[65:265, 130:230] = np.add.outer(np.arange(200), np.arange(100)) < 150
    check_array(((first & ~second) ^ third).to("cuda"), (x & ~y) ^ z)
    check_array(
        (third | first[:, :] & masks.causal(300)).to("cuda"), z | x & np.tri(300, dtype=bool)
    )


@pytest.mark.parametrize("within", ("pattern", "mask", "array"))
def test_within_is_anything_that_can_be_a_mask(within: str) -> None:
    near = masks.sliding_window(300, window=20)
    bound = {"pattern": near, "mask": near.tobsr(), "array": near.toarray()}[within]
    made = masks.predicate((300, 300), "(i + j) % 2 == 0", within=bound)
    expected = near.toarray() & dense(300, 300, lambda q, k: (q + k) % 2 == 0)
    np.testing.assert_array_equal(made.toarray(), expected)
    check_array(made.to("cuda"), expected)


def test_the_size_of_a_mask_that_is_bounded() -> None:
    """Only tiles of `within` are listed, at a length of which all tiles would take minutes."""
    s = 131_072
    near = masks.sliding_window(s, window=64, causal=True)
    made = masks.predicate((s, s), "(i - j) % 2 == 0", within=near)
    on_gpu = made.to("cuda")
    assert on_gpu.nbytes < 8 * 2**20
    assert on_gpu.to("cpu").equals(masks.dilated(s, window=32, dilation=2, causal=True))


ERRORS: list[tuple[type[Exception], str, Callable[[Any], Pattern]]] = [
    (StofError, "doc", lambda xp: masks.predicate((9, 9), "doc[i] == doc[j]")),
    (StofError, "k", lambda xp: masks.predicate((9, 9), "i >= k")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "i >=")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "(i >= j")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "i; __trap(); j")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "__import__('os')")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "i = j")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "i >= j // all")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "i > 5 > j")),
    (StofError, "", lambda xp: masks.predicate((9, 9), "i % 2.5 > j")),
    (StofError, "w", lambda xp: masks.predicate((9, 9), "i > j", arrays={"w": 3})),
    (
        ShapeError,
        "a",
        lambda xp: masks.predicate((9, 9), "a[i] > 0", arrays={"a": xp.zeros((9, 9))}),
    ),
    (StofError, "a", lambda xp: masks.predicate((9, 9), "a > 0", arrays={"a": xp.zeros(9)})),
    (StofError, "a", lambda xp: masks.predicate((9, 9), "a[i] > 0", arrays={"a": 3})),
    (StofError, "i", lambda xp: masks.predicate((9, 9), "i[j] > 0", arrays={"i": xp.zeros(9)})),
    (
        StofError,
        "a",
        lambda xp: masks.predicate((9, 9), "a[i] > 0", arrays={"a": xp.zeros(9, complex)}),
    ),
    (ShapeError, "within", lambda xp: masks.predicate((9, 9), "i > j", within=masks.full(8))),
]


@pytest.mark.parametrize("on_gpu", (False, True))
@pytest.mark.parametrize(("error", "match", "make"), ERRORS)
def test_errors(
    error: type[Exception], match: str, make: Callable[[Any], Pattern], on_gpu: bool
) -> None:
    """Said when the pattern is made: nothing is compiled or evaluated of what is not understood."""
    import cupy

    with pytest.raises(error, match=match):
        make(cupy if on_gpu else np)


def test_an_array_on_either_side_makes_it_one_of_the_gpu() -> None:
    import cupy

    a = np.arange(100) // 9
    made = masks.predicate((100, 100), "a[i] == b[j]", arrays={"a": a, "b": cupy.asarray(a)})
    check_array(made.to("cuda"), a[:, None] == a)
    with pytest.raises(DeviceError):
        made.tobsr()
