"""Masks of block scores: the highest of each row or those that reach a threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import StofError
from stof_cupy.masks import Pattern
from tests.masks.on_device import check_array, room

pytestmark = pytest.mark.gpu


def chosen(scores: np.ndarray, top: int) -> np.ndarray:
    """Mark the `top` highest of each row, the first of equal ones; NaN and -inf never."""
    *lead, cols = scores.shape
    kept = np.zeros(scores.shape, bool)
    for at in np.ndindex(*lead):
        row = [(-value, col) for col, value in enumerate(scores[at].astype(float).tolist())]
        real = sorted(pair for pair in row if pair[0] < np.inf)  # neither NaN nor -inf
        kept[at][[col for _, col in real[:top]]] = True
    assert kept.shape[-1] == cols
    return kept


def spread(kept: np.ndarray, shape: tuple[int, int], block: int | tuple[int, int]) -> np.ndarray:
    """Repeat what is kept over the elements of its block."""
    rows, cols = block if isinstance(block, tuple) else (block, block)
    return kept.repeat(rows, -2).repeat(cols, -1)[..., : shape[0], : shape[1]]


def awkward(g: np.random.Generator, *shape: int) -> np.ndarray:
    """Return scores with ties, both zeros, tiny numbers, infinities and NaN; also whole rows."""
    scores = g.integers(-3, 3, shape).astype(np.float32)
    for value, part in ((-np.inf, 0.2), (np.inf, 0.05), (np.nan, 0.1), (-0.0, 0.1), (1e-40, 0.1)):
        scores[g.random(shape) < part] = value
    flat = scores.reshape(-1, shape[-1])
    flat[0], flat[-1] = -np.inf, np.nan
    if len(flat) > 3:
        flat[1], flat[2] = 0, np.inf
    return scores


@pytest.mark.parametrize("top", (0, 1, 3, 11, 50))
@pytest.mark.parametrize("lead", ((), (2, 3), (1, 4), (3,)), ids=str)
def test_top(lead: tuple[int, ...], top: int) -> None:
    import cupy

    g = np.random.default_rng(top)
    for scores in (g.standard_normal((*lead, 5, 11), np.float32), awkward(g, *lead, 5, 11)):
        pattern = masks.score_blocks(cupy.asarray(scores), shape=(300, 690), top=top)
        check_array(pattern.to("cuda"), spread(chosen(scores, top), (300, 690), 64))


@pytest.mark.parametrize("threshold", (-1.0, 0.0, 2.0, 100.0, float("inf"), 1e-41))
@pytest.mark.parametrize("lead", ((), (2, 3), (3,)), ids=str)
def test_threshold(lead: tuple[int, ...], threshold: float) -> None:
    """A score that equals it is kept; NaN never is."""
    import cupy

    scores = awkward(np.random.default_rng(0), *lead, 5, 11)
    with np.errstate(invalid="ignore"):
        kept = scores >= np.float32(threshold)
    pattern = masks.score_blocks(cupy.asarray(scores), shape=(300, 690), threshold=threshold)
    check_array(pattern.to("cuda"), spread(kept, (300, 690), 64))


def test_rows_longer_than_a_thread_block() -> None:
    """Thousands of scores a row, of which many are equal: ties across all of its passes."""
    import cupy

    g = np.random.default_rng(0)
    for scores in (
        g.standard_normal((3, 3000), np.float32),
        g.integers(0, 4, (3, 3000)).astype(np.float32),
        np.zeros((3, 3000), np.float32),
        g.standard_normal((3, 3000), np.float32) * np.float32(1e-6) + 1,
    ):
        for top in (1, 255, 256, 257, 1000, 2999, 3000):
            pattern = masks.score_blocks(cupy.asarray(scores), block=1, top=top)
            assert pattern.shape == (3, 3000)
            check_array(pattern.to("cuda"), chosen(scores, top))


@pytest.mark.parametrize("shape", ((1, 1), (63, 65), (128, 64), (300, 130)), ids=str)
@pytest.mark.parametrize("block", (1, 16, 64, 100, 128, (128, 64), (7, 33)), ids=str)
def test_blocks_of_any_size(block: int | tuple[int, int], shape: tuple[int, int]) -> None:
    import cupy

    both = block if isinstance(block, tuple) else (block, block)
    grid = [-(-size // side) for size, side in zip(shape, both, strict=True)]
    scores = np.random.default_rng(0).standard_normal(grid, np.float32)
    x = cupy.asarray(scores)
    top = max(grid[1] // 2, 1)
    made = masks.score_blocks(x, shape=shape, block=block, top=top)
    check_array(made.to("cuda"), spread(chosen(scores, top), shape, block))
    made = masks.score_blocks(x, shape=shape, block=block, threshold=0.3)
    check_array(made.to("cuda"), spread(scores >= 0.3, shape, block))


def test_shape_is_whole_blocks_unless_it_is_named() -> None:
    import cupy

    made = masks.score_blocks(cupy.zeros((3, 5), np.float32), block=(16, 100), threshold=0.0)
    assert made.shape == (48, 500)
    check_array(made.to("cuda"), np.ones((48, 500), bool))


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_types_of_scores(dtype: str) -> None:
    import cupy

    scores = awkward(np.random.default_rng(1), 2, 3, 5, 11).astype(as_dtype(dtype))
    exact = scores.astype(np.float32)
    x = cupy.asarray(scores)
    made = masks.score_blocks(x, shape=(300, 690), top=4)
    check_array(made.to("cuda"), spread(chosen(exact, 4), (300, 690), 64))
    with np.errstate(invalid="ignore"):
        kept = exact >= 1
    made = masks.score_blocks(x, shape=(300, 690), threshold=1.0)
    check_array(made.to("cuda"), spread(kept, (300, 690), 64))


def test_scores_of_any_layout() -> None:
    import cupy

    scores = np.random.default_rng(2).standard_normal((2, 3, 5, 11)).astype(np.float32)
    expected = spread(chosen(scores, 4), (300, 690), 64)
    large = cupy.full((2, 3, 10, 33), np.nan, np.float32)
    views = [large[..., ::2, 1::3], large[..., ::-2, 2::3]]
    views.append(cupy.empty((3, 11, 5, 2), np.float32).transpose(3, 0, 2, 1))
    for view in views:
        view[...] = cupy.asarray(scores)
        made = masks.score_blocks(view, shape=(300, 690), top=4)
        check_array(made.to("cuda"), expected)
    row = cupy.broadcast_to(cupy.asarray(scores[:, :1]), scores.shape)
    made = masks.score_blocks(row, shape=(300, 690), top=4)
    expected = spread(chosen(np.broadcast_to(scores[:, :1], scores.shape), 4), (300, 690), 64)
    check_array(made.to("cuda"), expected)


@pytest.mark.parametrize("lead", ((), (2, 3)), ids=str)
def test_scores_of_numpy(lead: tuple[int, ...]) -> None:
    scores = awkward(np.random.default_rng(3), *lead, 5, 11)
    made = masks.score_blocks(scores, shape=(300, 690), top=4)
    check_array(made.to("cuda"), spread(chosen(scores, 4), (300, 690), 64))


def test_in_expressions_and_again() -> None:
    """Causal, with the diagonal always kept, from scores that change."""
    import cupy

    g = np.random.default_rng(4)
    scores = cupy.asarray(awkward(g, 2, 3, 5, 5))
    diagonal = masks.blocks((300, 300), range(5), range(5))
    pattern = (masks.score_blocks(scores, shape=(300, 300), top=2) | diagonal) & masks.causal(300)
    mask = pattern.to("cuda", **room((2, 3, 300, 300)))
    own = np.arange(300) // 64
    for seed in range(5):
        new = awkward(np.random.default_rng(seed), 2, 3, 5, 5)
        scores[...] = cupy.asarray(new)
        mask.rebuild()
        kept = spread(chosen(new, 2), (300, 300), 64) | (own[:, None] == own)
        check_array(mask, kept & np.tri(300, dtype=bool))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: masks.score_blocks(x),
        lambda x: masks.score_blocks(x, top=1, threshold=0.0),
        lambda x: masks.score_blocks(x, top=-1),
        lambda x: masks.score_blocks(x, top=1.5),
        lambda x: masks.score_blocks(x, block=0, top=1),
        lambda x: masks.score_blocks(x, shape=(1000, 64), top=1),
        lambda x: masks.score_blocks(x[0], top=1),
        lambda x: masks.score_blocks(x.astype(np.int32), top=1),
        lambda x: masks.score_blocks(x, shape=(300, 300), top=1) & masks.full(299),
    ],
)
@pytest.mark.parametrize("on_gpu", (False, True))
def test_errors(on_gpu: bool, make: Callable[[Any], Pattern]) -> None:
    import cupy

    with pytest.raises(StofError):
        make((cupy if on_gpu else np).zeros((5, 5), np.float32))
