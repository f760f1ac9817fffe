"""The other NumPy operators against the float64 oracle."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from stof_cupy.ops import cpu, cpu_decoder, reference
from stof_cupy.ops.epilogue import ACTIVATIONS, Epilogue, Normed
from stof_cupy.ops.gemm import gemm
from stof_cupy.testing import assert_close, poison, random_array, rng, strided

DTYPES = ["float16", "bfloat16", "float32", "float64"]


def precision(dtype: str) -> dict[str, str]:
    return {} if dtype == "float64" else {"precision": dtype}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("lead", [(5,), (2, 3), (1, 2, 1)])
def test_gemm_with_epilogue(dtype: str, activation: str | None, lead: tuple[int, ...]) -> None:
    generator = rng(0)
    a = random_array(generator, (*lead, 37), dtype)
    weight = random_array(generator, (11, 37), dtype)
    bias = random_array(generator, (11,), dtype)
    residual = random_array(generator, (*lead, 11), dtype)
    for terms in ({}, {"bias": bias}, {"residual": residual}, {"bias": bias, "residual": residual}):
        out = cpu.gemm(a, weight.T, epilogue=Epilogue(activation=activation, **terms))
        exact, low = (
            reference.gemm(a, weight.T, activation=activation, **terms, **rounding)
            for rounding in ({}, precision(dtype))
        )
        assert out.dtype == a.dtype
        assert_close(out, exact, low)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gemm_with_a_gate(dtype: str, activation: str) -> None:
    generator = rng(3)
    a = random_array(generator, (5, 37), dtype)
    weight = random_array(generator, (22, 37), dtype)
    bias, residual = random_array(generator, (22,), dtype), random_array(generator, (5, 11), dtype)
    terms = {"bias": bias, "residual": residual, "scale": 0.5, "gated": True}
    out = cpu.gemm(a, weight.T, epilogue=Epilogue(activation=activation, **terms))
    exact, low = (
        reference.gemm(a, weight.T, activation=activation, **terms, **rounding)
        for rounding in ({}, precision(dtype))
    )
    assert_close(out, exact, low)


def test_float64_stays_float64_whatever_the_order_of_its_bytes() -> None:
    generator = rng(4)
    a, b = (random_array(generator, shape, "float64") for shape in ((5, 300), (300, 8)))
    other = [x.astype(x.dtype.newbyteorder()) for x in (a, b)]
    got = cpu.gemm(*other)
    assert got.dtype == other[0].dtype
    np.testing.assert_allclose(got, a @ b, rtol=1e-12, atol=1e-12)
    x, at = other[0].reshape(1, 5, 1, 300), np.zeros((1, 1), np.int64)
    one = np.ones(2, np.float32)
    turned = cpu_decoder.rotary(x, at, one, interleaved=False, magnitude=1.0)
    np.testing.assert_array_equal(turned, x)  # at position 0


def test_a_folded_norm_of_float64_is_not_rounded() -> None:
    generator = rng(5)
    a, b = random_array(generator, (3, 40), "float64"), random_array(generator, (40, 6), "float64")
    told, sums = (generator.standard_normal(n).astype(np.float32) for n in ((3, 2), 6))
    got = gemm(a, b, epilogue=Epilogue(normed=Normed(told, sums)))
    mean, scale = told.astype(np.float64).T[:, :, None]
    np.testing.assert_allclose(got, (a @ b - mean * sums) * scale, rtol=1e-12, atol=1e-12)


def test_gemm_without_epilogue_rounds_once() -> None:
    a = np.full((1, 4096), 1, np.float16)
    b = np.full((4096, 1), 1, np.float16)
    b[0] = 0.5
    assert cpu.gemm(a, b) == np.float16(4095.5)


@pytest.mark.parametrize("layout", ["rows", "slice", "reversed", "transposed"])
def test_gemm_takes_any_strides(layout: str) -> None:
    a, b = random_array(rng(1), (3, 4, 5)), random_array(rng(2), (5, 6))
    got = cpu.gemm(strided(a)[layout], strided(b).get(layout, np.asfortranarray(b)))
    np.testing.assert_allclose(got, cpu.gemm(a, b), atol=1e-6)


def test_gemm_may_write_over_its_residual() -> None:
    a, b, residual = (random_array(rng(i), (8, 8)) for i in range(3))
    expected = cpu.gemm(a, b, epilogue=Epilogue(residual=residual.copy()))
    got = cpu.gemm(a, b, epilogue=Epilogue(residual=residual), out=residual)
    assert got is residual
    np.testing.assert_array_equal(got, expected)


def test_inputs_are_left_alone() -> None:
    a, b, bias = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), np.ones(2, np.float32)
    cpu.gemm(a, b, epilogue=Epilogue(bias=bias, activation="gelu", residual=a))
    cpu.layer_norm(a, bias, bias, eps=1e-5)
    cpu.gelu(a)
    cpu.gelu(a, approximate="tanh")
    cpu.add(a, bias)
    ids = np.array([[0, 1]])
    cpu.embedding(ids, a, position_table=b, type_table=b, token_types=ids)
    for x in (a, b, bias):
        assert (x == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 384, 1000])
def test_layer_norm(dtype: str, width: int) -> None:
    generator = rng(3)
    x = random_array(generator, (2, 9, width), dtype, scale=3)
    weight, bias = (random_array(generator, (width,), dtype) for _ in range(2))
    exact = reference.layer_norm(x, weight, bias, eps=1e-12)
    low = reference.layer_norm(x, weight, bias, eps=1e-12, **precision(dtype))
    assert_close(cpu.layer_norm(x, weight, bias, eps=1e-12), exact, low)


def test_layer_norm_far_from_zero() -> None:
    x = random_array(rng(4), (5, 64)) + np.float32(1000)
    one, zero = np.ones(64, np.float32), np.zeros(64, np.float32)
    got = cpu.layer_norm(x, one, zero, eps=1e-5)
    np.testing.assert_allclose(got, reference.layer_norm(x, one, zero, eps=1e-5), atol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_broadcasts_over_leading_axes(dtype: str) -> None:
    x = random_array(rng(5), (2, 3, 4), dtype)
    for shape in ((2, 3, 4), (3, 4), (4,)):
        y = random_array(rng(6), shape, dtype)
        got = cpu.add(x, y)
        assert got.dtype == x.dtype
        assert_close(got, reference.add(x, y), reference.add(x, y, **precision(dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(dtype: str, approximate: str) -> None:
    x = np.linspace(-12, 12, 4001).astype(random_array(rng(0), (1,), dtype).dtype)
    exact = reference.gelu(x, approximate=approximate)
    low = reference.gelu(x, approximate=approximate, **precision(dtype))
    assert_close(cpu.gelu(x, approximate=approximate), exact, low)


def test_gelu_keeps_its_digits_in_the_left_tail() -> None:
    x = np.linspace(-8, -2, 100, dtype=np.float32)
    np.testing.assert_allclose(cpu.gelu(x), reference.gelu(x), rtol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
def test_embedding(dtype: str, ids_dtype: Any) -> None:
    generator = rng(7)
    table, positions = (random_array(generator, (n, 24), dtype) for n in (50, 9))
    types = random_array(generator, (2, 24), dtype)
    ids = generator.integers(50, size=(3, 7)).astype(ids_dtype)
    token_types = generator.integers(2, size=(3, 7)).astype(ids_dtype)
    for terms in (
        {},
        {"position_table": positions},
        {"type_table": types, "token_types": token_types},
        {"position_table": positions, "type_table": types, "token_types": token_types},
    ):
        got = cpu.embedding(ids, table, **terms)
        assert got.dtype == table.dtype
        low = reference.embedding(ids, table, **terms, **precision(dtype))
        assert_close(got, reference.embedding(ids, table, **terms), low)


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_filled_and_returned(dtype: str) -> None:
    x, weight = random_array(rng(8), (3, 4, 4), dtype), random_array(rng(9), (4,), dtype)
    ids = np.array([[0, 1, 2, 3]] * 3)
    calls = [
        lambda **out: cpu.gemm(x, x[0], **out),
        lambda **out: cpu.layer_norm(x, weight, weight, eps=1e-5, **out),
        lambda **out: cpu.add(x, weight, **out),
        lambda **out: cpu.gelu(x, **out),
        lambda **out: cpu.embedding(ids, x[1], **out),
    ]
    for call in calls:
        for out in strided(poison((3, 4, 4), x.dtype)).values():
            assert call(out=out) is out
            np.testing.assert_array_equal(out.astype(float), call().astype(float))


def test_float16_overflow_is_infinity_without_a_warning() -> None:
    x = np.full((1, 1), 300, np.float16)
    with np.errstate(all="raise"):
        assert np.isposinf(cpu.gemm(x, x))


def test_scipy_is_imported_only_for_exact_gelu() -> None:
    code = (
        "import sys, numpy as np; from stof_cupy import attention; from stof_cupy.ops import cpu\n"
        "x = np.ones((2, 2), np.float32)\n"
        "attention(*[x[None, None]] * 3); cpu.gemm(x, x); cpu.gelu(x, approximate='tanh')\n"
        "assert 'scipy.special' not in sys.modules\n"
        "cpu.gelu(x)\n"
        "assert 'scipy.special' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
