"""LayerNorm, embedding, add and GELU: bad arguments, and kernels against the oracle on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.ops import reference
from stof_cupy.ops.elementwise import add, gelu
from stof_cupy.ops.embedding import embedding
from stof_cupy.ops.norm import layer_norm
from stof_cupy.testing import assert_close, poison, random_array, rng, strided

DTYPES = ("float16", "bfloat16")
ONE = np.ones(4, np.float32)
BUFFER = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: layer_norm(np.ones((2, 4), np.float32), ONE, ONE, eps=0), ArgumentError, "eps"),
        (lambda: layer_norm(np.ones((2, 4), int), ONE, ONE, eps=1e-5), DTypeError, "x: got int64"),
        (lambda: layer_norm(np.ones((2, 5), np.float32), ONE, ONE, eps=1), ShapeError, "weight"),
        (lambda: layer_norm(np.ones((2, 0), np.float32), ONE, ONE, eps=1), ShapeError, "hidden"),
        (lambda: add(np.ones((2, 4), np.float32), np.ones(3, np.float32)), ShapeError, "y: got"),
        (lambda: add(ONE, np.ones((2, 4), np.float32)), ShapeError, "y: got"),
        (lambda: add(ONE, ONE.astype(np.float16)), DTypeError, "y: got float16"),
        (lambda: gelu(ONE, approximate="erf"), ArgumentError, "'erf'"),
        (lambda: embedding(np.ones((1, 2)), np.ones((3, 4), np.float32)), DTypeError, "ids"),
        (lambda: embedding(np.ones(2, int), np.ones((3, 4), np.float32)), ShapeError, "ids"),
        (lambda: embedding(np.array([[3]]), np.ones((3, 4), np.float32)), ArgumentError, "got 3"),
        (lambda: embedding(np.array([[-1]]), np.ones((3, 4), np.float32)), ArgumentError, "got -1"),
        (
            lambda: embedding(
                np.array([[0, 1]]),
                np.ones((3, 4), np.float32),
                position_table=np.ones((1, 4), np.float32),
            ),
            ShapeError,
            "at least 2 rows",
        ),
        (
            lambda: embedding(
                np.array([[0]]), np.ones((3, 4), np.float32), token_types=np.array([[0]])
            ),
            ArgumentError,
            "only token_types",
        ),
        (
            lambda: embedding(
                np.array([[0]]),
                np.ones((3, 4), np.float32),
                type_table=np.ones((0, 4), np.float32),
                token_types=np.array([[0]]),
            ),
            ShapeError,
            "at least one row",
        ),
        (lambda: layer_norm(BUFFER[:2], ONE, ONE, eps=1, out=BUFFER[1:]), ArgumentError, "out"),
        (lambda: layer_norm(BUFFER, ONE, ONE, eps=1e-60), ArgumentError, "eps"),
        (lambda: add(BUFFER, BUFFER[0], out=BUFFER), ArgumentError, "shared with y"),
        (lambda: gelu(BUFFER[:2], out=BUFFER[1:]), ArgumentError, "shared with x"),
        (
            lambda: embedding(np.array([[0, 1]]), BUFFER, out=BUFFER[None, :2]),
            ArgumentError,
            "shared with table",
        ),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 7, 8, 63, 64, 384, 1000, 4099])
def test_layer_norm(hidden, dtype):
    import cupy

    g = rng(hidden)
    x = random_array(g, (3, 7, hidden), dtype) + np.asarray(
        3, dtype=random_array(g, (1,), dtype).dtype
    )
    weight, bias = (random_array(g, (hidden,), dtype) for _ in range(2))
    exact = reference.layer_norm(x, weight, bias, eps=1e-5)
    low = reference.layer_norm(x, weight, bias, eps=1e-5, precision=dtype)
    on = [cupy.asarray(y) for y in (x, weight, bias)]
    out = poison(x.shape, x.dtype, cupy)
    assert layer_norm(*on, eps=1e-5, out=out) is out
    assert_close(out, exact, low)
    for view in strided(on[0]).values():
        assert_close(layer_norm(view, *on[1:], eps=1e-5), exact, low)
    assert layer_norm(*on, eps=1e-5, out=on[0]) is on[0]
    assert_close(on[0], exact, low)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 31, 64, 384])
@pytest.mark.parametrize("tables", ["ids", "positions", "types", "all"])
def test_embedding(tables, hidden, dtype):
    import cupy

    g = rng(hidden)
    ids = g.integers(0, 50, (3, 17)).astype(np.int32)
    types = g.integers(0, 2, (3, 17))
    table = random_array(g, (50, hidden), dtype)
    extra = {}
    if tables in ("positions", "all"):
        extra["position_table"] = random_array(g, (20, hidden), dtype)
    if tables in ("types", "all"):
        extra |= {"type_table": random_array(g, (2, hidden), dtype), "token_types": types}
    exact = reference.embedding(ids, table, **extra)
    low = reference.embedding(ids, table, **extra, precision=dtype)
    on = {name: cupy.asarray(x) for name, x in extra.items()}
    out = poison((3, 17, hidden), table.dtype, cupy)
    assert embedding(cupy.asarray(ids), cupy.asarray(table), **on, out=out) is out
    assert_close(out, exact, low)
    view = strided(cupy.asarray(ids))["rows"]
    assert_close(embedding(view, cupy.asarray(table), **on), exact, low)


@pytest.mark.gpu
def test_ids_outside_the_table_give_nan_and_read_nothing():
    import cupy

    table = cupy.ones((5, 16), np.float16)
    ids = cupy.array([[0, 5, -1, 2**40, 4]])
    row_is_nan = cupy.isnan(embedding(ids, table)).all(axis=2)
    assert row_is_nan.get().tolist() == [[False, True, True, True, False]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 64), (5, 1001), (300, 1024)])
def test_elementwise(shape, dtype):
    import cupy

    g = rng(len(shape))
    x = random_array(g, shape, dtype, scale=3.0)
    on = cupy.asarray(x)
    for axes in range(1, len(shape) + 1):
        y = random_array(g, shape[-axes:], dtype)
        out = poison(shape, x.dtype, cupy)
        assert add(on, cupy.asarray(y), out=out) is out
        assert_close(out, reference.add(x, y), reference.add(x, y, precision=dtype))
    for kind in ("none", "tanh"):
        exact = reference.gelu(x, approximate=kind)
        low = reference.gelu(x, approximate=kind, precision=dtype)
        assert_close(gelu(on, approximate=kind), exact, low)
        if len(shape) > 1:
            for view in strided(on).values():
                assert_close(gelu(view, approximate=kind), exact, low)
