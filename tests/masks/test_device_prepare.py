"""The kernels that run before a mask is built: cuts of block scores, runs of document ids.

Every test runs on the CPU too, with the kernel compiled for it (`on_host`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.jit.mask_kernels import DOCUMENT_CHUNK, mask_documents, mask_select
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.testing import poison
from tests.masks import on_host

NAN, INF = float("nan"), float("inf")
FLOATS = ("float16", "bfloat16", "float32")
CUT = np.dtype([("value", np.float32), ("last_col", np.int32)])


@dataclass
class Machine:
    """Where a kernel runs, and the arrays that it takes there."""

    xp: Any

    @property
    def on_gpu(self) -> bool:
        return self.xp is not np

    def get(self, array: Any) -> np.ndarray:
        return array.get() if self.on_gpu else array

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr if self.on_gpu else array.ctypes.data)

    def launch(self, spec: KernelSpec, grid: tuple[int, int], **fields: Any) -> None:
        if not self.on_gpu:
            return on_host.launch(spec, grid, **fields)
        from stof_cupy.jit.launch import kernel

        run = kernel(spec)
        run(grid, run.pack(**fields))

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(step // array.itemsize for step in array.strides)


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param == "host":
        return Machine(np)
    import cupy

    return Machine(cupy)


# ------------------------------------------------------------------ cuts of block scores


def select(machine: Machine, scores: Any, top: int) -> np.ndarray:
    """Run the kernel on scores ``(lead_a, lead_b, rows, cols)`` that lie on the machine."""
    lead_a, lead_b, rows, cols = scores.shape
    a, b, row, col = machine.strides(scores)
    count = lead_a * lead_b * rows
    cuts = machine.xp.full((count + 2) * 2, 0x5A5A5A5A, np.int32)  # one before, and one after
    machine.launch(
        mask_select(scores.dtype.name),
        (count, 1),
        scores=machine.pointer(scores),
        cut=machine.pointer(cuts[2:]),
        row_stride=row,
        col_stride=col,
        lead_a_stride=a,
        lead_b_stride=b,
        lead_b=lead_b,
        rows=rows,
        cols=cols,
        top=top,
    )
    found = machine.get(cuts)
    assert (found[[0, 1, -2, -1]] == 0x5A5A5A5A).all()
    return found[2:-2].view(CUT).reshape(lead_a, lead_b, rows)


def check_cut(scores: Any, cut: np.ndarray, top: int) -> None:
    """The cut is what sorting the row gives, in float64."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        row = scores.astype(np.float64)
    real = np.flatnonzero(row > -INF)
    best = real[np.lexsort((real, -row[real]))][:top]  # by falling score, then by column
    if not len(best):
        assert (float(cut["value"]), int(cut["last_col"])) == (INF, -1)
        return
    value, last = float(cut["value"]), int(cut["last_col"])
    kept = (row > value) | ((row == value) & (np.arange(len(row)) <= last))
    np.testing.assert_array_equal(np.flatnonzero(kept & (row > -INF)), np.sort(best))
    assert value == row[best].min()
    # The last column of all where no equal score is left out.
    equal = np.flatnonzero(row == value)
    assert last == (len(row) - 1 if np.isin(equal, best).all() else best[row[best] == value].max())
    if value == 0:
        assert not np.signbit(cut["value"])


def check_select(machine: Machine, scores: np.ndarray, top: int) -> None:
    """Check all rows of scores ``(rows, cols)``."""
    cuts = select(machine, machine.xp.asarray(scores)[None, None], top)[0, 0]
    for row, cut in zip(scores, cuts, strict=True):
        check_cut(row, cut, top)


def rounded(values: Any, dtype: str) -> np.ndarray:
    return np.asarray(values).astype(as_dtype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("cols", [1, 2, 31, 33, 255, 256, 257, 600])
def test_select_of_random_scores(machine: Machine, cols: int, dtype: str) -> None:
    rng = np.random.default_rng(cols)
    scores = rounded(rng.standard_normal((3, cols)), dtype)
    for top in sorted({0, 1, cols // 3, cols - 1, cols, cols + 7, 2**31 - 1}):
        check_select(machine, scores, top)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("cols", [5, 64, 300, 777])
def test_select_of_ties_nan_and_infinities(machine: Machine, cols: int, dtype: str) -> None:
    rng = np.random.default_rng(cols)
    pool = [NAN, -NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1.5, 6e-8, -6e-8, 65504.0, 1e-40, -1e-40]
    with np.errstate(under="ignore"):
        scores = rounded(rng.choice(pool, (4, cols)), dtype)
    for top in (1, 2, cols // 10, cols // 2, cols - 2, cols):
        check_select(machine, scores, top)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.0, INF, -INF, NAN])
def test_select_of_equal_scores(machine: Machine, value: float, dtype: str) -> None:
    scores = rounded(np.full((1, 530), value), dtype)
    for top in (0, 1, 255, 256, 257, 529, 530, 531):
        check_select(machine, scores, top)


@pytest.mark.parametrize("sparse", [1, 255, 256, 400])
def test_select_where_few_are_real(machine: Machine, sparse: int) -> None:
    """Forbidden blocks before, between and after the others."""
    scores = np.full((2, 700), -INF, np.float32)
    scores[0, 150 : 150 + sparse] = np.random.default_rng(0).integers(0, 3, sparse)
    scores[1, ::2][:sparse] = -np.arange(min(sparse, 350))
    scores[1, 1::4] = NAN
    for top in (1, sparse // 2, sparse, sparse + 1, 700):
        check_select(machine, scores, top)


def test_select_tells_bytes_of_the_key_apart(machine: Machine) -> None:
    """Scores that differ in one byte of their bits each, so that each pass decides alone."""
    base = np.uint32(0x3F317218)
    for shift in (0, 8, 16):
        bits = base ^ (np.random.default_rng(shift).permutation(256).astype(np.uint32) << shift)
        scores = bits.view(np.float32)
        for signed in (scores, -scores):
            for top in (1, 17, 128, 255):
                check_select(machine, signed[None], top)


@pytest.mark.parametrize("dtype", FLOATS)
def test_select_of_any_bits(machine: Machine, dtype: str) -> None:
    width = as_dtype(dtype).itemsize
    bits = np.random.default_rng(width).integers(0, 256, (3, 512 * width), np.uint8)
    scores = bits.view(as_dtype(dtype))
    for top in (1, 100, 400, 512):
        check_select(machine, scores, top)


@pytest.mark.parametrize("dtype", FLOATS)
def test_select_of_many_columns(machine: Machine, dtype: str) -> None:
    scores = rounded(np.random.default_rng(0).standard_normal((2, 10007)), dtype)
    for top in (1, 1000, 10000):
        check_select(machine, scores, top)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lead", [(1, 1), (2, 3), (3, 1), (1, 4)])
def test_select_of_leading_axes_and_strides(
    machine: Machine, lead: tuple[int, int], dtype: str
) -> None:
    rows, cols = 3, 70
    scores = rounded(np.random.default_rng(1).integers(0, 9, (*lead, rows, cols)), dtype)
    a, b = lead
    views = {
        "contiguous": lambda empty: empty((a, b, rows, cols)),
        "sparse": lambda empty: empty((a, b, 2 * rows, 3 * cols))[:, :, ::2, 1::3],
        "reversed": lambda empty: empty((a, b, rows, cols))[::-1, :, ::-1, ::-1],
        "transposed": lambda empty: empty((cols, b, a, rows)).transpose(2, 1, 3, 0),
    }
    for name, view in views.items():
        there = view(lambda shape: poison(shape, scores.dtype, machine.xp))
        there[...] = machine.xp.asarray(scores)
        cuts = select(machine, there, 20)
        for at in np.ndindex(a, b, rows):
            check_cut(scores[at], cuts[at], 20)
        assert machine.strides(there)[3] != 1 or name == "contiguous"


def test_select_of_one_row_for_all(machine: Machine) -> None:
    scores = machine.xp.arange(9, dtype=np.float32)
    cuts = select(machine, machine.xp.broadcast_to(scores, (2, 2, 3, 9)), 4)
    assert (cuts["value"] == 5).all() and (cuts["last_col"] == 8).all()


def test_select_of_no_columns(machine: Machine) -> None:
    cuts = select(machine, machine.xp.empty((1, 1, 2, 0), np.float32), 3)
    assert (cuts["value"] == INF).all() and (cuts["last_col"] == -1).all()


# ------------------------------------------------------------------ runs of document ids


def documents(machine: Machine, ids: Any, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Run the kernel on ids ``(lead, tokens)`` that lie on the machine."""
    lead, tokens = ids.shape
    lead_stride, id_stride = machine.strides(ids)
    spare = 3  # after each row
    out = [machine.xp.full((lead, tokens + spare), -7, np.int32) for _ in range(2)]
    machine.launch(
        mask_documents(ids.dtype.name),
        (-(-tokens // DOCUMENT_CHUNK), lead),
        ids=machine.pointer(ids),
        start=machine.pointer(out[0]),
        stop=machine.pointer(out[1]),
        id_stride=id_stride,
        lead_stride=lead_stride,
        out_lead_stride=tokens + spare,
        tokens=tokens,
        causal=causal,
    )
    start, stop = (machine.get(array) for array in out)
    assert (start[:, tokens:] == -7).all() and (stop[:, tokens:] == -7).all()
    return start[:, :tokens], stop[:, :tokens]


def runs_of(ids: np.ndarray, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return start and stop, token by token."""
    start, stop = np.zeros((2, len(ids)), np.int32)
    values = ids.tolist()
    first = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[first]:
            if values[first] >= 0:
                start[first:at] = first
                stop[first:at] = np.arange(first, at) + 1 if causal else at
            first = at
    return start, stop


def check_documents(machine: Machine, ids: np.ndarray) -> None:
    """Check ids ``(lead, tokens)`` or ``(tokens,)``, as both types and both rules."""
    ids = np.atleast_2d(ids)
    for dtype in (np.int32, np.int64):
        there = machine.xp.asarray(ids.astype(dtype))
        for causal in (False, True):
            for got, want in zip(
                documents(machine, there, causal),
                zip(*(runs_of(row, causal) for row in ids), strict=True),
                strict=True,
            ):
                np.testing.assert_array_equal(got, np.stack(want))


def draw_ids(tokens: int, mean: float, seed: int = 0) -> np.ndarray:
    """Return runs of random lengths; some are padding, and ids come back."""
    rng = np.random.default_rng([tokens, seed])
    count = int(tokens / mean) + 1
    lengths = rng.geometric(1 / mean, count)
    ids = np.repeat(rng.integers(-3, 8, count), lengths)[:tokens]
    return np.concatenate([ids, np.full(tokens - len(ids), 5)])


C = DOCUMENT_CHUNK
SIZES = (0, 1, 2, 31, 32, 33, 511, 513, C - 1, C, C + 1, 2 * C + 77)


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("mean", [1.0, 3.0, 70.0, 3000.0])
def test_documents_of_random_lengths(machine: Machine, tokens: int, mean: float) -> None:
    check_documents(machine, draw_ids(tokens, mean))


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("value", [0, 7, -1])
def test_one_document(machine: Machine, tokens: int, value: int) -> None:
    check_documents(machine, np.full(tokens, value))


@pytest.mark.parametrize("before", [1, 37, 64, C - 1, C, C + 1])
@pytest.mark.parametrize("after", [0, 1, C + 33])
def test_a_long_document_between_others(machine: Machine, before: int, after: int) -> None:
    """It begins and ends on either side of the borders of words, chunks and search steps."""
    ids = np.concatenate([np.full(before, 1), np.full(3 * C - 64, 2), np.full(after, 1)])
    check_documents(machine, ids)


def test_the_same_id_on_both_sides_of_another(machine: Machine) -> None:
    """A run ends where another one begins, however near its id comes back."""
    ids = np.full(4 * C, 3)
    ids[[1, 2 * C - 1, 3 * C + 5]] = (4, 4, -1)
    check_documents(machine, ids)
    ids = np.full(4 * C, 3)
    ids[[2 * C, 2 * C + 2]] = 4
    check_documents(machine, ids)


def test_padding_at_both_ends(machine: Machine) -> None:
    check_documents(machine, np.repeat([-1, 2, 3, -5, -6], [C + 9, 40, C, 3, 2 * C]))


def test_ids_beyond_32_bits(machine: Machine) -> None:
    low = np.repeat([5, 5 + 2**32, -(2**40), 2**63 - 1, -(2**63)], [3, C, 4, 5, 6])
    there = machine.xp.asarray(low)[None]
    for causal in (False, True):
        for got, want in zip(documents(machine, there, causal), runs_of(low, causal), strict=True):
            np.testing.assert_array_equal(got[0], want)


def test_leading_axes_and_strides_of_ids(machine: Machine) -> None:
    tokens = C + 50
    ids = np.stack([draw_ids(tokens, 900.0, seed) for seed in range(3)])
    check_documents(machine, ids)
    for dtype in (np.int32, np.int64):
        views = (
            poison((3, 2 * tokens), dtype, machine.xp)[:, ::2],
            poison((3, tokens), dtype, machine.xp)[::-1, ::-1],
            poison((tokens, 3), dtype, machine.xp).T,
        )
        for view in views:
            view[...] = machine.xp.asarray(ids.astype(dtype))
            start, stop = documents(machine, view, causal=False)
            for row, expected in enumerate(runs_of(each, False) for each in ids):
                np.testing.assert_array_equal((start[row], stop[row]), expected)


def test_one_row_of_ids_for_all(machine: Machine) -> None:
    ids = draw_ids(100, 9.0)
    there = machine.xp.broadcast_to(machine.xp.asarray(ids.astype(np.int32)), (3, 100))
    start, stop = documents(machine, there, causal=True)
    for row in range(3):
        np.testing.assert_array_equal((start[row], stop[row]), runs_of(ids, True))


@pytest.mark.gpu
@pytest.mark.parametrize("value", [0, -1])
def test_a_million_tokens(value: int) -> None:
    import cupy

    ids = np.full(10**6 + 77, value)
    check_documents(Machine(cupy), ids)
    ids[[3, 500_000]] = 9
    check_documents(Machine(cupy), ids)


@pytest.mark.gpu
def test_select_can_be_captured() -> None:
    """The launch neither allocates nor waits: replayed, it sees what the scores are then."""
    import cupy

    from stof_cupy.jit.launch import kernel
    from tests.masks.on_device import captured

    machine = Machine(cupy)
    scores = cupy.zeros((2, 300), np.float32)
    cuts = cupy.zeros(2 * 2, np.int32)
    run = kernel(mask_select("float32"))
    params = run.pack(
        scores=machine.pointer(scores),
        cut=machine.pointer(cuts),
        row_stride=300,
        col_stride=1,
        lead_a_stride=0,
        lead_b_stride=0,
        lead_b=1,
        rows=2,
        cols=300,
        top=9,
    )
    replay = captured(lambda: run((2,), params))
    values = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    scores.set(values)
    replay()
    for row, cut in zip(values, cuts.get().view(CUT), strict=True):
        check_cut(row, cut, 9)
