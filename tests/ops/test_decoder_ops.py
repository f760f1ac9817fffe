"""RMSNorm, rotary positions, gates and the KV cache: bad arguments, NumPy, and the kernels.

The kernels run compiled for the CPU (tests/masks/on_host.py), and on a GPU where there is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.jit import catalogue, decoder_kernels
from stof_cupy.ops import greedy, kv_cache, norm_rows, rms_norm, rotary
from stof_cupy.ops import reference_decoder as reference
from stof_cupy.ops._counters import Counters
from stof_cupy.ops.elementwise import ACTIVATIONS, gated, mul, relu, silu, softcap
from stof_cupy.testing import assert_close, poison, random_array, rng, strided
from tests.masks import on_host
from tests.ops.conftest import OnHost

DTYPES = ("float16", "bfloat16")
ONE = np.ones(4, np.float32)
X = np.ones((1, 2, 3, 4), np.float32)
AT = np.arange(3)[None]
F = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: rms_norm.rms_norm(X, ONE[:3], eps=1), ShapeError, "weight"),
        (lambda: rms_norm.rms_norm(X, ONE, eps=0), ArgumentError, "eps"),
        (lambda: rms_norm.rms_norm(X[..., :0], ONE[:0], eps=1), ShapeError, "hidden"),
        (lambda: rms_norm.rms_norm(X, ONE.astype(np.float16), eps=1), DTypeError, "weight"),
        (lambda: rms_norm.rms_norm(X.astype(int), ONE, eps=1), DTypeError, "x: got int64"),
        (lambda: rms_norm.rms_norm(X[0, 0, :2], ONE, eps=1, out=X[0, 0, 1:]), ArgumentError, "out"),
        (lambda: mul(X, ONE[:3]), ShapeError, "y: got"),
        (lambda: mul(X, X.astype(np.float16)), DTypeError, "y: got float16"),
        (lambda: gated(X, X, activation="selu"), ArgumentError, "'selu'"),
        (lambda: softcap(X, ONE[:3]), ShapeError, "cap: got"),
        (lambda: silu(X.astype(int)), DTypeError, "x: got int64"),
        (lambda: relu(ONE[:3], out=ONE[1:]), ArgumentError, "shared with x"),
        (lambda: rotary.rotary(X[0], AT, F), ShapeError, "x: got"),
        (lambda: rotary.rotary(X, AT[:, :2], F), ShapeError, "positions: got"),
        (lambda: rotary.rotary(X, AT.astype(float), F), DTypeError, "positions"),
        (lambda: rotary.rotary(X, AT, ONE[:3]), ShapeError, "at most 2"),
        (lambda: rotary.rotary(X, AT, F.astype(float)), DTypeError, "frequency: got float64"),
        (lambda: rotary.rotary(X, AT, F, magnitude=np.inf), ArgumentError, "magnitude"),
        (lambda: kv_cache.write_cache(X, X.copy()[:, :1], AT), ShapeError, "cache"),
        (lambda: kv_cache.write_cache(X, X.copy(), AT + 1), ArgumentError, "got 3"),
        (lambda: kv_cache.write_cache(X, X.copy(), AT - 1), ArgumentError, "got -1"),
        (lambda: kv_cache.write_cache(X, X, AT), ArgumentError, "shared with x"),
        (lambda: kv_cache.write_cache(X, X.copy(), AT - 1, ring=True), ArgumentError, "0 or more"),
        (
            lambda: kv_cache.write_cache(X, X[:, :, :2].copy(), AT, ring=True),
            ShapeError,
            "3 tokens",
        ),
        (lambda: greedy.take_best(X[0, 0], AT[0], AT[0], AT[0]), DTypeError, "positions"),
        (lambda: greedy.take_best(X[0, 0], AT[0, :2], AT[0], AT[0]), ShapeError, "tokens"),
        (lambda: greedy.take_best(X[0, 0, :, :0], AT[0], AT[0], AT[0]), ShapeError, "logits"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def turned_by_hand(x: np.ndarray, at: np.ndarray, frequency: np.ndarray, interleaved: bool):
    """Rotate pair by pair with a 2 x 2 matrix."""
    out = x.astype(np.float64)
    half = len(frequency)
    for b, h, s, i in np.ndindex(*x.shape[:3], half):
        pair = [2 * i, 2 * i + 1] if interleaved else [i, i + half]
        angle = float(np.float32(at[b, s]) * frequency[i])
        c, n = np.cos(angle), np.sin(angle)
        out[b, h, s, pair] = np.array([[c, -n], [n, c]]) @ x[b, h, s, pair]
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [1, 3, 5])
def test_rotary_turns_pairs(half, interleaved):
    g = rng(half)
    x = random_array(g, (2, 3, 7, 10), "float32")
    at = g.integers(0, 4000, (2, 7))
    frequency = g.random(half).astype(np.float32)
    expected = turned_by_hand(x, at, frequency, interleaved)
    how: dict[str, Any] = {"interleaved": interleaved}
    assert np.allclose(reference.rotary(x, at, frequency, **how), expected, rtol=0, atol=1e-12)
    got = rotary.rotary(x, at, frequency, **how)
    assert np.allclose(got, expected, rtol=0, atol=1e-5)
    twice = rotary.rotary(x, at, frequency, magnitude=2.0, **how)
    assert np.allclose(twice[..., : 2 * half], 2 * got[..., : 2 * half], rtol=1e-6)
    assert np.array_equal(twice[..., 2 * half :], x[..., 2 * half :])


def test_rotary_scores_depend_on_the_distance_alone():
    g = rng(0)
    q, k = random_array(g, (2, 1, 1, 1, 64), "float64")
    frequency = (10000.0 ** -(np.arange(32) / 32)).astype(np.float32)

    def score(i: int, j: int) -> float:
        turned = [rotary.rotary(x, np.array([[n]]), frequency) for x, n in ((q, i), (k, j))]
        return float((turned[0] * turned[1]).sum())

    assert np.isclose(score(5, 2), score(105, 102), atol=1e-5)
    assert not np.isclose(score(5, 2), score(5, 3), atol=1e-3)


@pytest.mark.parametrize("dtype", [*DTYPES, "float32", "float64"])
def test_numpy_against_the_oracle(dtype):
    g = rng(1)
    x, y = (random_array(g, (3, 7, 33), dtype, scale=3.0) for _ in range(2))
    weight = random_array(g, (33,), dtype)
    low = {"precision": dtype} if dtype != "float64" else {}

    def check(got: Any, meant: Any, *args: Any, **how: Any) -> None:
        assert got.dtype == x.dtype
        assert_close(got, meant(*args, **how), meant(*args, **how, **low))

    check(rms_norm.rms_norm(x, weight, eps=1e-5), reference.rms_norm, x, weight, eps=1e-5)
    check(mul(x, weight), reference.mul, x, weight)
    check(softcap(x, abs(weight) + 1), reference.softcap, x, abs(weight) + 1)
    for name in ACTIVATIONS:
        check(gated(x, y, activation=name), reference.gated, x, y, activation=name)
    for name, call in (("silu", silu), ("relu", relu)):
        check(call(x), reference.activated, x, activation=name)


def test_write_cache():
    cache = np.zeros((2, 3, 6, 4), np.float32)
    x = random_array(rng(2), (2, 3, 2, 4), "float32")
    assert kv_cache.write_cache(x, cache, np.array([[0, 1], [5, 2]])) is cache
    assert np.array_equal(cache[0, :, :2], x[0]) and not cache[0, :, 2:].any()
    assert np.array_equal(cache[1][:, [5, 2]], x[1]) and not cache[1][:, [0, 1, 3, 4]].any()


def put(x: np.ndarray, where: str) -> Any:
    if where == "host":
        return on_host.fenced(np.ascontiguousarray(x))
    import cupy

    return cupy.asarray(x)


def cases(kernels: list[tuple], host: list[tuple]) -> list[Any]:
    """All kernels on a GPU, and those of `host` as well compiled for the CPU, seconds each."""
    on_gpu = [pytest.param(*case, "gpu", marks=pytest.mark.gpu) for case in kernels]
    return [(*case, "host") for case in host] + on_gpu


BOTH = [(dtype,) for dtype in DTYPES]


@pytest.mark.parametrize(("dtype", "where"), cases(BOTH, BOTH))
@pytest.mark.parametrize("hidden", [1, 7, 64, 576, 1003])
def test_rms_norm_kernel(hidden, dtype, where):
    g = rng(hidden)
    x, weight = random_array(g, (3, 5, hidden), dtype), random_array(g, (hidden,), dtype)
    exact = reference.rms_norm(x, weight, eps=1e-5)
    low = reference.rms_norm(x, weight, eps=1e-5, precision=dtype)
    if where == "gpu":
        import cupy

        on = cupy.asarray(x), cupy.asarray(weight)
        out = poison(x.shape, x.dtype, cupy)
        assert rms_norm.rms_norm(*on, eps=1e-5, out=out) is out
        assert_close(out, exact, low)
        for view in strided(on[0]).values():
            assert_close(rms_norm.rms_norm(view, on[1], eps=1e-5), exact, low)
        return
    rows, weight = put(x.reshape(15, hidden), where), put(weight, where)
    out = on_host.fenced(poison(rows.shape, x.dtype))
    blocks, fields = norm_rows.arguments(rows, weight, None, out, eps=1e-5)
    on_host.launch(catalogue.rms_norm(dtype), (blocks, 1), **fields)
    assert_close(out.reshape(x.shape), exact, low)


@pytest.mark.gpu
def test_rms_norm_of_heads_copies_nothing():
    import cupy

    x = cupy.asarray(random_array(rng(3), (2, 5, 3 * 64), "float16"))
    heads = x.reshape(2, 5, 3, 64).transpose(0, 2, 1, 3)
    weight = cupy.ones(64, np.float16)
    out = rms_norm.rms_norm(heads, weight, eps=1e-6)
    assert out.strides == heads.strides
    exact = reference.rms_norm(heads.get(), np.ones(64), eps=1e-6)
    assert_close(
        out, exact, reference.rms_norm(heads.get(), np.ones(64), eps=1e-6, precision="float16")
    )


@pytest.mark.parametrize(
    ("dtype", "interleaved", "where"),
    cases(
        [(dtype, interleaved) for dtype in DTYPES for interleaved in (False, True)],
        [("float16", False), ("bfloat16", True)],
    ),
)
@pytest.mark.parametrize(("half", "head_dim"), [(1, 2), (3, 7), (8, 16), (32, 64), (12, 48)])
def test_rotary_kernel(half, head_dim, interleaved, dtype, where):
    g = rng(half)
    x = random_array(g, (2, 7, 3, head_dim), dtype)
    at = g.integers(0, 33000, (2, 7)).astype(np.int32)
    frequency = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
    how: dict[str, Any] = {"interleaved": interleaved, "magnitude": 1.25}
    turned = x.transpose(0, 2, 1, 3)
    exact = reference.rotary(turned, at, frequency, **how)
    low = reference.rotary(turned, at, frequency, **how, precision=dtype)
    on, places, steps = put(x, where).transpose(0, 2, 1, 3), put(at, where), put(frequency, where)
    if where == "gpu":
        out = rotary.rotary(on, places, steps, **how)
        assert out.strides == on.strides
        assert_close(out, exact, low)
        assert_close(rotary.rotary(on, places.astype(np.int64), steps, **how, out=on), exact, low)
        return
    out = on_host.fenced(poison(x.shape, x.dtype)).transpose(0, 2, 1, 3)
    blocks, fields = rotary.arguments(on, places, steps, out, 1.25)
    on_host.launch(decoder_kernels.rotary(dtype, interleaved), (blocks, 1), **fields)
    assert_close(out, exact, low)


@pytest.mark.parametrize(("dtype", "where"), cases(BOTH, BOTH[:1]))
@pytest.mark.parametrize("head_dim", [1, 8, 20, 64])
def test_kv_cache_kernel(head_dim, dtype, where):
    g = rng(head_dim)
    x = random_array(g, (2, 5, 3, head_dim), dtype)
    before = random_array(g, (2, 3, 9, head_dim), dtype)
    at = np.stack([g.permutation(9)[:5] for _ in range(2)]).astype(np.int32)
    expected = kv_cache.write_cache(x.transpose(0, 2, 1, 3), before.copy(), at)
    at[0, 0], at[1, 4] = -1, 9  # nowhere
    for b, s, key in ((0, 0, -1), (1, 4, 9)):
        lost = [k for k in range(9) if k not in at[b]]
        expected[b][:, lost] = before[b][:, lost]
        assert at[b, s] == key
    cache, places = put(before, where), put(at, where)
    heads = put(x, where).transpose(0, 2, 1, 3)
    if where == "gpu":
        assert kv_cache.write_cache(heads, cache, places) is cache
        cache = cache.get()
    else:
        blocks, fields = kv_cache.arguments(heads, cache, places)
        on_host.launch(decoder_kernels.kv_cache(dtype), (blocks, 1), **fields)
    assert np.array_equal(cache.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(("dtype", "where"), cases(BOTH, BOTH[:1]))
def test_kv_cache_kernel_goes_round(dtype, where):
    g = rng(3)
    x, before = random_array(g, (2, 3, 4, 24), dtype), random_array(g, (2, 3, 5, 24), dtype)
    at = np.array([[3, 4, 5, 6], [2**31 - 3, 2**31 - 2, 2**31 - 1, -1]], np.int32)
    expected = before.copy()
    for b, s in np.ndindex(2, 4):
        if at[b, s] >= 0:
            expected[b, :, int(at[b, s]) % 5] = x[b, :, s]
    cache, heads, places = (put(each, where) for each in (before, x, at))
    if where == "gpu":
        kv_cache.write_cache(heads, cache, places, ring=True)
        cache = cache.get()
    else:
        blocks, fields = kv_cache.arguments(heads, cache, places, True)
        on_host.launch(decoder_kernels.kv_cache(dtype), (blocks, 1), **fields)
    assert np.array_equal(cache.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(("dtype", "where"), cases(BOTH, BOTH[:1]))
@pytest.mark.parametrize("head_dim", [8, 20])
def test_keys_and_values_in_one_launch(head_dim, dtype, where):
    g = rng(head_dim)
    k = random_array(g, (2, 3, 5, head_dim), dtype)
    v = random_array(g, (2, 5, 3, head_dim), dtype).transpose(0, 2, 1, 3)
    before = [random_array(g, (2, 3, 7, head_dim), dtype) for _ in range(2)]
    at = np.array([[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]], np.int32)
    expected = [each.copy() for each in before]
    kv_cache.write_caches(k, v, *expected, at, ring=True)
    for x, to in zip((k, v), expected, strict=True):
        assert np.array_equal(to[0, :, [5, 6, 0, 1, 2]], x[0].transpose(1, 0, 2))
    caches = [put(each, where) for each in before]
    if where == "gpu":
        kv_cache.write_caches(put(k, where), put(v, where), *caches, put(at, where), ring=True)
        caches = [each.get() for each in caches]
    else:
        blocks, fields = kv_cache.arguments(k, caches[0], at, True, v, caches[1])
        on_host.launch(decoder_kernels.kv_cache(dtype), (blocks, 1), **fields)
    for cache, to in zip(caches, expected, strict=True):
        assert np.array_equal(cache.view(np.uint16), to.view(np.uint16))


@pytest.mark.parametrize(("dtype", "where"), cases(BOTH, BOTH[:1]))
@pytest.mark.parametrize("vocabulary", [1, 7, 8, 8191, 8192, 8200, 50000])
def test_greedy_kernel(vocabulary, dtype, where):
    g = rng(vocabulary)
    logits = random_array(g, (6, vocabulary), dtype)
    logits[1] = -0.0
    logits[1, vocabulary // 2 :] = 0.0  # equal to what is before
    logits[2] = -np.inf
    logits[3, vocabulary // 3 :] = np.inf  # equals again
    logits[4, vocabulary // 5] = np.nan
    logits[5] = -abs(logits[5].astype(np.float32)).astype(logits.dtype)
    expected = logits.astype(np.float32).argmax(axis=1)
    tokens, counts = np.full(6, -1), [np.arange(6, dtype=np.int32) + i for i in range(2)]
    given = [put(each, where) for each in (logits, tokens, *counts)]
    if where == "gpu":
        assert greedy.take_best(*given) is given[1]
        given = [each.get() for each in given]
    else:
        given[0] = on_host.fenced(given[0])
        each = greedy.blocks_of(len(logits), vocabulary)
        assert each == -(-vocabulary // 8192)
        partial, taken = np.full((6, each), -1), np.zeros(6, np.int32)  # greater than any key
        blocks, fields = greedy.arguments(*given, partial, taken.ctypes.data, each)
        on_host.launch(decoder_kernels.greedy(dtype), (blocks, 1), seed=vocabulary, **fields)
        assert not taken.any()  # what the next launch needs
    assert given[1].tolist() == expected.tolist()
    assert [each.tolist() for each in given[2:]] == [[1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]]
    host = [np.full(6, -1), *(np.arange(6, dtype=np.int32) + i for i in range(2))]
    assert greedy.take_best(logits, *host).tolist() == expected.tolist()


@pytest.mark.parametrize("blocks", [2, 5, 33, 70])
def test_greedy_kernel_of_blocks_at_once(blocks):
    logits = rng(blocks).integers(-3, 4, (3, 20000)).astype(np.float16)  # many equals
    tokens, counts = np.full(3, -1), [np.zeros(3, np.int32) for _ in range(2)]
    partial, taken = np.full((3, blocks), -1), np.zeros(3, np.int32)
    for turn in range(2):
        given = (logits, tokens, *counts, partial, taken.ctypes.data, blocks)
        grid, fields = greedy.arguments(*given)
        spec = decoder_kernels.greedy("float16")
        on_host.launch(spec, (grid, 1), seed=blocks + turn, at_once=3, **fields)
        assert np.array_equal(tokens, logits.argmax(axis=1)) and not taken.any()
        assert all((each == turn + 1).all() for each in counts)


@pytest.mark.parametrize(("sequences", "blocks"), [(1, 7), (1024, 7), (1025, 1), (2**21, 1)])
def test_sequences_have_several_blocks_if_they_are_few(sequences, blocks):
    """There are 2**18 counters for all launches: what took more would share those of others."""
    assert greedy.blocks_of(sequences, 50000) == blocks
    assert blocks == 1 or sequences <= Counters._TURNS // 256


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays equal to x (batch, heads, seq, dim) that lie differently in memory."""
    wide = np.repeat(x, 2, axis=-1)
    return {
        "as it is": x.copy(),
        "tokens first": np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3),
        "heads split": np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        "every other": wide[..., ::2],
        "part of a row": np.concatenate([x, x], axis=-1)[..., : x.shape[-1]],
        "one batch": np.broadcast_to(x[:1], x.shape),
    }


@pytest.mark.parametrize("layout", list(layouts(np.zeros((1, 1, 1, 1)))))
def test_launching_code_takes_every_layout(layout, launched):
    g = rng(5)
    x = layouts(random_array(g, (2, 3, 5, 24), "float16"))[layout].view(OnHost)
    weight = random_array(g, (24,), "float16")
    exact = reference.rms_norm(x, weight, eps=1e-5)
    low = reference.rms_norm(x, weight, eps=1e-5, precision="float16")
    how: dict[str, Any] = {"eps": 1e-5, "residual": None, "sum_out": None}
    assert_close(rms_norm._launch(x, weight, None, **how), exact, low)
    for out in layouts(poison(x.shape, np.float16))["as it is"], np.empty_like(x):
        assert rms_norm._launch(x, weight, out, **how) is out
        assert_close(out, exact, low)
    at = np.broadcast_to(np.arange(5), (2, 5))
    frequency = np.float32([1, 0.3, 0.1, 0.03])
    how = {"interleaved": False, "magnitude": 1.0}
    exact = reference.rotary(x, at, frequency)
    low = reference.rotary(x, at, frequency, precision="float16")
    got = rotary._launch(x, at.astype(np.int32), frequency, **how, out=None)
    assert_close(got, exact, low)
    assert_close(rotary._launch(x, at, frequency, **how, out=None), exact, low)
    cache = np.zeros((2, 3, 40, 24), np.float16)[:, :, :9]
    kv_cache._launch(x, cache, at)
    assert np.array_equal(cache[:, :, :5], x) and not cache[:, :, 5:].any()
    assert {*launched} == {"rms_norm_f16", "rotary_f16", "kv_cache_f16"}


BINARY = {
    "mul": (mul, reference.mul),
    "softcap": (softcap, reference.softcap),
    **{
        f"gated_{name}": (
            lambda x, y, name=name: gated(x, y, activation=name),
            lambda x, y, name=name, **low: reference.gated(x, y, activation=name, **low),
        )
        for name in ACTIVATIONS
    },
}


@pytest.mark.parametrize(
    ("op", "dtype", "where"),
    cases(
        [(op, dtype) for op in ["silu", "relu", *BINARY] for dtype in DTYPES],
        [("silu", "float16"), ("gated_gelu_tanh", "bfloat16"), ("softcap", "float16")],
    ),
)
@pytest.mark.parametrize(("shape", "axes"), [((5, 1001), 2), ((3, 5, 64), 1)])
def test_elementwise_kernels(shape, axes, op, dtype, where):
    g = rng(len(shape))
    x = random_array(g, shape, dtype, scale=4.0)
    y = None if op not in BINARY else random_array(g, shape[-axes:], dtype)
    if op == "softcap":
        y = (abs(y.astype(np.float32)) + 1).astype(x.dtype)
    if y is None:
        exact = reference.activated(x, activation=op)
        low = reference.activated(x, activation=op, precision=dtype)
    else:
        exact, low = BINARY[op][1](x, y), BINARY[op][1](x, y, precision=dtype)
    on, by = put(x, where), None if y is None else put(y, where)
    if where == "gpu":
        call = {"silu": silu, "relu": relu}.get(op)
        assert_close(call(on) if call else BINARY[op][0](on, by), exact, low)
        return
    out = on_host.fenced(poison(shape, x.dtype))
    period = 1 if by is None else by.size
    arrays = [a for a in (on, by, out) if a is not None]
    wide = all(a.ctypes.data % 16 == 0 for a in arrays) and (by is None or period % 8 == 0)
    on_host.launch(
        catalogue.elementwise(dtype, op), (-(-x.size // 2048), 1),
        x=on.ctypes.data, y=0 if by is None else by.ctypes.data, out=out.ctypes.data,
        count=x.size, period=period, wide=wide,
    )  # fmt: skip
    assert_close(out, exact, low)
