"""The public attention: bad arguments everywhere, and the kernel against the oracle on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import (
    ArgumentError,
    DTypeError,
    MaskError,
    ShapeError,
    StofError,
    UnsupportedError,
)
from stof_cupy.jit import catalogue
from stof_cupy.ops import reference
from stof_cupy.ops.attention import attention
from stof_cupy.testing import assert_close, poison, random_array, rng, strided

DTYPES = ("float16", "bfloat16")
HEAD_DIMS = (1, 8, 16, 24, 31, 32, 40, 56, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256)


# ---------------------------------------------------------------- what must be refused


def arrays(q=(2, 4, 9, 8), k=(2, 2, 7, 8), v=(2, 2, 7, 5), dtype="float32"):
    generator = rng(0)
    return tuple(random_array(generator, shape, dtype) for shape in (q, k, v))


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        ({"q": (4, 9, 8)}, "q"),
        ({"k": (2, 2, 7, 9)}, "k"),
        ({"k": (1, 2, 7, 8), "v": (1, 2, 7, 5)}, "k"),
        ({"v": (2, 2, 6, 5)}, "v"),
        ({"v": (2, 1, 7, 5)}, "v"),
        ({"k": (2, 3, 7, 8), "v": (2, 3, 7, 5)}, "k: got 3 heads, expected a divisor of q's 4"),
        ({"q": (2, 4, 9, 0), "k": (2, 2, 7, 0)}, "head_dim"),
    ],
)
def test_shapes_that_clash_are_named(shapes, name):
    with pytest.raises(ShapeError, match=name):
        attention(*arrays(**shapes))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"mask": np.ones((9, 8), bool)}, StofError, r"\(9, 8\).*\(9, 7\)"),
        ({"mask": np.ones((9, 7), np.float32)}, MaskError, "mask"),
        ({"scale": float("nan")}, ArgumentError, "scale"),
        ({"kv_lengths": np.ones(2)}, DTypeError, "kv_lengths"),
        ({"kv_lengths": [1, 2]}, DTypeError, "kv_lengths"),
        ({"kv_lengths": np.ones(3, np.int32)}, ShapeError, "kv_lengths"),
        ({"out": np.zeros((2, 4, 9, 8), np.float32)}, ShapeError, "out"),
        ({"out": np.zeros((2, 4, 9, 5), np.float64)}, DTypeError, "out"),
        ({"out": np.zeros((2, 4, 5, 9), np.float32).swapaxes(2, 3)}, ShapeError, "out"),
        ({"out": "memory"}, DTypeError, "out"),
        ({"out": np.broadcast_to(np.float32(0), (2, 4, 9, 5))}, StofError, "out"),
        ({"scale": "1"}, ArgumentError, "scale: got '1', expected a real number"),
        ({"scale": "None"}, ArgumentError, "scale: got 'None'"),
        ({"scale": np.ones(4)}, ArgumentError, r"scale: got an array of shape \(4,\)"),
        ({"scale": 1e39}, ArgumentError, "scale"),
        ({"q": np.ma.masked_array(np.ones((2, 4, 9, 8), np.float32))}, DTypeError, "MaskedArray"),
    ],
)
def test_other_bad_arguments(change, error, text):
    with pytest.raises(error, match=text):
        attention(**{**dict(zip("qkv", arrays(), strict=True)), **change})


def test_dtypes_must_agree_and_be_floats():
    q, k, v = arrays()
    with pytest.raises(DTypeError, match="k: got float16, expected float32 like q"):
        attention(q, k.astype(np.float16), v)
    with pytest.raises(DTypeError, match="q: got int64"):
        attention(q.astype(np.int64), k, v)
    with pytest.raises(DTypeError, match="q: got list, expected a NumPy or CuPy array"):
        attention(q.tolist(), k, v)


def test_out_must_not_overlap_an_input():
    q, k, v = arrays(v=(2, 2, 7, 8))
    with pytest.raises(ArgumentError, match="possibly shared with q"):
        attention(q, k, v, out=q)
    out = np.zeros((2, 4, 9, 8), np.float32)
    with pytest.raises(ArgumentError, match="possibly shared with kv_lengths"):
        attention(q, k, v, kv_lengths=out[0, 0, 0, :2].view(np.int32), out=out)


def test_bad_arguments_leave_out_alone():
    q, k, v = arrays()
    out = poison((2, 4, 9, 5), np.float32)
    with pytest.raises(StofError):
        attention(q, k, v, np.ones((9, 8), bool), out=out)
    assert np.isnan(out).all()


def test_every_head_dim_has_a_class():
    classes = [catalogue.head_dim_class(d) for d in range(1, 257)]
    assert all(d <= c for d, c in zip(range(1, 257), classes, strict=True))
    assert classes == sorted(classes)
    with pytest.raises(UnsupportedError, match="257"):
        catalogue.head_dim_class(257)


# ---------------------------------------------------------------- the kernel


@dataclass
class Case:
    """One random problem, drawn from a seed."""

    q: Any
    k: Any
    v: Any
    mask: Any
    scale: float | None
    kv_lengths: Any

    @classmethod
    def draw(cls, seed: int) -> Case:
        g = rng(seed)
        dtype = DTYPES[seed % 2]
        batch, kv_heads, group = (int(g.integers(1, 4)) for _ in range(3))
        dim = int(g.choice(HEAD_DIMS))
        dim_v = dim if g.random() < 0.7 else int(g.choice(HEAD_DIMS))
        seq_q, seq_k = (
            int(g.choice([1, 2, 15, 63, 64, 65, 127, 128, 130, 257, 321])) for _ in "qk"
        )
        q = random_array(g, (batch, kv_heads * group, seq_q, dim), dtype)
        k = random_array(g, (batch, kv_heads, seq_k, dim), dtype)
        v = random_array(g, (batch, kv_heads, seq_k, dim_v), dtype)
        lengths = g.integers(0, seq_k + 1, batch).astype(np.int32) if g.random() < 0.3 else None
        scale = None if g.random() < 0.7 else float(g.normal())
        return cls(q, k, v, draw_mask(g, seq_q, seq_k), scale, lengths)


def draw_mask(g: np.random.Generator, sq: int, sk: int) -> Any:
    kind = g.integers(7)
    if kind == 0:
        return None
    if kind == 1:
        return g.random((sq, sk)) < g.choice([0.002, 0.05, 0.5, 0.99])
    if kind == 2:
        return masks.causal(sq, sk, align=str(g.choice(["top-left", "bottom-right"])))
    if kind == 3:  # rows and columns of tiles that are all empty, all full, or mixed
        tiles = g.random((-(-sq // 64), -(-sk // 64)))
        fine = g.random((sq, sk)) < 0.5
        coarse = np.kron(tiles, np.ones((64, 64)))[:sq, :sk]
        return (coarse < 0.3) | ((coarse < 0.6) & fine)
    if kind == 4:
        rows = g.random(sq) < 0.5
        return np.broadcast_to(rows[:, None], (sq, sk)).copy()
    if kind == 5:
        return np.abs(np.arange(sq)[:, None] - np.arange(sk)[None]) <= int(g.integers(1, 100))
    return np.zeros((sq, sk), bool)


def check(case: Case, *, views: tuple[str, str, str] = ("", "", "")) -> None:
    """Run a case on the GPU into poisoned memory and compare output and LSE with the oracle."""
    import cupy

    def upload(x: Any, view: str) -> Any:
        y = cupy.asarray(x)
        return strided(y)[view] if view else y

    q, k, v = (upload(x, view) for x, view in zip((case.q, case.k, case.v), views, strict=True))
    lengths = None if case.kv_lengths is None else cupy.asarray(case.kv_lengths)
    out = poison((*q.shape[:3], v.shape[3]), q.dtype, cupy)
    got, lse = attention(
        q, k, v, case.mask, scale=case.scale, kv_lengths=lengths, return_lse=True, out=out
    )
    assert got is out
    dense = case.mask.toarray() if hasattr(case.mask, "toarray") else case.mask
    args = {"scale": case.scale, "kv_lengths": case.kv_lengths, "return_lse": True}
    exact, exact_lse = reference.attention(case.q, case.k, case.v, dense, **args)
    low, _ = reference.attention(case.q, case.k, case.v, dense, **args, precision=case.q.dtype.name)
    assert_close(got, exact, low)
    lse = lse.get()
    empty = np.isneginf(exact_lse)
    assert np.array_equal(np.isneginf(lse), empty)
    np.testing.assert_allclose(lse[~empty], exact_lse[~empty], rtol=2e-6, atol=2e-5)
    assert not np.any(got.get().astype(np.float32)[empty])


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(120))
def test_random_cases(seed):
    case = Case.draw(seed)
    names = ("", "rows", "slice", "reversed", "transposed")
    views = tuple(rng(seed + 10_000).choice(names, 3))
    check(case, views=views)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(head_dim, dtype):
    g = rng(head_dim)
    q, k, v = (random_array(g, (2, 3, 150, head_dim), dtype) for _ in range(3))
    check(Case(q, k, v, masks.sliding_window(150, window=20), None, None))
    check(Case(q, k, v, None, None, None))


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [1, 63, 64, 65, 127, 129, 137, 192, 193])
def test_padded_keys_have_no_weight(keys):
    """Zero-padded keys would pull the mean of ones down when real scores are very negative."""
    import cupy

    q = cupy.full((1, 1, 70, 32), 10, np.float16)
    k = cupy.full((1, 1, keys, 32), -10, np.float16)
    v = cupy.ones((1, 1, keys, 32), np.float16)
    assert (attention(q, k, v) == 1).all()


@pytest.mark.gpu
def test_leading_masked_keys_do_not_poison_a_row():
    mask = np.ones((128, 256), bool)
    mask[0, :128] = False
    mask[70:90, :16] = False
    mask[100, :64] = False
    g = rng(1)
    q = random_array(g, (1, 2, 128, 16), "float16")
    k, v = (random_array(g, (1, 2, 256, 16), "float16") for _ in range(2))
    check(Case(q, k, v, mask, None, None))


@pytest.mark.gpu
def test_large_scores_stay_finite():
    g = rng(2)
    q, k, v = (random_array(g, (1, 2, 100, 64), "float16", scale=60.0) for _ in range(3))
    check(Case(q, k, v, masks.causal(100), 1.0, None))


@pytest.mark.gpu
def test_what_lies_beyond_the_lengths_is_never_read_into_the_result():
    import cupy

    g = rng(3)
    q, k, v = (random_array(g, (2, 2, 100, 40), "float16") for _ in range(3))
    lengths = np.array([64, 37], np.int32)
    exact = reference.attention(q, k, v, kv_lengths=lengths)
    low = reference.attention(q, k, v, kv_lengths=lengths, precision="float16")
    for i, n in enumerate(lengths):
        k[i, :, n:] = np.nan
        v[i, :, n:] = np.inf
    q, k, v, lengths = map(cupy.asarray, (q, k, v, lengths))
    assert_close(attention(q, k, v, kv_lengths=lengths), exact, low)


@pytest.mark.gpu
def test_lengths_out_of_range_are_clipped():
    import cupy

    g = rng(4)
    q, k, v = (cupy.asarray(random_array(g, (3, 1, 70, 32), "float16")) for _ in range(3))
    wild = attention(q, k, v, kv_lengths=cupy.array([-5, 1000, 70], np.int32))
    tame = attention(q, k, v, kv_lengths=cupy.array([0, 70, 70], np.int32))
    assert cupy.array_equal(wild, tame)
    assert not wild[0].any()


@pytest.mark.gpu
def test_runs_are_bit_equal():
    import cupy

    case = Case.draw(7)
    q, k, v = map(cupy.asarray, (case.q, case.k, case.v))
    first = attention(q, k, v, case.mask)
    for _ in range(5):
        assert cupy.array_equal(attention(q, k, v, case.mask).view("u2"), first.view("u2"))


@pytest.mark.gpu
def test_output_lies_in_memory_like_q():
    import cupy

    packed = cupy.asarray(random_array(rng(5), (2, 33, 3, 4, 32), "float16"))
    q, k, v = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    out = attention(q, k, v)
    assert out.transpose(0, 2, 1, 3).flags.c_contiguous


@pytest.mark.gpu
def test_empty_problems():
    import cupy

    q = cupy.ones((2, 2, 5, 16), np.float16)
    none = cupy.ones((2, 2, 0, 16), np.float16)
    out, lse = attention(q, none, none, return_lse=True)
    assert not out.any() and cupy.isneginf(lse).all()
    assert attention(none, q, q).shape == (2, 2, 0, 16)


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31():
    """K stored (seq, batch, dim): the last rows lie past 2^31 elements."""
    import cupy

    seq, batch, dim = 24_000, 720, 128
    k = cupy.zeros((seq, batch, dim), np.float16)
    g = rng(6)
    last = random_array(g, (seq, dim), "float16")
    k[:, -1] = cupy.asarray(last)
    q = random_array(g, (1, 1, 64, dim), "float16")
    view = k[:, None, -1:].transpose(2, 1, 0, 3)
    got = attention(cupy.asarray(q), view, view)
    keys = last[None, None]
    low = reference.attention(q, keys, keys, precision="float16")
    assert_close(got, reference.attention(q, keys, keys), low)


@pytest.mark.gpu
def test_what_the_gpu_refuses():
    import cupy

    x = cupy.zeros((1, 1, 4, 8), np.float32)
    with pytest.raises(UnsupportedError, match="float32 on CUDA, expected float16 or bfloat16"):
        attention(x, x, x)
    wide = cupy.zeros((1, 1, 4, 257), np.float16)
    with pytest.raises(UnsupportedError, match="head_dim: got 257"):
        attention(wide, wide, wide)
    with pytest.raises(DTypeError, match="k: got numpy array, expected cuda array like q"):
        attention(x, x.get(), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [16, 64, 100, 256])
def test_what_a_masked_key_holds_reaches_no_row_that_masks_it(dim, dtype):
    """T3 of the reference inputs, and its like at size: rows that keep such a key do see it."""
    import cupy

    g = rng(dim)
    q, k, v = (random_array(g, (1, 2, 150, dim), dtype) for _ in range(3))
    mask = g.random((150, 150)) < 0.5
    mask[:, [3, 77]] = False
    mask[:100, 140] = False
    k[:, :, 3] = np.nan
    v[:, :, 77] = np.inf
    v[:, 0, 140, ::3] = np.nan
    v[:, 1, 140, 1::3] = -np.inf
    got = attention(*map(cupy.asarray, (q, k, v)), mask)
    exact = reference.attention(q, k, v, mask)
    assert np.isnan(exact).any() and np.isfinite(exact[:, :, :100]).all()
    assert_close(got, exact, reference.attention(q, k, v, mask, precision=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_lengths_of_any_type_and_stride(dtype):
    import cupy

    g = rng(8)
    q, k, v = (cupy.asarray(random_array(g, (3, 1, 70, 32), "float16")) for _ in range(3))
    top = np.iinfo(dtype).max
    table = cupy.array([[3, 9], [5, 9], [top, 9]], dtype)
    got = attention(q, k, v, kv_lengths=table[:, 0])
    want = attention(q, k, v, kv_lengths=cupy.array([3, 5, 70], np.int32))
    assert cupy.array_equal(got, want)
