"""Inputs on which other attention libraries went wrong, T1 to T24, on both backends.

T10 is in tests/engine/test_engine_masks.py, T18 in tests/masks, and the rest of T24 in
test_large_tensors.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, attention_varlen, masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ShapeError
from stof_cupy.masks import BsrMask, MaskStack
from stof_cupy.ops import reference
from stof_cupy.testing import assert_close, poison, random_array, rng, strided

BACKENDS = [
    pytest.param(("numpy", "float32"), id="numpy"),
    *(
        pytest.param(("cupy", dtype), id=f"cuda-{dtype}", marks=pytest.mark.gpu)
        for dtype in ("float16", "bfloat16")
    ),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(*request.param)


class Backend:
    """NumPy or CuPy, and a type that it computes in."""

    def __init__(self, module: str, dtype: str) -> None:
        self.xp: Any = pytest.importorskip(module)
        self.dtype = dtype

    def draw(self, seed: int, *shapes: tuple[int, ...]) -> list[Any]:
        """Return random arrays of NumPy, in this backend's type."""
        g = rng(seed)
        return [random_array(g, shape, self.dtype) for shape in shapes]

    def qkv(
        self,
        seed: int,
        *,
        batch: int = 1,
        heads: int = 2,
        kv_heads: int | None = None,
        seq: tuple[int, int] = (64, 64),
        dims: tuple[int, int] = (16, 16),
    ) -> list[Any]:
        keys = (batch, kv_heads or heads, seq[1])
        shapes = (batch, heads, seq[0], dims[0]), (*keys, dims[0]), (*keys, dims[1])
        return self.draw(seed, *shapes)

    def run(self, arrays: Any, mask: Any = None, **how: Any) -> tuple[Any, Any]:
        """Return output and LSE as NumPy arrays, written over poison."""
        q, k, v = (self.xp.asarray(x) for x in arrays)
        how = {n: self.xp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in how.items()}
        out = poison((*q.shape[:3], v.shape[3]), q.dtype, self.xp)
        _, lse = attention(q, k, v, mask, out=out, return_lse=True, **how)
        return self.host(out), self.host(lse)

    def host(self, x: Any) -> Any:
        return x if self.xp is np else x.get()

    def check(self, arrays: Any, mask: Any = None, **how: Any) -> tuple[Any, Any]:
        """Compare with the oracle; return output and LSE."""
        out, lse = self.run(arrays, mask, **how)
        exact, exact_lse = reference.attention(*arrays, mask, return_lse=True, **how)
        assert_close(out, exact, reference.attention(*arrays, mask, precision=self.dtype, **how))
        np.testing.assert_allclose(lse, exact_lse, rtol=4e-6, atol=4e-5)
        return out, lse


def test_t1_a_row_without_keys(backend: Backend) -> None:
    arrays = backend.qkv(1, seq=(6, 10), dims=(8, 8))
    mask = np.tri(6, 10, dtype=bool)
    mask[5] = False
    first, lse = backend.check(arrays, mask)
    assert not first[:, :, 5].any() and np.isneginf(lse[:, :, 5]).all()
    assert first[:, :, :5].astype(np.float32).any(axis=-1).all()
    kind = as_dtype(backend.dtype)
    for low in (-np.inf, np.nextafter(np.array(-np.inf, kind), np.zeros((), kind))):
        bias = np.where(mask, np.zeros((), kind), np.array(low, kind))
        out, lse = backend.check(arrays, bias=bias)
        assert not out[:, :, 5].any() and np.isneginf(lse[:, :, 5]).all()


@pytest.mark.parametrize("masked", [16, 64, 128])
def test_t2_a_row_whose_first_keys_are_masked(backend: Backend, masked: int) -> None:
    mask = np.ones((128, 256), bool)
    mask[0, :masked] = False
    backend.check(backend.qkv(2, seq=(128, 256)), mask)
    mask[1:, 128:] = False
    backend.check(backend.qkv(2, seq=(128, 256)), mask)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["k", "v"])
def test_t3_what_a_masked_key_holds(backend: Backend, where: str, value: float) -> None:
    x = np.arange(8).reshape(1, 1, 2, 4).astype(as_dtype(backend.dtype))
    arrays = {name: x.copy() for name in "qkv"}
    arrays[where][0, 0, 1] = value
    if where == "k":
        arrays[where][0, 0, 1, 1:] = 1
    out, _ = backend.run(arrays.values(), np.array([[1, 0], [1, 0]], bool))
    np.testing.assert_array_equal(out[0, 0].astype(np.float32), [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize("keys", [1, 63, 64, 65, 127, 129, 137, 192, 193])
def test_t5_padding_has_no_weight(backend: Backend, keys: int) -> None:
    kind = as_dtype(backend.dtype)
    q, k = np.full((1, 1, 70, 32), 10, kind), np.full((1, 1, keys, 32), -10, kind)
    v = np.ones_like(k)
    error = 0 if backend.xp is not np else 2 * np.finfo(np.float32).eps
    for mask in (None, np.ones((70, keys), bool)):
        out, _ = backend.run((q, k, v), mask)
        np.testing.assert_allclose(out.astype(np.float32), 1, rtol=0, atol=error)
    backend.check(backend.qkv(5, seq=(70, keys)))


def test_t5_causal(backend: Backend) -> None:
    backend.check(backend.qkv(5, seq=(137, 137)), np.tri(137, dtype=bool))


def test_t7_full_blocks_alone(backend: Backend) -> None:
    arrays = backend.qkv(7, seq=(512, 512))
    dense = np.kron(np.tri(8, dtype=bool), np.ones((64, 64), bool))
    mask = BsrMask(dense)
    assert len(mask.bitmaps) == 0
    out, _ = backend.check(arrays, mask)
    dense[448:, 128:192] = False
    other, _ = backend.check(arrays, BsrMask(dense))
    error = np.abs(out.astype(np.float32) - other.astype(np.float32))
    assert error[:, :, 448:].max() > 0.01 and not error[:, :, :448].any()


def test_t8_blocks_of_one_and_of_several_sizes(backend: Backend) -> None:
    from scipy.sparse import bsr_array

    blocks = bsr_array((np.ones((5, 1, 1)), [2, 0, 2, 1, 2], [0, 1, 3, 5]), shape=(3, 3))
    dense = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1]], bool)
    q, k, v = backend.qkv(8, heads=1, seq=(3, 3))
    out, _ = backend.run((q, k, v), blocks)
    np.testing.assert_array_equal(out[0, 0, 0].astype(np.float32), v[0, 0, 2].astype(np.float32))
    assert_close(
        out,
        reference.attention(q, k, v, dense),
        reference.attention(q, k, v, dense, precision=backend.dtype),
    )
    rows, columns = (1, 2, 3), (3, 1, 2)
    backend.check(backend.qkv(8, seq=(6, 6)), dense.repeat(rows, 0).repeat(columns, 1))


@pytest.mark.parametrize("shape", [(10, 15), (20, 10), (10, 21)])
def test_t9_a_mask_of_another_shape(backend: Backend, shape: tuple[int, int]) -> None:
    arrays = backend.qkv(9, heads=8, kv_heads=4, seq=(10, 20), dims=(128, 128))
    with pytest.raises(ShapeError, match=rf"\({shape[0]}, {shape[1]}\).*\(10, 20\)"):
        backend.run(arrays, np.ones(shape, bool))


def test_t11_a_mask_that_is_larger_than_the_problem(backend: Backend) -> None:
    with pytest.raises(ShapeError, match=r"\(128, 256\).*\(2, 2\)"):
        backend.run(backend.qkv(11, batch=2, heads=1, seq=(2, 2)), np.ones((128, 256), bool))


def test_t13_a_mask_for_each_head_and_batch(backend: Backend) -> None:
    arrays = backend.qkv(13, batch=2, heads=32, seq=(8, 8), dims=(128, 128))
    causal = masks.causal(8)
    out, _ = backend.check(arrays, masks.stack([~masks.full(8), *[causal] * 31]))
    assert not out[:, 0].any() and out[:, 1:].astype(np.float32).any(axis=(2, 3)).all()
    both = masks.stack([causal, masks.sliding_window(8, window=1)])[:, None]
    backend.check(arrays, both)
    for lead in ((1, 32), (2, 1), (1, 1)):
        backend.check(arrays, rng(13).random((*lead, 8, 8)) < 0.5)


@pytest.mark.parametrize(("align", "seen"), [("bottom-right", 5), ("top-left", 1)])
def test_t15_one_query_of_a_causal_mask(backend: Backend, align: Any, seen: int) -> None:
    q, k, v = backend.qkv(15, seq=(1, 5))
    out, _ = backend.run((q, k, v), masks.causal(1, 5, align=align))
    part = q, k[:, :, :seen], v[:, :, :seen]
    low = reference.attention(*part, precision=backend.dtype)
    assert_close(out, reference.attention(*part), low)


def test_t15_more_queries_than_keys(backend: Backend) -> None:
    mask = masks.causal(5, 2, align="bottom-right")
    out, _ = backend.check(backend.qkv(15, seq=(5, 2)), mask)
    assert not out[:, :, :3].any() and out[:, :, 3:].astype(np.float32).any(axis=-1).all()


@pytest.mark.parametrize(
    ("q_lens", "kv_lens"),
    [([1, 0, 1], [3, 0, 5]), ([0, 2], [4, 3]), ([2, 1], [0, 7]), ([0, 0], [0, 0])],
)
def test_t16_packed_sequences(backend: Backend, q_lens: list[int], kv_lens: list[int]) -> None:
    xp, keys = backend.xp, (sum(kv_lens), 3, 64)
    q, k, v = backend.draw(16, (sum(q_lens), 9, 64), keys, keys)
    out = poison(q.shape, q.dtype, xp)
    _, lse = attention_varlen(
        *map(xp.asarray, (q, k, v)), q_lens, kv_lens, return_lse=True, out=out
    )
    assert out.shape == (sum(q_lens), 9, 64) and lse.shape == (sum(q_lens), 9)
    row = col = 0
    for m, n in zip(q_lens, kv_lens, strict=True):
        parts = (q[row : row + m], k[col : col + n], v[col : col + n])
        one = [x.swapaxes(0, 1)[None] for x in parts]
        exact, exact_lse = reference.attention(*one, return_lse=True)
        low = reference.attention(*one, precision=backend.dtype)
        assert_close(backend.host(out)[row : row + m].swapaxes(0, 1)[None], exact, low)
        got = backend.host(lse)[row : row + m].T[None]
        np.testing.assert_allclose(got, exact_lse, rtol=4e-6, atol=4e-5)
        row, col = row + m, col + n


def test_t17_halves_of_the_keys_join_by_their_natural_lse(backend: Backend) -> None:
    q, k, v = backend.qkv(17, seq=(4, 3136))
    whole, _ = backend.check((q, k, v))
    left, right = (
        backend.run((q, k[:, :, part], v[:, :, part])) for part in (slice(3072), slice(3072, None))
    )
    share = 1 / (1 + np.exp(right[1] - left[1]))[..., None]
    joined = left[0].astype(np.float32) * share + right[0].astype(np.float32) * (1 - share)
    np.testing.assert_allclose(joined, whole.astype(np.float32), atol=1e-3)


@pytest.mark.parametrize(
    "dim", [8, 16, 24, 31, 32, 40, 56, 64, 72, 80, 96, 112, 128, 136, 160, 256]
)
def test_t21_head_dims(backend: Backend, dim: int) -> None:
    arrays = backend.qkv(21, seq=(65, 65), dims=(dim, dim))
    backend.check(arrays)
    backend.check(arrays, masks.sliding_window(65, window=9))


def test_t23_strides(backend: Backend) -> None:
    xp = backend.xp
    packed = xp.asarray(backend.draw(23, (2, 100, 3, 4, 32))[0])
    slices = [packed[:, :, i].swapaxes(1, 2) for i in range(3)]
    arrays = [xp.asarray(x) for x in backend.qkv(23, batch=2, heads=4, seq=(100, 100))]
    every = [
        slices,
        [arrays[0], strided(arrays[1])["rows"], arrays[2]],
        [*arrays[:2], xp.ascontiguousarray(arrays[2].swapaxes(2, 3)).swapaxes(2, 3)],
        [x[:, :, ::-1] for x in arrays],
        [x[:, ::-1] for x in arrays],
        [xp.asfortranarray(x) for x in arrays],
        *([strided(x)[name] for x in arrays] for name in strided(arrays[0])),
    ]
    for mask in (None, rng(23).random((100, 100)) < 0.2):
        for views in every:
            got = backend.host(attention(*views, mask))
            copies = [backend.host(x).copy() for x in views]
            exact = reference.attention(*copies, mask)
            assert_close(got, exact, reference.attention(*copies, mask, precision=backend.dtype))


def test_t24_a_mask_of_more_than_two_to_the_31_elements(backend: Backend) -> None:
    heads, tokens = (8, 28), 4096
    numbers = np.zeros(heads, np.int32)
    numbers[:, ::5] = 1
    two = [masks.sliding_window(tokens, window=3), ~masks.full(tokens)]
    stacked = MaskStack([each.tobsr() for each in two], numbers)
    assert np.prod(stacked.shape, dtype=np.int64) > 2**31
    q, k, v = backend.draw(24, *[(*heads, tokens, 8)] * 3)
    out, _ = backend.run((q, k, v), stacked)
    assert not out[:, ::5].astype(np.float32).any()
    rows = slice(tokens - 64, None)
    last = q[-1:, -2:, rows], k[-1:, -2:], v[-1:, -2:]
    dense = two[0][rows, :].toarray()
    low = reference.attention(*last, dense, precision=backend.dtype)
    assert_close(out[-1:, -2:, rows], reference.attention(*last, dense), low)
