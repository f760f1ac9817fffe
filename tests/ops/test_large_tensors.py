"""T24: arrays of more than 2^31 elements, on every kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.jit.attention_kernels import FEW_ROWS, SHAPES
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS
from stof_cupy.ops import reference
from stof_cupy.ops.attention_fields import Args
from stof_cupy.testing import assert_close, random_array, rng
from tests.ops import forced
from tests.ops.forced import Block, Hopper, Row

pytestmark = pytest.mark.gpu

HOPPER = {64: SM90_CONFIGS[0], 128: next(c for c in SM90_CONFIGS if c.dim_qk == 128)}
HALF = forced.KINDS["bias16"]
WAYS: dict[str, Callable[[int], Any]] = {
    "chosen": lambda dim: None,
    "block": lambda dim: Block("float16", dim, SHAPES[dim][0]),
    "few rows": lambda dim: Block("float16", dim, FEW_ROWS[dim]),
    "row": lambda dim: Row("float16", dim, 1, "tiles"),
    "hopper": lambda dim: Hopper("float16", HOPPER[dim]),
}
"""Kernels by a head dim that they take; None is what attention chooses."""

BIASED = {
    "chosen": None,
    "block": Block("float16", 64, forced.roomy(64), HALF),
    "few rows": Block("float16", 64, FEW_ROWS[64], HALF),
    "row": Row("float16", 64, 1, "tiles", forced.STAGES["bias16"]),
}
"""Kernels of head dim 64 that add a float16 bias."""


@pytest.fixture
def memory() -> Iterator[Callable[[float], Any]]:
    """Give a function that skips where the card has not so many bytes, and else gives CuPy."""
    import cupy

    pool = cupy.get_default_memory_pool()

    def need(size: float) -> Any:
        pool.free_all_blocks()
        total = cupy.cuda.runtime.memGetInfo()[1]
        if total < size + 2**30:
            pytest.skip(f"{size / 2**30:.0f} GiB on a card of {total / 2**30:.0f} GiB")
        return cupy

    yield need
    pool.free_all_blocks()


def run(instance: Any, *arrays: Any, **how: Any) -> Any:
    """Run attention on one kernel, into NaN unless there is an `out`."""
    import cupy

    from stof_cupy.jit import device

    if isinstance(instance, Hopper) and device.facts().arch != "90a":
        pytest.skip("Hopper's kernel")

    def launch(args: Args, chosen: Any) -> Any:
        refusal = instance.refusal(args)
        assert not refusal, refusal
        return instance.launch(rng(0), args)[0]

    q, _, v = arrays
    if "out" not in how:
        how["out"] = cupy.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    with nullcontext() if instance is None else forced.forced(launch):
        return attention(*arrays, **how)


def check(got: Any, q: Any, k: Any, v: Any, dense: Any = None) -> None:
    """Compare some queries' results with the oracle, all given as NumPy arrays."""
    exact = reference.attention(q, k, v, dense)
    assert_close(got.get(), exact, reference.attention(q, k, v, dense, precision="float16"))


@pytest.mark.parametrize("way", WAYS)
def test_keys_stored_by_position(way: str, memory: Callable[[float], Any]) -> None:
    """K lies (keys, batch, head_dim): the last batch's last rows are past 2^31 elements."""
    cupy = memory(2.5 * 24_000 * 720 * 128 * 2)
    keys, batch, dim = 24_000, 720, 128
    stored = cupy.zeros((keys, batch, dim), np.float16)
    g = rng(6)
    last = random_array(g, (keys, dim), "float16")
    stored[:, -1] = cupy.asarray(last)
    q = random_array(g, (batch, 1, 8, dim), "float16")
    view = stored.transpose(1, 0, 2)[:, None]
    out = cupy.full(q.shape, np.nan, np.float16)
    assert view.strides[2] * (keys - 1) // 2 > 2**31
    run(WAYS[way](dim), cupy.asarray(q), view, view, out=out)
    assert not out[:-1].any()  # of values that are zero
    check(out[-1:], q[-1:], last[None, None], last[None, None])
    mask = masks.sliding_window(8, keys, window=3000, align="bottom-right")
    run(WAYS[way](dim), cupy.asarray(q), view, view, mask=mask, out=out)
    check(out[-1:], q[-1:], last[None, None], last[None, None], mask.toarray())


@pytest.mark.parametrize("way", WAYS)
def test_queries_and_output(way: str, memory: Callable[[float], Any]) -> None:
    """One head of 2^25 queries and more, and 2^31 elements in each of Q and the output."""
    queries, keys, dim = 2**25 + 100, 70, 64
    cupy = memory(2.2 * queries * dim * 2)
    q, out = (cupy.zeros((1, 1, queries, dim), np.float16) for _ in range(2))
    g = rng(7)
    some = random_array(g, (1, 1, 128, dim), "float16")
    q[:, :, -128:] = cupy.asarray(some)
    k, v = (random_array(g, (1, 1, keys, dim), "float16") for _ in range(2))
    out.fill(np.nan)
    run(WAYS[way](dim), q, cupy.asarray(k), cupy.asarray(v), out=out)
    check(out[:, :, -128:], some, k, v)
    check(out[:, :, :128], np.zeros_like(some), k, v)


@pytest.mark.parametrize("way", BIASED)
def test_a_bias(way: str, memory: Callable[[float], Any]) -> None:
    """A bias for each of 46,400 queries and keys: its last rows are past 2^31 elements."""
    tokens, dim = 46_400, 64
    cupy = memory(1.2 * tokens * tokens * 2)
    g = rng(8)
    q, k, v = (random_array(g, (1, 1, tokens, dim), "float16") for _ in range(3))
    bias = cupy.zeros((tokens, tokens), np.float16)
    last = random_array(g, (64, tokens), "float16")
    bias[-64:] = cupy.asarray(last)
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    out = run(BIASED[way], *on_gpu, bias=bias)
    rows = q[:, :, -64:]
    exact = reference.attention(rows, k, v, bias=last)
    low = reference.attention(rows, k, v, bias=last, precision="float16")
    assert_close(out[:, :, -64:].get(), exact, low)


@pytest.mark.parametrize("way", WAYS)
def test_a_mask(way: str, memory: Callable[[float], Any]) -> None:
    """A window over a million tokens: 2^39 elements of mask, in its tiles alone."""
    tokens, dim = 2**20 - 30, 64
    cupy = memory(6 * tokens * dim * 2)
    q, k, v = (cupy.random.default_rng(i).standard_normal((1, 1, tokens, dim), dtype=np.float32)
               .astype(np.float16) for i in range(3))  # fmt: skip
    mask = masks.sliding_window(tokens, window=100)
    out = run(WAYS[way](dim), q, k, v, mask=mask)
    for rows in (slice(0, 64), slice(tokens - 64, tokens), slice(tokens // 2, tokens // 2 + 64)):
        first = max(0, rows.start - 128)
        keys = slice(first, min(tokens, rows.stop + 128))
        check(
            out[:, :, rows],
            *(x[:, :, part].get() for x, part in ((q, rows), (k, keys), (v, keys))),
            mask[rows, keys].toarray(),
        )
