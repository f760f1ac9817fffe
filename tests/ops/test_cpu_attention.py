"""The NumPy attention against the float64 oracle. T-numbers: the inputs that broke its peers."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

from stof_cupy import attention
from stof_cupy.dtypes import as_dtype
from stof_cupy.masks import BsrMask, causal, sliding_window
from stof_cupy.ops import reference
from stof_cupy.testing import assert_close, poison, random_array, rng, strided


def qkv(
    seed: int,
    *,
    batch: int = 2,
    heads: int = 2,
    kv_heads: int | None = None,
    seq_q: int = 70,
    seq_k: int | None = None,
    dim: int = 16,
    dim_v: int | None = None,
    dtype: str = "float32",
) -> tuple[Any, Any, Any]:
    generator = rng(seed)
    kv = (batch, kv_heads or heads, seq_k or seq_q)
    return (
        random_array(generator, (batch, heads, seq_q, dim), dtype),
        random_array(generator, (*kv, dim), dtype),
        random_array(generator, (*kv, dim_v or dim), dtype),
    )


def check(q: Any, k: Any, v: Any, mask: Any = None, **kwargs: Any) -> Any:
    """Compare output and LSE with the oracle's; return the output."""
    bsr = None if mask is None else BsrMask.from_dense(np.asarray(mask))
    out, lse = attention(q, k, v, bsr, return_lse=True, **kwargs)
    kwargs.pop("out", None)
    exact, exact_lse = reference.attention(q, k, v, mask, return_lse=True, **kwargs)
    precision = None if q.dtype == np.float64 else q.dtype.name
    low, low_lse = reference.attention(
        q, k, v, mask, return_lse=True, precision=precision, **kwargs
    )
    assert out.dtype == q.dtype
    assert lse.dtype == np.float32
    assert_close(out, exact, low)
    assert_close(lse, exact_lse, low_lse)
    return out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("density", [None, 0.003, 0.05, 0.5, 1.0])
def test_random_masks(dtype: str, density: float | None) -> None:
    q, k, v = qkv(0, seq_q=150, seq_k=203, dtype=dtype)
    mask = None if density is None else rng(1).random((150, 203)) < density
    check(q, k, v, mask)


@pytest.mark.parametrize("seed", range(40))
def test_any_shape_layout_and_mask(seed: int) -> None:
    draw = rng(seed).integers
    kv_heads, group = int(draw(1, 4)), int(draw(1, 4))
    seq_q, seq_k = int(draw(1, 260)), int(draw(1, 260))
    q, k, v = qkv(
        seed,
        batch=int(draw(1, 4)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        dim=int(draw(1, 70)),
        dim_v=int(draw(1, 70)),
    )
    layout = ["rows", "slice", "reversed", "transposed"][draw(4)]
    mask = np.zeros((-(-seq_q // 64) * 64, -(-seq_k // 64) * 64), bool)
    for i, j in np.ndindex(mask.shape[0] // 64, mask.shape[1] // 64):
        tile = mask[i * 64 : (i + 1) * 64, j * 64 : (j + 1) * 64]
        tile[...] = [False, True, rng(seed + i + j).random((64, 64)) < 0.3][draw(3)]
    lengths = None if draw(2) else draw(0, seq_k + 1, size=q.shape[0])
    check(*(strided(x)[layout] for x in (q, k, v)), mask[:seq_q, :seq_k], kv_lengths=lengths)


def test_t1_rows_without_keys_give_zero_and_minus_infinity() -> None:
    q, k, v = qkv(0, batch=1, seq_q=6, seq_k=10, dim=8)
    mask = np.tri(6, 10, dtype=bool)
    mask[5] = False
    out, lse = attention(q, k, v, BsrMask.from_dense(mask), return_lse=True)
    assert (out[:, :, 5] == 0).all()
    assert np.isneginf(lse[:, :, 5]).all()
    assert np.isfinite(out).all()
    check(q, k, v, mask)


@pytest.mark.parametrize("masked", [16, 64, 128])
def test_t2_a_row_whose_first_keys_are_masked(masked: int) -> None:
    mask = np.ones((128, 256), bool)
    mask[0, :masked] = False
    check(*qkv(2, seq_q=128, seq_k=256), mask)


@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_t3_masked_keys_and_values_never_leak(where: str, value: float) -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    q, k, v = x, x.copy(), x.copy()
    {"k": k, "v": v}[where][0, 0, 1] = value
    out = attention(q, k, v, BsrMask.from_dense(np.array([[True, False], [True, False]])))
    np.testing.assert_array_equal(out[0, 0], [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_reach_exactly_the_rows_that_see_them(value: float) -> None:
    q, k, v = qkv(3, seq_q=150)
    v[0, 1, 77, 3] = v[1, 0, 149, :] = value
    mask = rng(3).random((150, 150)) < 0.5
    out = check(q, k, v, mask)
    assert (np.isfinite(out[0, 1, :, 3]) == ~mask[:, 77]).all()
    assert np.isfinite(out[0, 0]).all()


def test_opposite_infinities_seen_by_one_row_give_nan() -> None:
    q, k, v = qkv(3, batch=1, heads=1, seq_q=4)
    v[0, 0, 0], v[0, 0, 1] = np.inf, -np.inf
    out = check(q, k, v, np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]], bool))
    assert np.isnan(out[0, 0, 0]).all()
    assert np.isposinf(out[0, 0, 1]).all()
    assert np.isneginf(out[0, 0, 2]).all()
    assert np.isfinite(out[0, 0, 3]).all()


def test_unlisted_tiles_and_keys_beyond_the_length_are_not_read() -> None:
    q, k, v = qkv(4, seq_q=192)
    mask = np.kron(np.eye(3, dtype=bool), np.ones((64, 64), bool))
    k[:, :, 64:128] = v[:, :, 64:128] = np.nan
    k[:, :, 140:] = v[:, :, 140:] = np.nan
    out = attention(q, k, v, BsrMask.from_dense(mask), kv_lengths=np.array([140, 133]))
    assert np.isfinite(out[:, :, :64]).all()
    assert np.isnan(out[:, :, 64:128]).all()
    assert np.isfinite(out[:, :, 128:]).all()


def test_scores_of_minus_infinity_count_as_masked() -> None:
    q, k, v = np.ones((1, 1, 2, 1)), np.array([[[[-np.inf], [0.0]]]]), np.array([[[[9.0], [5.0]]]])
    out, lse = attention(q, k, v, BsrMask.from_dense(np.eye(2, dtype=bool)), return_lse=True)
    assert out.ravel().tolist() == [0, 5]
    assert lse.ravel().tolist() == [-np.inf, 0]


@pytest.mark.parametrize("seq_k", [1, 63, 64, 65, 127, 129, 137, 192, 193])
def test_t5_no_weight_goes_to_padding(seq_k: int) -> None:
    q, k = np.full((1, 1, 3, 4), 10, np.float32), np.full((1, 1, seq_k, 4), -10, np.float32)
    out = attention(q, k, np.ones_like(k), BsrMask.from_dense(np.ones((3, seq_k), bool)), scale=1.0)
    np.testing.assert_allclose(out, 1, rtol=0, atol=2 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("tokens", [137, 512])
def test_t5_causal(tokens: int) -> None:
    check(*qkv(5, seq_q=tokens), np.tri(tokens, dtype=bool))


def test_t7_full_tiles_alone() -> None:
    q, k, v = qkv(7, batch=1, seq_q=512)
    mask = np.kron(np.tri(8, dtype=bool), np.ones((64, 64), bool))
    assert len(BsrMask.from_dense(mask).bitmaps) == 0
    out = check(q, k, v, mask)
    mask[448:, 128:192] = False
    assert np.abs(check(q, k, v, mask) - out).max() > 0.01


def test_t8_blocks_of_one_and_of_several_sizes() -> None:
    from scipy.sparse import bsr_array

    blocks = bsr_array((np.ones((5, 1, 1)), [2, 0, 2, 1, 2], [0, 1, 3, 5]), shape=(3, 3))
    q, k, v = qkv(8, batch=1, heads=1, seq_q=3)
    out = attention(q, k, v, BsrMask.from_scipy(blocks))
    np.testing.assert_allclose(out[0, 0, 0], v[0, 0, 2], rtol=1e-6)
    blockwise = np.array([[False, False, True], [True, False, True], [False, True, True]])
    check(q, k, v, blockwise)
    rows, columns = (1, 2, 3), (3, 1, 2)
    check(
        q=q.repeat(2, 2),
        k=k.repeat(2, 2),
        v=v.repeat(2, 2),
        mask=blockwise.repeat(rows, 0).repeat(columns, 1),
    )


@pytest.mark.parametrize(("align", "seen"), [("bottom-right", 5), ("top-left", 1)])
def test_t15_both_causal_alignments(align: str, seen: int) -> None:
    q, k, v = qkv(15, seq_q=1, seq_k=5)
    got = attention(q, k, v, causal(1, 5, align=align).tobsr())
    exact, low = (
        reference.attention(q, k[:, :, :seen], v[:, :, :seen], precision=precision)
        for precision in (None, "float32")
    )
    assert_close(got, exact, low)


def test_t15_more_queries_than_keys() -> None:
    q, k, v = qkv(15, seq_q=5, seq_k=2)
    out = attention(q, k, v, causal(5, 2, align="bottom-right").tobsr())
    assert (out[:, :, :3] == 0).all()
    assert (out[:, :, 3:] != 0).all()


def test_t17_halves_of_the_keys_join_by_their_natural_lse() -> None:
    q, k, v = qkv(17, batch=1, seq_q=4, seq_k=3136)
    whole = attention(q, k, v)
    left, right = (
        attention(q, k[:, :, part], v[:, :, part], return_lse=True)
        for part in (slice(3072), slice(3072, None))
    )
    share = 1 / (1 + np.exp(right[1] - left[1]))[..., None]
    np.testing.assert_allclose(left[0] * share + right[0] * (1 - share), whole, atol=1e-6)


@pytest.mark.parametrize(
    "dim", [1, 8, 16, 24, 31, 32, 40, 56, 64, 72, 80, 96, 112, 128, 136, 160, 256, 300]
)
def test_t21_head_dims(dim: int) -> None:
    q, k, v = qkv(21, batch=1, seq_q=65, dim=dim, dim_v=257 - dim if dim < 257 else 3)
    check(q, k, v, sliding_window(65, window=9).toarray())


@pytest.mark.parametrize("layout", ["rows", "slice", "reversed", "transposed"])
def test_t23_strides(layout: str) -> None:
    arrays = qkv(23, seq_q=100)
    mask = BsrMask.from_dense(rng(23).random((100, 100)) < 0.2)
    views = (strided(x)[layout] for x in arrays)
    np.testing.assert_array_equal(attention(*views, mask), attention(*arrays, mask))


def test_t23_fortran_order() -> None:
    arrays = qkv(23, seq_q=100)
    got = attention(*(np.asfortranarray(x) for x in arrays))
    np.testing.assert_array_equal(got, attention(*arrays))


@pytest.mark.parametrize("group", [1, 2, 4, 12])
def test_grouped_queries(group: int) -> None:
    q, k, v = qkv(30, heads=12, kv_heads=12 // group, seq_q=130)
    check(q, k, v, np.tri(130, dtype=bool))
    check(q, k, v)


def test_lengths_mask_the_keys_after_them() -> None:
    q, k, v = qkv(31, batch=5, seq_q=130)
    lengths = np.array([0, 1, 64, 97, 130], np.int32)
    check(q, k, v, None, kv_lengths=lengths)
    check(q, k, v, sliding_window(130, window=40).toarray(), kv_lengths=lengths)


def test_lengths_are_clipped_to_the_keys() -> None:
    q, k, v = qkv(31, seq_q=10)
    got = attention(q, k, v, kv_lengths=np.array([-3, 99]))
    np.testing.assert_array_equal(got, attention(q, k, v, kv_lengths=np.array([0, 10])))


def test_a_scale_of_another_precision_does_not_change_the_computation() -> None:
    q, k, v = qkv(32)
    got = attention(q, k, v, scale=np.float64(0.3))
    np.testing.assert_array_equal(got, attention(q, k, v, scale=0.3))
    exact, low = (
        reference.attention(q, k, v, scale=0.3, precision=precision)
        for precision in (None, "float32")
    )
    assert_close(got, exact, low)


def test_large_scores_neither_overflow_nor_drop_to_zero() -> None:
    q, k, v = qkv(33, seq_q=80)
    check(q * np.float32(300), k * np.float32(300), v)
    k[..., 0] = -(2.0**118)  # exact products, beside which nothing counts, in any order of a sum
    check(q, k, v, np.tri(80, dtype=bool))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_out_is_filled_and_returned(dtype: str) -> None:
    q, k, v = qkv(34, dtype=dtype, dim_v=5)
    for out in strided(poison((2, 2, 70, 5), as_dtype(dtype))).values():
        assert check(q, k, v, np.tri(70, dtype=bool), out=out) is out


def test_output_lies_in_memory_like_the_queries() -> None:
    q, k, v = qkv(35, batch=3, seq_q=50, dim_v=5)
    out = attention(strided(q)["transposed"], k, v)
    assert out.swapaxes(1, 2).flags.c_contiguous
    assert attention(q, k, v).flags.c_contiguous
    broadcast = np.broadcast_to(q[:1], q.shape)
    assert attention(broadcast, k, v).strides[-1] == out.itemsize


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (2, 2, 0, 5), (2, 2, 5, 0)])
def test_nothing_to_do(shape: tuple[int, int, int, int]) -> None:
    batch, heads, seq_q, seq_k = shape
    q, k = np.ones((batch, heads, seq_q, 4)), np.ones((batch, heads, seq_k, 4))
    for mask in (None, BsrMask.from_dense(np.ones((seq_q, seq_k), bool))) if seq_k else (None,):
        out, lse = attention(q, k, k, mask, return_lse=True)
        assert out.shape == (batch, heads, seq_q, 4)
        assert (out == (1 if seq_k else 0)).all()
        assert np.isneginf(lse).all() or seq_k


def test_runs_are_bit_identical() -> None:
    q, k, v = qkv(36, seq_q=300)
    mask = BsrMask.from_dense(rng(36).random((300, 300)) < 0.1)
    first = attention(q, k, v, mask)
    for _ in range(3):
        np.testing.assert_array_equal(attention(q, k, v, mask), first)


def test_memory_grows_with_the_listed_tiles() -> None:
    tokens = 16384
    q, k, v = qkv(37, batch=1, heads=1, seq_q=tokens, dim=8)
    mask = sliding_window(tokens, window=64).tobsr()
    tracemalloc.start()
    attention(q, k, v, mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < tokens * tokens / 32


SPEED = """
import numpy as np
from stof_cupy.masks import sliding_window
from stof_cupy import attention
from stof_cupy.testing import random_array, rng, time_ms

q, k, v = (random_array(rng(i), (1, 2, 4096, 64)) for i in range(3))
pattern = sliding_window(4096, window=256)
mask, dense_mask = pattern.tobsr(), pattern.toarray()

def dense():
    scores = np.matmul(q, k.swapaxes(-1, -2)) * np.float32(0.125)
    scores = np.where(dense_mask, scores, np.float32(-np.inf))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores @ v

np.testing.assert_allclose(attention(q, k, v, mask), dense(), atol=2e-6)
sparse = time_ms(lambda: attention(q, k, v, mask), repeat=15).p20
print(time_ms(dense, repeat=5, warmup=1).p20 / sparse)
"""


def test_a_window_of_256_in_4096_is_five_times_as_fast_as_dense() -> None:
    # One BLAS thread for both: more of them, on cores that other processes use, time the scheduler.
    one = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP", "VECLIB")}
    run = subprocess.run(
        [sys.executable, "-c", SPEED], env=os.environ | one, check=True, capture_output=True
    )
    assert float(run.stdout) >= 5
