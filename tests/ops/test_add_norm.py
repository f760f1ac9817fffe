"""LayerNorm and RMSNorm of ``x + residual``: on NumPy, compiled for the CPU, and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stof_cupy
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from stof_cupy.jit import catalogue
from stof_cupy.ops import norm, norm_rows, reference, reference_decoder, rms_norm
from stof_cupy.ops.norm_rows import arguments
from stof_cupy.testing import assert_close, poison, random_array, rng, strided
from tests.masks import on_host
from tests.ops.conftest import OnHost

NORMS = ("layer_norm", "rms_norm")
DTYPES = ("float16", "bfloat16")
LENGTHS = [1, 7, 8, 72, 768, 1000, 1024, 1032, 2047, 4096, 4104, 8192, 8200, 9001]
"""Those of 1, 2, 4 and 8 warps, in 16-byte pieces and not, and beyond what registers keep."""

ONE = np.ones(4, np.float32)
X = np.ones((3, 4), np.float32)


def operands(hidden: int, dtype: str, shape: tuple[int, ...] = (11,)) -> tuple[Any, ...]:
    """Return x and a residual that is far larger, weight and bias."""
    g = rng(hidden)
    x = random_array(g, (*shape, hidden), dtype)
    residual = random_array(g, (*shape, hidden), dtype, scale=6.0)
    return x, residual, random_array(g, (hidden,), dtype), random_array(g, (hidden,), dtype)


def expected(name: str, x: Any, residual: Any, weight: Any, bias: Any) -> list[tuple[Any, Any]]:
    """Return result and sum, each as it is and with its inputs and itself rounded."""
    dtype = str(x.dtype)
    total = x.astype(np.float64) + residual.astype(np.float64)

    def normed(**low: Any) -> Any:
        if name == "rms_norm":
            return reference_decoder.rms_norm(total, weight, eps=1e-5, **low)
        return reference.layer_norm(total, weight, bias, eps=1e-5, **low)

    rounded = reference.add(x, residual, precision=dtype)
    return [(normed(), normed(precision=dtype)), (total, rounded)]


def call(name: str, x: Any, weight: Any, bias: Any, **how: Any) -> Any:
    if name == "rms_norm":
        return stof_cupy.rms_norm(x, weight, eps=1e-5, **how)
    return stof_cupy.layer_norm(x, weight, bias, eps=1e-5, **how)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"residual": X[:2]}, ShapeError, "residual: got"),
        ({"residual": X[0]}, ShapeError, "residual: got"),
        ({"residual": X.astype(np.float16)}, DTypeError, "residual: got float16"),
        ({"sum_out": X.copy()}, ArgumentError, "sum_out: got an array"),
        ({"residual": X.copy(), "sum_out": X[:2].copy()}, ShapeError, "sum_out: got"),
        ({"residual": X.copy(), "sum_out": X.astype(float)}, DTypeError, "sum_out: got"),
        ({"residual": X.copy(), "sum_out": X[::-1]}, ArgumentError, "sum_out: .* shared with x"),
        ({"residual": X, "out": X[::-1]}, ArgumentError, "out: .* shared with x"),
        ({"residual": X.copy(), "sum_out": X, "out": X}, ArgumentError, "shared with sum_out"),
    ],
)
def test_bad_arguments(name, how, error, text):
    with pytest.raises(error, match=text):
        call(name, X, ONE, ONE, **how)
    assert (X == 1).all()


def test_a_residual_overlapping_out():
    both = np.ones((4, 4), np.float32)
    with pytest.raises(ArgumentError, match=r"out: .* shared with residual"):
        call("layer_norm", X, ONE, ONE, residual=both[:3], out=both[1:])


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [*DTYPES, "float32"])
@pytest.mark.parametrize("place", ["new", "x", "residual", "swapped"])
def test_on_numpy(name, dtype, place):
    x, residual, *weights = operands(33, dtype, (2, 5))
    result, total = expected(name, x, residual, *weights)
    at = {
        "new": (poison(x.shape, x.dtype), poison(x.shape, x.dtype)),
        "x": (x, residual),
        "residual": (residual, x),
        "swapped": (None, x),
    }[place]
    got = call(name, x, *weights, residual=residual, out=at[0], sum_out=at[1])
    assert at[0] is None or got is at[0]
    assert_close(got, *result)
    assert_close(at[1], *total)


def host_run(name: str, dtype: str, arrays: tuple[Any, ...], *, seed: int = 0) -> None:
    x, residual, weight, bias, sum_out, out = arrays
    bias = bias if name == "layer_norm" else None
    blocks, fields = arguments(x, weight, bias, out, eps=1e-5, residual=residual, sum_out=sum_out)
    spec = getattr(catalogue, name)(dtype)
    on_host.launch(spec, (blocks, 1), seed=seed, **fields)


@pytest.mark.parametrize(("name", "dtype"), [("layer_norm", "bfloat16"), ("rms_norm", "float16")])
@pytest.mark.parametrize("hidden", LENGTHS)
def test_kernel_on_the_cpu(hidden, name, dtype):
    x, residual, weight, bias = operands(hidden, dtype)
    result, total = expected(name, x, residual, weight, bias)
    given = [on_host.fenced(y) for y in (x, residual, weight, bias)]
    sum_out, out = (on_host.fenced(poison(x.shape, x.dtype)) for _ in range(2))
    host_run(name, dtype, (*given, sum_out, out), seed=hidden)
    assert_close(out, *result)
    assert_close(sum_out, *total)
    assert all(
        np.array_equal(*pair) for pair in zip(given, (x, residual, weight, bias), strict=True)
    )


@pytest.mark.parametrize("hidden", [40, 768, 1032, 8200])
def test_backwards_on_the_cpu(hidden, monkeypatch):
    """Of what L2 does not hold the last rows come first; each CTA's rows are those it should do."""
    x, residual, weight, bias = operands(hidden, "bfloat16", (21,))
    result, total = expected("layer_norm", x, residual, weight, bias)
    sum_out, out = (poison(x.shape, x.dtype) for _ in range(2))
    for most, backwards in ((x.nbytes, False), (x.nbytes - 1, True)):
        monkeypatch.setattr(norm_rows, "_FITS", most)
        assert arguments(x, weight, bias, out, eps=1e-5)[1]["backwards"] is backwards
    host_run("layer_norm", "bfloat16", (x, residual, weight, bias, sum_out, out))
    assert_close(out, *result)
    assert_close(sum_out, *total)


def test_rows_that_the_kernel_does_not_count():
    rows = np.broadcast_to(np.float16(0), (2, 2**31 - 2**14 + 1))
    assert arguments(rows[:, :-1], None, None, None, eps=1e-5)[1]["cols"] == 2**31 - 2**14
    with pytest.raises(UnsupportedError, match="columns: got 2147467265"):
        arguments(rows, None, None, None, eps=1e-5)


@pytest.mark.parametrize(("dtype", "value"), [("float16", 60000), ("bfloat16", 3e19)])
def test_constant_rows_on_the_cpu(dtype: str, value: float) -> None:
    """What is the mean is 0 afterwards, however large it was."""
    for hidden in (40, 768, 1001):
        x, _, weight, bias = operands(hidden, dtype, (3,))
        x[...] = value
        out = poison(x.shape, x.dtype)
        host_run("layer_norm", dtype, (x, None, weight, bias, None, out))
        np.testing.assert_array_equal(out, np.broadcast_to(bias, x.shape))


@pytest.mark.parametrize("hidden", [40, 1001, 8200])
@pytest.mark.parametrize(("out", "sum_out"), [(0, 1), (1, 0), (0, None), (1, None)])
def test_kernel_in_place_on_the_cpu(hidden, out, sum_out):
    x, residual, weight, bias = operands(hidden, "float16", (5,))
    result, total = expected("layer_norm", x, residual, weight, bias)
    pair = [on_host.fenced(y) for y in (x, residual)]
    at = None if sum_out is None else pair[sum_out]
    host_run("layer_norm", "float16", (*pair, weight, bias, at, pair[out]))
    assert_close(pair[out], *result)
    if at is not None:
        assert_close(at, *total)


@pytest.mark.parametrize("hidden", [24, 25])
def test_kernel_with_strides_on_the_cpu(hidden):
    x, residual, weight, bias = operands(hidden, "float16", (7,))
    result, total = expected("layer_norm", x, residual, weight, bias)
    of_x, of_residual = strided(x), strided(residual)
    for name, other in zip(of_x, reversed(of_x), strict=True):
        out, sum_out = (strided(poison(x.shape, x.dtype))[each] for each in (other, name))
        arrays = (of_x[name], of_residual[other], weight, bias, sum_out, out)
        host_run("layer_norm", "float16", arrays)
        assert_close(out, *result)
        assert_close(sum_out, *total)


@pytest.mark.parametrize("layout", ["rows", "slice", "reversed", "transposed"])
def test_launching_code_takes_every_layout(layout, launched):
    x, residual, weight, bias = operands(24, "float16", (2, 3, 5))
    for name in NORMS:
        result, total = expected(name, x, residual, weight, bias)
        weights = (weight, bias) if name == "layer_norm" else (weight,)
        run = norm._launch if name == "layer_norm" else rms_norm._launch
        view = strided(x)[layout].view(OnHost)
        blank = strided(poison(x.shape, x.dtype))[layout]
        for sum_out, out in (
            (blank, None),
            (poison(x.shape, x.dtype), blank.copy("K")),
            (view, blank),
        ):
            got = run(view, *weights, out, eps=1e-5, residual=residual, sum_out=sum_out)
            assert_close(got, *result)
            assert_close(sum_out, *total)
            view = strided(x)[layout].view(OnHost)
    assert {*launched} == {"layer_norm_f16", "rms_norm_f16"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("hidden", [40, 768, 1001, 5000])
def test_more_rows_than_there_are_warps(hidden, name):
    import cupy

    x, residual, weight, bias = operands(hidden, "bfloat16", (9001,))
    result, total = expected(name, x, residual, weight, bias)
    on = [cupy.asarray(y) for y in (x, residual, weight, bias)]
    sum_out, out = (poison(x.shape, x.dtype, cupy) for _ in range(2))
    call(name, on[0], *on[2:], residual=on[1], sum_out=sum_out, out=out)
    assert_close(out, *result)
    assert_close(sum_out, *total)
    given = cupy.asnumpy(sum_out)
    call(name, sum_out, *on[2:], residual=None, out=sum_out)
    assert_close(sum_out, *expected(name, given, 0 * residual, weight, bias)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", LENGTHS)
def test_on_a_gpu(hidden, dtype, name):
    import cupy

    x, residual, weight, bias = operands(hidden, dtype, (3, 7))
    result, total = expected(name, x, residual, weight, bias)
    on = [cupy.asarray(y) for y in (x, residual, weight, bias)]
    sum_out, out = (poison(x.shape, x.dtype, cupy) for _ in range(2))
    got = call(name, on[0], *on[2:], residual=on[1], sum_out=sum_out, out=out)
    assert got is out
    assert_close(out, *result)
    assert_close(sum_out, *total)
    for view, other in zip(strided(on[0]).values(), strided(on[1]).values(), strict=True):
        assert_close(call(name, view, *on[2:], residual=other), *result)
        assert_close(call(name, view, *on[2:], residual=on[1], out=other), *result)
    call(name, on[0], *on[2:], residual=on[1], sum_out=on[1], out=on[0])
    assert_close(on[0], *result)
    assert_close(on[1], *total)
