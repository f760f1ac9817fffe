"""Packed sequences: one call against the oracle, sequence by sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy import RelativeBias, attention_varlen, masks
from stof_cupy.errors import ArgumentError, DTypeError, MaskError, ShapeError, StofError
from stof_cupy.ops import reference
from stof_cupy.testing import assert_close, poison, random_array, rng, strided

LENGTHS = [
    ([5], [5]),
    ([1, 0, 1], [3, 0, 5]),
    ([0, 3], [4, 9]),
    ([3, 2], [0, 7]),
    ([70, 1, 130, 64], [70, 1, 130, 64]),
    ([70, 1, 9], [200, 65, 3]),
    ([0, 0], [0, 0]),
    ([], []),
]
HEADS, KV_HEADS = 4, 2


def qkv(
    q_lens: list[int],
    kv_lens: list[int],
    *,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    dims: tuple[int, int] = (16, 8),
    dtype: str = "float32",
    seed: int = 0,
) -> list[Any]:
    g = rng(seed)
    keys = (sum(kv_lens), kv_heads)
    shapes = (sum(q_lens), heads, dims[0]), (*keys, dims[0]), (*keys, dims[1])
    return [random_array(g, shape, dtype) for shape in shapes]


def seen(sq: int, sk: int, causal: bool, window: Any, align: str | None) -> np.ndarray:
    """Return one sequence's mask."""
    at = np.arange(sq)[:, None] + (sk - sq if align == "bottom-right" else 0)
    ahead = np.arange(sk) - at
    keep = np.ones((sq, sk), bool)
    if window is not None:
        back, forth = window if isinstance(window, tuple) else (window, window)
        keep &= (-back <= ahead) & (ahead <= forth)
    return keep & (ahead <= 0) if causal else keep


def plain(
    q: Any, k: Any, v: Any, q_lens: Any, kv_lens: Any, how: dict[str, Any], precision: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Run the oracle on each sequence by itself."""
    placing = {name: how.get(name) for name in ("causal", "window", "align")}
    rest = {name: value for name, value in how.items() if name not in placing}
    mask, bias = rest.pop("mask", None), rest.pop("bias", None)
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.zeros(q.shape[:2])
    row = col = 0
    for m, n in zip(q_lens, kv_lens, strict=True):
        rows, cols = slice(row, row + m), slice(col, col + n)
        one = (x.swapaxes(0, 1)[None] for x in (q[rows], k[cols], v[cols]))
        keep = seen(m, n, **placing)
        if mask is not None:
            keep = keep & mask[..., rows, cols]
        own = bias[..., rows, cols] if isinstance(bias, np.ndarray) else bias
        made = reference.attention(
            *one, keep, bias=own, return_lse=True, precision=precision, **rest
        )
        out[rows], lse[rows] = made[0][0].swapaxes(0, 1), made[1][0].T
        row, col = row + m, col + n
    return out, lse


def check(arrays: list[Any], q_lens: Any, kv_lens: Any, **how: Any) -> tuple[Any, Any]:
    q, _, v = arrays
    out = poison((*q.shape[:2], v.shape[2]), q.dtype)
    got, lse = attention_varlen(*arrays, q_lens, kv_lens, return_lse=True, out=out, **how)
    assert got is out and lse.dtype == np.float32
    exact, exact_lse = plain(*arrays, q_lens, kv_lens, how)
    low, low_lse = plain(*arrays, q_lens, kv_lens, how, q.dtype.name)
    assert_close(out, exact, low)
    assert_close(lse, exact_lse, low_lse)
    return out, lse


@pytest.mark.parametrize(("q_lens", "kv_lens"), LENGTHS)
@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3, (5, 0), (0, 40)])
def test_documents(
    q_lens: list[int], kv_lens: list[int], align: str, causal: bool, window: Any
) -> None:
    check(qkv(q_lens, kv_lens), q_lens, kv_lens, causal=causal, window=window, align=align)


FEATURES = {
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi": np.float32([0.5, 0.25, 0.1, 0.01])},
    "sinks": {"sinks": np.float32([0, 1, -1, 2])},
    "t5": {"bias": RelativeBias(random_array(rng(1), (8, 4)), bidirectional=True, max_distance=9)},
}


@pytest.mark.parametrize(("q_lens", "kv_lens"), LENGTHS)
@pytest.mark.parametrize("feature", FEATURES)
def test_distances_count_within_a_sequence(
    feature: str, q_lens: list[int], kv_lens: list[int]
) -> None:
    how = {"causal": True, "align": "bottom-right", **FEATURES[feature]}
    check(qkv(q_lens, kv_lens), q_lens, kv_lens, **how)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_masks_and_biases_of_the_packed_arrays(dtype: str) -> None:
    q_lens, kv_lens = [70, 1, 30], [70, 65, 9]
    shape = (101, 144)
    arrays = qkv(q_lens, kv_lens, dtype=dtype)
    check(arrays, q_lens, kv_lens, mask=rng(2).random(shape) < 0.2)
    check(
        arrays,
        q_lens,
        kv_lens,
        mask=rng(2).random((HEADS, *shape)) < 0.2,
        window=9,
        align="top-left",
    )
    check(arrays, q_lens, kv_lens, bias=random_array(rng(3), (HEADS, *shape)))
    dense = rng(2).random(shape) < 0.2
    first = attention_varlen(*arrays, q_lens, kv_lens, dense)
    from scipy.sparse import csr_array

    for same in (masks.BsrMask(dense), masks.stack([dense] * HEADS), csr_array(dense)):
        np.testing.assert_array_equal(attention_varlen(*arrays, q_lens, kv_lens, same), first)


def test_t16_lengths_of_zero_and_of_one() -> None:
    arrays = qkv([1, 0, 1], [3, 0, 5], heads=9, kv_heads=3, dims=(64, 64))
    out, _ = check(arrays, [1, 0, 1], [3, 0, 5])
    assert out.shape == (2, 9, 64) and out.any(axis=(1, 2)).all()
    check(arrays, [1, 0, 1], [3, 0, 5], causal=True, align="bottom-right")
    out = attention_varlen(*qkv([0, 0], [0, 0], heads=9, kv_heads=3), [0, 0], [0, 0])
    assert out.shape == (0, 9, 8)


def test_a_sequence_without_keys_gives_zero() -> None:
    out, lse = check(qkv([3, 2], [0, 7]), [3, 2], [0, 7])
    assert not out[:3].any() and np.isneginf(lse[:3]).all() and out[3:].any()


def test_what_other_sequences_hold_does_not_leak() -> None:
    arrays = qkv([70, 30], [70, 30])
    alone = attention_varlen(*(x[:70] for x in arrays), [70])
    for x in arrays:
        x[70:] = np.nan
    np.testing.assert_allclose(attention_varlen(*arrays, [70, 30])[:70], alone, atol=1e-6)


def test_the_result_is_packed_as_the_queries_are() -> None:
    arrays = qkv([5, 6], [5, 6])
    out, lse = attention_varlen(*arrays, np.array([5, 6], np.uint8), return_lse=True)
    assert out.flags.c_contiguous and lse.shape == (11, HEADS)
    views = (strided(x)["transposed"] for x in arrays)
    np.testing.assert_array_equal(attention_varlen(*views, (5, 6)), out)


def test_layers_share_one_mask() -> None:
    from stof_cupy.ops.attention_varlen import _documents

    arrays = qkv([17, 5], [17, 5])
    attention_varlen(*arrays, [17, 5], causal=True)
    hits = _documents.cache_info().hits
    attention_varlen(*arrays, np.array([17, 5]), [17, 5], causal=True)
    assert _documents.cache_info().hits == hits + 1


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"q_lens": [3, 5]}, ShapeError, "q_lens: got a sum of 8, expected 7 .* np.diff"),
        ({"q_lens": [0, 3, 7]}, ShapeError, "np.diff"),
        ({"kv_lens": [3, 5]}, ShapeError, "kv_lens: got a sum of 8, expected 7"),
        ({"kv_lens": [7]}, ShapeError, "kv_lens: got 1 sequences, expected 2"),
        ({"q_lens": [-1, 8]}, ArgumentError, "q_lens: got -1, expected 0 or more"),
        ({"q_lens": None}, DTypeError, "q_lens: got None, expected a list of integers"),
        ({"q_lens": "3,4"}, DTypeError, "q_lens: got '3,4'"),
        ({"q_lens": [3.0, 4.0]}, DTypeError, "q_lens: got dtype float64"),
        ({"kv_lens": [5, 2], "causal": True}, ArgumentError, "align: got None"),
        ({"kv_lens": [5, 2], "window": 1}, ArgumentError, "align: got None"),
        ({"causal": True, "align": "right"}, ArgumentError, "align: got 'right'"),
        ({"align": ["top-left"]}, ArgumentError, "align"),
        ({"causal": "yes"}, ArgumentError, "causal"),
        ({"window": (-1, 0)}, ArgumentError, "window: got -1"),
        ({"window": [1, 0]}, ArgumentError, "window"),
        ({"mask": np.ones((7, 8), bool)}, ShapeError, r"mask: got \(7, 8\), expected \(7, 7\)"),
        ({"mask": np.ones((3, 7, 7), bool)}, ShapeError, r"mask: got \(3, 7, 7\)"),
        ({"mask": np.ones((7, 7))}, MaskError, "mask"),
        ({"q": np.ones((1, 4, 7, 16), np.float32)}, ShapeError, r"\(total_q, heads, head_dim\)"),
        ({"k": np.ones((7, 2, 15), np.float32)}, ShapeError, r"k: got .*\(total_k, kv_heads, 16\)"),
        ({"v": np.ones((6, 2, 8), np.float32)}, ShapeError, r"v: got .*\(7, 2, value_dim\)"),
        ({"out": np.ones((7, 4, 9), np.float32)}, ShapeError, r"out: got .*\(7, 4, 8\)"),
        ({"out": np.ones((7, 8, 4), np.float32).swapaxes(1, 2)}, ShapeError, "out"),
        ({"q": [[[1.0]]]}, DTypeError, "q: got list"),
        ({"q": None}, DTypeError, "q: got None"),
        ({"v": None}, DTypeError, "v: got None"),
        ({"bias": np.ones((7, 6), np.float32)}, ShapeError, "bias"),
        ({"softcap": -1}, ArgumentError, "softcap"),
        ({"select": "fastest"}, ArgumentError, "select: got 'fastest'"),
        ({"explain": True}, ArgumentError, "explain: got NumPy arrays, expected CuPy arrays"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[StofError], text: str) -> None:
    given = dict(zip("qkv", qkv([3, 4], [3, 4]), strict=True))
    with pytest.raises(error, match=text):
        attention_varlen(**{**given, "q_lens": [3, 4], **change})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("q_lens", "kv_lens"), LENGTHS)
def test_documents_on_cuda(q_lens: list[int], kv_lens: list[int], dtype: str) -> None:
    import cupy

    arrays = qkv(q_lens, kv_lens, dtype=dtype)
    how: dict[str, Any] = {"causal": True, "align": "bottom-right", "window": 50}
    out = poison((*arrays[0].shape[:2], 8), arrays[0].dtype, cupy)
    on_gpu = [cupy.asarray(x) for x in arrays]
    got, lse = attention_varlen(*on_gpu, q_lens, kv_lens, return_lse=True, out=out, **how)
    assert got is out
    exact, exact_lse = plain(*arrays, q_lens, kv_lens, how)
    low, _ = plain(*arrays, q_lens, kv_lens, how, dtype)
    assert_close(out, exact, low)
    np.testing.assert_allclose(lse.get(), exact_lse, rtol=2e-6, atol=2e-5)
    assert attention_varlen(*on_gpu, q_lens, kv_lens).flags.c_contiguous
    assert attention_varlen(*on_gpu, q_lens, kv_lens, select="stof-eq1").shape == out.shape
    if sum(q_lens) and sum(kv_lens):
        found = attention_varlen(*on_gpu, q_lens, kv_lens, explain=True, **how)
        assert [e.us for e in found] == sorted(e.us for e in found)
    with pytest.raises(DTypeError, match="q_lens: got a CuPy array"):
        attention_varlen(*on_gpu, cupy.asarray(q_lens), kv_lens)
