"""Attention under masks that differ between batches and heads, beside the dense oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ShapeError
from stof_cupy.masks import MaskStack
from stof_cupy.ops import reference
from stof_cupy.testing import assert_close, random_array, rng

BATCH, HEADS, KV_HEADS, SQ, SK = 2, 6, 3, 70, 130


def inputs(seed: int = 0, heads: int = HEADS, kv_heads: int = KV_HEADS) -> list[np.ndarray]:
    g = rng(seed)
    shapes = (BATCH, heads, SQ, 16), (BATCH, kv_heads, SK, 16), (BATCH, kv_heads, SK, 8)
    return [random_array(g, shape, "float32") for shape in shapes]


def check(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any, **how: Any) -> np.ndarray:
    out, lse = attention(q, k, v, mask, return_lse=True, **how)
    how.pop("out", None)
    exact, exact_lse = reference.attention(q, k, v, mask, return_lse=True, **how)
    np.testing.assert_allclose(out, exact, atol=2e-6)
    np.testing.assert_allclose(lse, exact_lse, atol=2e-6)
    assert not out[np.isneginf(exact_lse)].any()
    return out


@pytest.mark.parametrize("lead", ((2, 1), (1, 6), (6,), (2, 6), (1, 1), (1,)), ids=str)
@pytest.mark.parametrize("kv_heads", (1, 2, 3, 6))
def test_leading_axes_broadcast(lead: tuple[int, ...], kv_heads: int) -> None:
    g = rng(1)
    pool = g.random((3, SQ, SK)) < 0.1
    dense = pool[g.integers(0, 3, lead)]
    q, k, v = inputs(kv_heads=kv_heads)
    first = check(q, k, v, dense)
    np.testing.assert_array_equal(check(q, k, v, MaskStack.from_dense(dense)), first)
    check(q, k, v, dense, kv_lengths=np.array([0, 77], np.int32), scale=0.3)


def test_group_of_heads_with_different_masks() -> None:
    """Query heads of one key head do not take each other's masks."""
    g = rng(2)
    numbers = np.array([[0, 0, 0, 1, 2, 2], [1, 1, 1, 1, 0, 1]])
    dense = (g.random((3, SQ, SK)) < 0.1)[numbers]
    check(*inputs(), dense)
    check(*inputs(kv_heads=2), dense)


def test_empty_head_among_causal_ones() -> None:
    """T13: head 0 sees nothing and gives zeros, the others are causal; then per batch."""
    g = rng(3)
    q, k, v = (random_array(g, (2, 32, 8, 128), "float32") for _ in range(3))
    per_head = masks.stack([~masks.full(8), *[masks.causal(8)] * 31])
    out = check(q, k, v, per_head)
    assert not out[:, 0].any() and out[:, 1:].any(axis=(2, 3)).all()
    assert len(per_head.masks) == 2
    per_batch = masks.stack([masks.causal(8), masks.sliding_window(8, window=1)])[:, None]
    out = check(q, k, v, per_batch)
    np.testing.assert_array_equal(out[:1], attention(q[:1], k[:1], v[:1], masks.causal(8)))
    check(q, k, v, per_head & per_batch)
    out = check(q, k, v, masks.stack([masks.causal(8)])[None])
    np.testing.assert_array_equal(out, attention(q, k, v, masks.causal(8)))


def test_out_is_written_and_its_layout_kept() -> None:
    q, k, v = inputs()
    dense = rng(4).random((2, 6, SQ, SK)) < 0.2
    out = np.full((BATCH, SQ, HEADS, 8), np.nan, np.float32).swapaxes(1, 2)
    assert check(q, k, v, dense, out=out) is out
    turned = np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)
    assert attention(turned, k, v, dense).strides == (8 * HEADS * SQ * 4, 32, 8 * HEADS * 4, 4)


@pytest.mark.parametrize("lead", ((3, 6), (2, 3), (2,), (1, 1, 6)), ids=str)
def test_masks_for_other_batches_or_heads_are_errors(lead: tuple[int, ...]) -> None:
    """T9, T11: both shapes are named, and nothing is computed."""
    dense = np.ones((*lead, SQ, SK), bool)
    for mask in (dense, MaskStack.from_dense(dense)):
        with pytest.raises(ShapeError, match=r"mask: got .*expected \(2, 6, 70, 130\)"):
            attention(*inputs(), mask)
    with pytest.raises(ShapeError, match=r"\(2, 6, 70, 131\), expected \(2, 6, 70, 130\)"):
        attention(*inputs(), np.ones((2, 6, SQ, SK + 1), bool))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lead", ((2, 6), (1, 6), (2, 1), (6,), (1, 1)), ids=str)
def test_masks_of_batches_and_heads_on_cuda(lead: tuple[int, ...], dtype: str) -> None:
    """T13, with an empty mask, a repeated one and query heads that share keys."""
    import cupy

    g = rng(sum(lead))
    dense = g.random((*lead, SQ, SK)) < g.choice([0.03, 0.6, 1.1], (*lead, 1, 1))
    dense.reshape(-1, SQ, SK)[0] = False
    dense.reshape(-1, SQ, SK)[-1] = dense.reshape(-1, SQ, SK)[0]
    q, k, v = (x.astype(as_dtype(dtype)) for x in inputs())
    exact, exact_lse = reference.attention(q, k, v, dense, return_lse=True)
    low = reference.attention(q, k, v, dense, precision=dtype)
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    for mask in (dense, MaskStack.from_dense(dense)):
        got, lse = attention(*on_gpu, mask, return_lse=True)
        assert_close(got, exact, low)
        np.testing.assert_allclose(lse.get(), exact_lse, rtol=2e-6, atol=2e-5)
