"""A norm folded into the product after it, against the two by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.jit import catalogue, gemm_statistics
from stof_cupy.ops import reference
from stof_cupy.ops.epilogue import Epilogue, Normed
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.gemm_fold import fold_norm, merged_statistics, row_statistics
from stof_cupy.ops.norm_rows import arguments
from stof_cupy.testing import assert_close, poison, random_array, rng, strided
from tests.masks import on_host


def drawn(dtype: str, away: float = 0.0, rows: int = 37, k: int = 200, n: int = 72) -> Any:
    g = rng(int(away) + k)
    x = (g.standard_normal((rows, k)) + away).astype(random_array(g, (1,), dtype).dtype)
    w = random_array(g, (n, k), dtype, k**-0.5)
    weight = random_array(g, (k,), dtype) + np.asarray(1, x.dtype)
    shift, bias = (random_array(g, (size,), dtype) for size in (k, n))
    return x, w, weight, shift, bias


def product(x: Any, w: Any, weight: Any, shift: Any, bias: Any, xp: Any = np) -> Any:
    folded = fold_norm(w, weight, shift, bias)
    v, sums, added = (xp.asarray(y) for y in folded)
    on = xp.asarray(x)
    normed = Normed(row_statistics(on, eps=1e-5), sums)
    return gemm(on, v.T, epilogue=Epilogue(bias=added, normed=normed))


def compare(got: Any, x: Any, w: Any, weight: Any, shift: Any, bias: Any) -> None:
    dtype = x.dtype.name

    def computed(precision: str | None) -> Any:
        normed = reference.layer_norm(x, weight, shift, eps=1e-5, precision=precision)
        return reference.gemm(normed, w.T, bias=bias, precision=precision)

    assert_close(got, computed(None), computed(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_it_is_the_norm_and_the_product(dtype: str) -> None:
    arrays = drawn(dtype)
    compare(product(*arrays), *arrays)


def test_rows_that_are_far_from_zero() -> None:
    arrays = drawn("bfloat16", 10.0)
    compare(product(*arrays), *arrays)


def test_without_a_mean_it_is_that_of_rms_norm() -> None:
    x, w, weight, _, _ = drawn("float32", 1.0)
    folded = fold_norm(w, weight)
    assert folded.bias is None
    stats = row_statistics(x, eps=1e-5, centred=False)
    got = gemm(x, folded.weight.T, epilogue=Epilogue(normed=Normed(stats, folded.sums)))
    exact = x / np.sqrt(np.square(x.astype(np.float64)).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(got, exact @ w.T, atol=1e-4)


def test_statistics_that_a_product_told() -> None:
    g = rng(2)
    a, w = random_array(g, (9, 40)), random_array(g, (150, 40))
    parts = poison((9, 3, 2), np.float32)
    out = gemm(a, w.T, epilogue=Epilogue(statistics=parts))
    for centred in (True, False):
        got = merged_statistics(parts, 150, eps=1e-5, centred=centred)
        want = row_statistics(out, eps=1e-5, centred=centred)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("centred", [True, False])
def test_the_code_of_both_kernels(centred: bool) -> None:
    sizes = ((1, 1, 8), (5, 64, 64), (9, 300, 304), (6, 777, 800), (7, 2048, 2048), (3, 8200, 8200))
    for rows, cols, pitch in sizes:
        g = rng(cols)
        x = poison((rows, pitch), random_array(g, (1,), "bfloat16").dtype)[:, :cols]
        x[...] = random_array(g, (rows, cols), "bfloat16") + np.asarray(3, x.dtype)
        want = row_statistics(x, eps=1e-5, centred=centred)
        out = poison((rows + 1, 2), np.float32)
        _, fields = arguments(x, None, None, None, eps=1e-5)
        spec = catalogue.row_statistics("bfloat16", centred=centred)
        for warps in {1, fields["warps"]}:  # as of many rows, and of so few
            out[...] = np.nan
            fields |= {"out": out.ctypes.data, "warps": warps}
            on_host.launch(spec, (-(-rows * warps // 8), 1), **fields)
            np.testing.assert_allclose(out[:rows], want, rtol=1e-5)
            assert np.isnan(out[rows:]).all()
            if centred:
                large = np.full_like(x.base, 3e19)
                on_host.launch(
                    spec, (-(-rows * warps // 8), 1), **fields | {"x": large.ctypes.data}
                )
                np.testing.assert_allclose(out[:rows, 1], 1e-5**-0.5, rtol=1e-6)
        slabs = -(-cols // 64)
        parts = np.empty((rows, slabs, 2), np.float32)
        for i in range(slabs):
            part = x[:, 64 * i : 64 * i + 64].astype(np.float64)
            parts[:, i] = np.stack([part.mean(1), part.var(1) * part.shape[1]], 1)
        out = poison((rows, 2), np.float32)
        fields = {"parts": parts.ctypes.data, "out": out.ctypes.data, "rows": rows}
        fields |= {"cols": cols, "centred": centred, "eps": 1e-5}
        on_host.launch(gemm_statistics.merged_statistics(), (-(-rows // 4), 1), **fields)
        np.testing.assert_allclose(out, want, rtol=1e-5)


def test_what_does_not_fit() -> None:
    x, w, weight, _, _ = drawn("float32")
    with pytest.raises(ShapeError, match="weight"):
        fold_norm(w, weight[1:])
    with pytest.raises(ShapeError, match="K at least 1"):
        row_statistics(x[:, :0], eps=1e-5)
    with pytest.raises(ArgumentError, match="eps"):
        row_statistics(x, eps=0.0)
    with pytest.raises(ShapeError, match="out"):
        row_statistics(x, eps=1e-5, out=np.zeros((3, 2), np.float32))
    with pytest.raises(DTypeError, match="out"):
        row_statistics(x, eps=1e-5, out=np.zeros((37, 2)))
    with pytest.raises(ShapeError, match="parts"):
        merged_statistics(np.zeros((3, 2, 2), np.float32), 64, eps=1e-5)
    with pytest.raises(DTypeError, match="parts"):
        merged_statistics(np.zeros((3, 1, 2)), 64, eps=1e-5)
    with pytest.raises(ShapeError, match="w: "):
        fold_norm(weight, weight)
    with pytest.raises(DTypeError, match="w: "):  # whose product would be rounded to integers
        fold_norm(w.astype(np.int64), weight)
    with pytest.raises(DTypeError, match="w: got list"):
        fold_norm([[1.0]], weight)
    for wrong in (None, weight.astype(np.int64), weight.astype(np.complex64)):
        with pytest.raises(DTypeError, match="weight: got "):
            fold_norm(w, wrong)
    with pytest.raises(DTypeError, match="shift: got int64"):
        fold_norm(w, weight, weight.astype(np.int64))
    with pytest.raises(DTypeError, match="parts: got None"):
        merged_statistics(None, 64, eps=1e-5)
    parts = np.zeros((3, 1, 2), np.float32)
    for columns in (64.0, "64", None, True, 0, -1):
        with pytest.raises(ArgumentError, match=r"columns: got .*, expected a positive integer"):
            merged_statistics(parts, columns, eps=1e-5)
    with pytest.raises(ArgumentError, match="parts: got strides"):
        merged_statistics(parts[::-1], 64, eps=1e-5)


def test_statistics_are_not_written_over_what_they_are_of() -> None:
    x = np.ones((37, 2), np.float32)
    with pytest.raises(ArgumentError, match="shared with x"):
        row_statistics(x, eps=1e-5, out=x)
    parts = np.ones((37, 1, 2), np.float32)
    with pytest.raises(ArgumentError, match="shared with parts"):
        merged_statistics(parts, 2, eps=1e-5, out=parts[:, 0])
    out = np.empty((37, 2), np.float32)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        row_statistics(x, eps=1e-5, out=out)


def test_no_rows_have_no_statistics() -> None:
    for shape in ((0, 4), (2, 0, 4)):
        assert row_statistics(np.empty(shape, np.float32), eps=1e-5).shape == (0, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("away", [0.0, 10.0])
def test_on_a_gpu(away: float, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    for rows, k, n in ((37, 200, 72), (300, 776, 520), (1, 33, 8)):
        arrays = drawn(dtype, away, rows, k, n)
        compare(product(*arrays, xp=cupy), *arrays)


@pytest.mark.gpu
def test_statistics_on_a_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    g = rng(5)
    x = random_array(g, (300, 520), "bfloat16")
    want = row_statistics(x, eps=1e-5)
    for view in (cupy.asarray(x), *strided(cupy.asarray(x)).values()):
        np.testing.assert_allclose(row_statistics(view, eps=1e-5).get(), want, rtol=1e-5, atol=1e-6)
    a, w = (cupy.asarray(random_array(g, size, "bfloat16")) for size in ((300, 64), (520, 64)))
    parts = poison((300, 9, 2), np.float32, cupy)
    out = gemm(a, w.T, epilogue=Epilogue(statistics=parts))
    got = merged_statistics(parts, 520, eps=1e-5).get()
    np.testing.assert_allclose(got, row_statistics(out.get(), eps=1e-5), rtol=1e-4, atol=1e-5)


def test_what_is_wrong_with_where_statistics_go() -> None:
    x = np.ones((3, 4), np.float32)
    other = np.dtype(np.float32).newbyteorder()
    with pytest.raises(DTypeError, match=f"out: got {other.str}"):
        row_statistics(x, eps=1e-5, out=np.empty((3, 2), other))
    with pytest.raises(ArgumentError, match="out: got strides"):
        row_statistics(x, eps=1e-5, out=np.empty((2, 3), np.float32).T)
