"""Masks from block scores against a definition that sorts each row in Python."""

from __future__ import annotations

import pickle
import sys
from itertools import product
from math import isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    StofError,
    UnsupportedError,
)
from stof_cupy.masks import MaskStack, Pattern, causal
from stof_cupy.masks.block_arrays import DeviceScores
from stof_cupy.masks.block_layouts import block_layout
from stof_cupy.masks.scores import score_blocks
from tests.masks.dense import check

DTYPES = ("float16", "bfloat16", "float32", "float64")
NAN, INF = float("nan"), float("inf")


def dtype_of(name: str) -> Any:
    return np.dtype(name) if name == "float64" else as_dtype(name)


def draw(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
    """Return scores with ties, NaN, both infinities and both zeros."""
    rng = np.random.default_rng([*shape, seed])
    scores = np.round(rng.standard_normal(shape) * 4) / 4
    odd = rng.choice([NAN, INF, -INF, 0.0, -0.0], shape)
    return np.where(rng.random(shape) < 0.3, odd, scores).astype(dtype_of(dtype))


def highest(scores: Any, top: int) -> np.ndarray:
    """Return what each row keeps: sorted by falling score, then by column."""
    kept = np.zeros(scores.shape, bool)
    for place in product(*map(range, scores.shape[:-1])):
        row = [float(x) for x in scores[place]]
        real = [col for col, x in enumerate(row) if not isnan(x) and x != -INF]
        for col in sorted(real, key=lambda col: (-row[col], col))[:top]:
            kept[(*place, col)] = True
    return kept


def spread(kept: np.ndarray, block: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    return kept.repeat(block[0], axis=-2).repeat(block[1], axis=-1)[..., : shape[0], : shape[1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("counts", [(1, 1), (7, 5), (3, 40), (6, 1), (0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize("top", (0, 1, 2, 5, 2**70))
def test_top(counts: tuple[int, int], top: int, dtype: str) -> None:
    scores = draw(counts, dtype)
    made = score_blocks(scores, top=top, block=(3, 5))
    assert isinstance(made, Pattern)
    shape = (3 * counts[0], 5 * counts[1])
    check(made, spread(highest(scores, min(top, 99)), (3, 5), shape))


@settings(max_examples=200, deadline=None)
@given(
    scores=arrays(np.float16, st.tuples(st.integers(1, 4), st.integers(1, 9))),
    top=st.integers(0, 10),
)
def test_top_of_any_halves(scores: Any, top: int) -> None:
    for wide in (scores, scores.astype(np.float64)):
        made = score_blocks(wide, top=top, block=1)
        np.testing.assert_array_equal(made.toarray(), highest(scores, top))


def test_subnormal_scores_are_told_apart() -> None:
    tiny = np.finfo(np.float32).smallest_subnormal
    scores = np.array([[0.0, tiny, -tiny, 2 * tiny, -0.0]], np.float32)
    order = [3, 1, 0, 4, 2]
    for top in range(6):
        kept = score_blocks(scores, top=top, block=1).toarray()[0]
        assert sorted(order[:top]) == list(np.flatnonzero(kept))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", (0.25, 0, -INF, INF, np.float16(-1.5), np.int32(1), 1e300))
def test_one_threshold(threshold: Any, dtype: str) -> None:
    scores = draw((5, 9), dtype)
    least = float(threshold)
    expected = np.array([[float(x) >= least for x in row] for row in scores])
    if least == 1e300 and dtype == "float64":
        scores[2, 3], expected[2, 3] = 1e300, True
    check(
        score_blocks(scores, threshold=threshold, block=(3, 5)), spread(expected, (3, 5), (15, 45))
    )


def test_a_threshold_is_rounded_to_the_type_of_comparison() -> None:
    for dtype, kept in (("float16", False), ("float32", True), ("float64", True)):
        scores = np.full((1, 1), 0.1, dtype)  # 0.1 in float16 is less than in float32
        assert score_blocks(scores, threshold=0.1, block=1).nnz == kept
    assert score_blocks(np.full((1, 1), 0.7, np.float32).astype("f8"), threshold=0.7).nnz == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,)])
def test_thresholds_of_rows(shape: tuple[int, ...], dtype: str) -> None:
    scores = draw((7, 11), dtype)
    least = np.random.default_rng(0).integers(-4, 4, shape) / np.float32(4)
    rows = np.broadcast_to(least, 7)
    expected = [[float(x) >= float(rows[i]) for x in row] for i, row in enumerate(scores)]
    made = score_blocks(scores, threshold=least, block=1)
    np.testing.assert_array_equal(made.toarray(), np.array(expected))


def test_a_row_with_threshold_nan_keeps_nothing() -> None:
    least = np.array([0, NAN, -INF])
    made = score_blocks(np.ones((3, 2)), threshold=least, block=1)
    np.testing.assert_array_equal(made.toarray().all(axis=1), [True, False, True])
    assert made.nnz == 4


@pytest.mark.parametrize("lead", [(1,), (3,), (2, 3), (2, 1)])
def test_leading_axes(lead: tuple[int, ...]) -> None:
    scores = draw((*lead, 4, 6), "float16")
    made = score_blocks(scores, top=2, block=(16, 50), shape=(60, 270))
    assert isinstance(made, MaskStack) and made.lead == lead
    expected = spread(highest(scores, 2), (16, 50), (60, 270))
    np.testing.assert_array_equal(made.toarray(), expected)

    least = np.random.default_rng(0).uniform(-1, 1, (*lead[:-1], 1, 4))  # one for all heads
    made = score_blocks(scores, threshold=least, block=1)
    expected = scores.astype(np.float32) >= np.float32(least)[..., None]
    np.testing.assert_array_equal(made.toarray(), expected)


def test_strided_scores() -> None:
    wide = draw((9, 4, 14))
    scores = wide.transpose(1, 0, 2)[:, ::-2, 1::3]
    made = score_blocks(scores, top=2, block=1)
    np.testing.assert_array_equal(made.toarray(), highest(scores, 2))


def test_the_scores_are_left_alone() -> None:
    scores = draw((5, 9))
    before = scores.copy()
    scores.setflags(write=False)
    score_blocks(scores, top=3).tobsr()
    np.testing.assert_array_equal(scores, before)


@pytest.mark.parametrize("shape", [(1, 1), (150, 192), (192, 129), (129, 140)])
@pytest.mark.parametrize("block", [64, (64, 64), (2**70, 2**70), (100, 17)])
def test_last_blocks_may_stick_out(shape: tuple[int, int], block: Any) -> None:
    sizes = block if isinstance(block, tuple) else (block, block)
    counts = [-(-size // side) for size, side in zip(shape, sizes, strict=True)]
    scores = draw(tuple(counts))
    fitting = tuple(min(side, 500) for side in sizes)
    made = score_blocks(scores, shape=shape, block=block, top=1)
    check(made, spread(highest(scores, 1), fitting, shape))


def test_forbidden_blocks_make_it_causal() -> None:
    scores = np.random.default_rng(0).standard_normal((6, 6))
    scores[np.triu_indices(6, 1)] = -INF
    made = score_blocks(scores, top=3) & causal(384)
    per_row = made.toarray()[::64, ::64].sum(axis=1)
    np.testing.assert_array_equal(per_row, [1, 2, 3, 3, 3, 3])


def test_labels() -> None:
    scores = np.zeros((2, 3), np.float32)
    assert repr(score_blocks(scores, top=9)).endswith("score_blocks(<2x3>, top=3)>")
    assert "threshold=0.25)" in repr(score_blocks(scores, threshold=0.25))
    assert "threshold=<rows>)" in repr(score_blocks(scores, threshold=np.zeros(2)))


@pytest.mark.parametrize("dtype", ["<f8", ">f8"])
def test_float64_scores_are_not_rounded(dtype: str) -> None:
    scores = np.array([[1.0, 1 + 1e-12, 1 - 1e-12]], dtype)
    np.testing.assert_array_equal(score_blocks(scores, top=1, block=1).toarray(), [[0, 1, 0]])
    made = score_blocks(scores, threshold=1 + 1e-13, block=1)
    np.testing.assert_array_equal(made.toarray(), [[0, 1, 0]])


SCORES = np.zeros((3, 4), np.float32)
BAD: list[tuple[type[StofError], str, Any, dict[str, Any]]] = [
    (DTypeError, "scores: got list", [[1.0]], {"top": 1}),
    (DTypeError, "scores: got MaskedArray", np.ma.masked_array(SCORES), {"top": 1}),
    (DTypeError, "scores: got dtype int64", SCORES.astype(np.int64), {"top": 1}),
    (DTypeError, "scores: got dtype bool", SCORES.astype(bool), {"top": 1}),
    (DTypeError, "scores: got dtype complex64", SCORES.astype(np.complex64), {"top": 1}),
    (ShapeError, r"scores: got \(4,\)", SCORES[0], {"top": 1}),
    (ShapeError, "at most two leading", SCORES[None, None, None], {"top": 1}),
    (ArgumentError, "exactly one", SCORES, {}),
    (ArgumentError, "exactly one", SCORES, {"top": 1, "threshold": 0.5}),
    (ArgumentError, "top: got -1", SCORES, {"top": -1}),
    (ArgumentError, "top: got 1.0", SCORES, {"top": 1.0}),
    (ArgumentError, "threshold: got NaN", SCORES, {"threshold": NAN}),
    (DTypeError, "threshold: got True", SCORES, {"threshold": True}),
    (DTypeError, "threshold: got .*1", SCORES, {"threshold": np.str_("1")}),
    (DTypeError, "threshold: got 1000", SCORES, {"threshold": 10**400}),
    (DTypeError, "threshold: got list", SCORES, {"threshold": [1.0, 2.0, 3.0]}),
    (DTypeError, "threshold: got dtype int64", SCORES, {"threshold": np.zeros(3, np.int64)}),
    (ShapeError, r"threshold: got \(4,\)", SCORES, {"threshold": np.zeros(4)}),
    (ShapeError, r"threshold: got \(1, 3\)", SCORES, {"threshold": np.zeros((1, 3))}),
    (ArgumentError, "block: got 0", SCORES, {"top": 1, "block": 0}),
    (ArgumentError, "block: got 2.5", SCORES, {"top": 1, "block": (2.5, 1)}),
    (ArgumentError, "block: got", SCORES, {"top": 1, "block": (1, 2, 3)}),
    (ShapeError, r"scores: got \(3, 4\) blocks", SCORES, {"top": 1, "shape": (128, 256)}),
    (ShapeError, r"scores: got \(3, 4\) blocks", SCORES, {"top": 1, "shape": (192, 257)}),
    (ShapeError, "shape: got", SCORES, {"top": 1, "shape": (192,)}),
    (ShapeError, "shape: got", SCORES, {"top": 1, "block": 2**30}),
    (ArgumentError, "leading axes", np.zeros((0, 3, 4)), {"top": 1}),
]


@pytest.mark.parametrize(("error", "match", "scores", "options"), BAD)
def test_bad_arguments(
    error: type[StofError], match: str, scores: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=match):
        score_blocks(scores, **options)


# ------------------------------------------- CuPy arrays, which nothing here looks into


def address(shape: tuple[int, ...], dtype: str = "float32", device: int = 0) -> Any:
    """Return a CuPy array at an address that is never read; it needs no GPU."""
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.UnownedMemory(1 << 20, 1 << 20, None, device)
    return cupy.ndarray(shape, dtype_of(dtype), memptr=cupy.cuda.MemoryPointer(memory, 0))


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_cupy_scores_are_described(dtype: str) -> None:
    scores = address((2, 5, 3, 4), dtype)
    made = score_blocks(scores, top=7, block=(64, 128), shape=(130, 400))
    assert isinstance(made, DeviceScores) and made.scores is scores
    assert (made.shape, made.block, made.lead) == ((130, 400), (64, 128), (2, 5))
    assert (made.top, made.threshold) == (4, None)
    short = score_blocks(address((1, 1), dtype), top=1, block=2**70, shape=(9, 8))
    assert isinstance(short, DeviceScores) and short.block == (9, 8)


def test_cupy_scores_with_a_threshold() -> None:
    scores = address((2, 5, 3, 4), "float16")
    one = score_blocks(scores, threshold=0.1)
    assert isinstance(one, DeviceScores) and one.top is None
    assert type(one.threshold) is float and one.threshold == np.float32(0.1)
    given = address((5, 1))
    many = score_blocks(scores, threshold=given)
    assert isinstance(many, DeviceScores)
    assert many.threshold.shape == (2, 5, 3) and many.threshold.strides == (0, 4, 0)
    assert many.threshold.data.ptr == given.data.ptr
    host = score_blocks(scores, threshold=np.arange(3.0))
    assert isinstance(host, DeviceScores)
    assert host.threshold.shape == (2, 5, 3) and host.threshold.dtype == np.float32


def test_cupy_scores_have_no_form_on_the_cpu() -> None:
    made = score_blocks(address((3, 4)), top=1)
    both = made & causal(192, 256, align="top-left")
    for look in (made.tobsr, made.toarray, both.tobsr, lambda: made.nnz, lambda: made.runs):
        with pytest.raises(DeviceError, match=r"\.to\('cuda'\)\.to\('cpu'\)"):
            look()
    with pytest.raises(DeviceError, match="cuda"):
        made._bits(np.zeros(1, np.int64), np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("error", "match", "dtype", "options"),
    [
        (UnsupportedError, "scores: got float64 on CUDA", "float64", {"top": 1}),
        (ArgumentError, "top: got -1", "float32", {"top": -1}),
        (ShapeError, "blocks", "float32", {"top": 1, "shape": (1, 1)}),
        (UnsupportedError, "threshold: got float16", "float32", {"threshold": ((3,), "float16")}),
        (UnsupportedError, "threshold: got float64", "float16", {"threshold": ((3,), "float64")}),
        (ShapeError, r"threshold: got \(4,\)", "float32", {"threshold": ((4,),)}),
        (DeviceError, "threshold: got device 1", "float32", {"threshold": ((3,), "float32", 1)}),
    ],
)
def test_bad_arguments_on_the_gpu(
    error: type[StofError], match: str, dtype: str, options: dict[str, Any]
) -> None:
    if "threshold" in options:
        options = {"threshold": address(*options["threshold"])}
    with pytest.raises(error, match=match):
        score_blocks(address((3, 4), dtype), **options)


def test_cupy_thresholds_need_cupy_scores() -> None:
    with pytest.raises(DTypeError, match="threshold: got ndarray"):
        score_blocks(SCORES, threshold=address((3,)))


def test_cupy_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert score_blocks(SCORES, top=1, block=1).nnz == 3


def test_it_can_be_pickled() -> None:
    made = score_blocks(draw((3, 4)), top=2)
    assert pickle.loads(pickle.dumps(made)).tobsr().equals(made.tobsr())


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("shape", "block"), [(None, 64), ((150, 300), (50, 75)), ((7, 9), (2, 4))])
def test_a_layout_flags_blocks(lead: tuple[int, ...], shape: Any, block: Any) -> None:
    counts = (3, 4) if shape is None or shape == (150, 300) else (4, 3)
    layout = np.random.default_rng(0).random((*lead, *counts)) < 0.4
    height, width = block if isinstance(block, tuple) else (block, block)
    size = shape or (counts[0] * height, counts[1] * width)
    dense = layout.repeat(height, axis=-2).repeat(width, axis=-1)[..., : size[0], : size[1]]
    np.testing.assert_array_equal(block_layout(layout, shape=shape, block=block).toarray(), dense)


def test_layouts_that_are_refused() -> None:
    with pytest.raises(DTypeError, match="layout: got float64"):
        block_layout(np.ones((2, 2)))
    with pytest.raises(DTypeError, match="layout: got list"):
        block_layout([[True]])
    with pytest.raises(ShapeError, match="layout: got \\(2, 2\\) blocks, expected \\(3, 2\\)"):
        block_layout(np.ones((2, 2), bool), shape=(130, 128))
    with pytest.raises(ArgumentError, match="layout: got leading axes \\(0,\\)"):
        block_layout(np.ones((0, 2, 2), bool))


@pytest.mark.gpu
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("block", [64, 128, (50, 75)])
def test_layouts_on_the_gpu(lead: tuple[int, ...], block: Any) -> None:
    import cupy

    layout = np.random.default_rng(0).random((*lead, 5, 7)) < 0.4
    made = block_layout(cupy.asarray(layout), block=block)
    np.testing.assert_array_equal(
        made.to("cuda").to("cpu").toarray(), block_layout(layout, block=block).toarray()
    )
    strided = block_layout(cupy.asarray(layout)[..., ::-1, ::2], block=block)
    expected = block_layout(layout[..., ::-1, ::2], block=block)
    np.testing.assert_array_equal(strided.to("cuda").to("cpu").toarray(), expected.toarray())
