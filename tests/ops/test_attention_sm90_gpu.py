"""The Hopper attention on a GPU against the oracle."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.jit import launch
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS, Sm90Config
from stof_cupy.ops import _counters, attention_cuda
from stof_cupy.ops.attention_sm90 import Config, shapes
from stof_cupy.testing import poison, random_array, rng, strided
from tests.ops import gpus
from tests.ops.hopper_case import (
    BIG,
    DTYPES,
    HALF_SLAB,
    IN_SEQUENCE,
    ODD,
    PACKED,
    SMALL,
    TERMS,
    THREE,
    WIDE,
    Case,
    compare,
    with_terms,
)


def run_on_gpu(
    cupy: Any,
    shape: Sm90Config,
    case: Case,
    views: tuple[str, ...] = ("", "", ""),
    long_slots: int = 0,
    splits: int = 1,
) -> tuple[Any, Any]:
    out = poison((*case.q.shape[:3], case.v.shape[3]), case.q.dtype, cupy)
    args = case.args(out, cupy)
    arrays = (args.q, args.k, args.v)
    q, k, v = (strided(x)[name] if name else x for x, name in zip(arrays, views, strict=True))
    config = Config(shape, splits=splits)
    config = replace(config, long_slots=min(long_slots, config.slots(args.problem)))
    got, lse = attention_cuda.run(replace(args, q=q, k=k, v=v), True, candidate=config)
    assert got is out
    return out.get(), lse.get()


def configs(dtype: str) -> list[Any]:
    halves = [replace(config, halves=True) for config in SM90_CONFIGS]
    extra = (ODD, HALF_SLAB, WIDE, THREE, replace(BIG, bounded=True))  # packed: without lengths
    every = dict.fromkeys((*SM90_CONFIGS, *extra, *halves))
    return [
        pytest.param(config, dtype, id=f"{config.name}-{dtype}")
        for config in every
        if config.fault() is None
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("config, dtype", [*configs("bfloat16"), *configs("float16")])
def test_random_cases(hopper: Any, config: Sm90Config, dtype: str) -> None:
    sizes = (1, 15, 64, 65, 127, 130, 257, 321, 400)
    first = zlib.crc32(config.name.encode()) % 1000
    for seed in range(first, first + 10):
        case = Case.draw(seed, config, dtype, sizes)
        views = tuple(rng(seed + 10_000).choice(("", "rows", "slice", "transposed"), 3))
        compare(case, *run_on_gpu(hopper, config, case, views))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [8, 16, 40, 64, 72, 80, 96, 112, 128, 136, 160, 192, 200, 256])
def test_head_dims(hopper: Any, dim: int, dtype: str) -> None:
    g = rng(dim)
    inputs = [random_array(g, (2, 3, 300, dim), dtype) for _ in range(3)]
    for mask in (None, masks.sliding_window(300, window=20), masks.causal(300)):
        case = Case(*inputs, mask)
        for shape in shapes(gpus.case(300, dim=dim)):
            compare(case, *run_on_gpu(hopper, shape, case))


@pytest.mark.gpu
@pytest.mark.parametrize("config", SM90_CONFIGS, ids=lambda c: c.name)
def test_values_that_do_not_count(hopper: Any, config: Sm90Config) -> None:
    g = rng(7)
    dims = config.dim_qk, config.dim_qk, config.dim_v
    q, k, v = (random_array(g, (1, 2, 300, dim), "bfloat16") for dim in dims)
    mask = g.random((300, 300)) < 0.5
    mask[:, [3, 77]] = False
    mask[:100, 140] = False
    k[:, :, 3] = np.nan
    v[:, :, 77] = np.inf
    v[:, 0, 140, ::3] = np.nan
    v[:, 1, 140, 1::3] = -np.inf
    case = Case(q, k, v, masks.BsrMask(mask))
    compare(case, *run_on_gpu(hopper, config, case))
    lengths = np.array([200], np.int32)
    k[:, :, 200:], v[:, :, 200:] = np.nan, np.inf
    case = Case(q, k, v, None, None, lengths)
    v[:, :, [77, 140]] = 0
    k[:, :, 3] = 0
    compare(case, *run_on_gpu(hopper, config, case))


@pytest.mark.gpu
@pytest.mark.parametrize("config", SM90_CONFIGS, ids=lambda c: c.name)
def test_many_rows_for_each_cta(hopper: Any, config: Sm90Config) -> None:
    """Thousands of rows, some of them empty: buffers and phases go round many times."""
    g = rng(8)
    dense = np.abs(np.arange(1024)[:, None] - np.arange(1024)) <= 150
    dense[100:400] = False
    dense[900:, :] = True
    shapes = [(2, 48, 1024, config.dim_qk), (2, 6, 1024, config.dim_qk), (2, 6, 1024, config.dim_v)]
    q, k, v = (random_array(g, shape, "bfloat16") for shape in shapes)
    case = Case(q, k, v, masks.BsrMask(dense))
    out, lse = run_on_gpu(hopper, config, case)
    again, _ = run_on_gpu(hopper, config, case)
    np.testing.assert_array_equal(out.view("u2"), again.view("u2"))
    for b, h in ((0, 0), (0, 17), (1, 47)):
        some = slice(h // 8, h // 8 + 1)
        one = Case(q[b : b + 1, h : h + 1], k[b : b + 1, some], v[b : b + 1, some], case.mask)
        compare(one, out[b : b + 1, h : h + 1], lse[b : b + 1, h : h + 1])


@pytest.mark.gpu
@pytest.mark.parametrize("config", [PACKED, replace(BIG, packed=True)], ids=lambda c: c.name)
def test_packed_keys(hopper: Any, config: Sm90Config) -> None:
    for seed in range(16):
        case = Case.draw(seed, config, DTYPES[seed % 2], (1, 15, 64, 130, 321, 700))
        case.kv_lengths = None
        if case.mask is None:
            columns = rng(seed).random(case.k.shape[2]) < 0.1
            case.v[:, :, ~columns] = np.nan
            case.mask = masks.BsrMask(columns | np.zeros((case.q.shape[2], 1), bool))
        compare(case, *run_on_gpu(hopper, config, case))


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [20, 33, 63, 100])
def test_rows_that_end_within_16_bytes(hopper: Any, dim: int) -> None:
    """Queries and keys may, where strides are multiples of 16 bytes; values may not."""
    g = rng(dim)
    sizes = (2, 3, 100, dim), (2, 3, 100, dim), (2, 3, 100, 56)
    case = Case(*(random_array(g, size, "float16") for size in sizes))
    wide = [poison((2, 3, 100, 104), np.float16, hopper) for _ in range(4)]
    q, k, v, out = (x[..., :n] for x, n in zip(wide, (dim, dim, 56, 56), strict=True))
    for x, from_ in zip((q, k, v), (case.q, case.k, case.v), strict=True):
        x[...] = hopper.asarray(from_)
    args = replace(case.args(None, hopper), q=q, k=k, v=v, out=out)
    for shape in shapes(gpus.case(100, dim_qk=dim, dim_v=56)):
        out.fill(np.nan)
        _, lse = attention_cuda.run(args, True, candidate=Config(shape))
        compare(case, out.get(), lse.get())
        assert hopper.isnan(wide[3][..., 56:]).all()


@pytest.mark.gpu
def test_large_scores_stay_finite(hopper: Any) -> None:
    g = rng(2)
    q, k, v = (random_array(g, (1, 2, 100, 64), "float16", scale=60.0) for _ in range(3))
    case = Case(q, k, v, masks.causal(100), 1.0)
    compare(case, *run_on_gpu(hopper, SMALL, case))


@pytest.mark.gpu
def test_a_mask_built_on_the_gpu(hopper: Any) -> None:
    g = rng(9)
    q, k, v = (random_array(g, (1, 2, 500, 64), "bfloat16") for _ in range(3))
    pattern = masks.longformer(500, window=100, global_tokens=64)
    masks_of_both = (pattern.to("cuda"), pattern.tobsr())
    got = [
        attention_cuda.run(Case(q, k, v, mask).args(None, hopper), candidate=Config(shape))
        for shape in (SMALL, IN_SEQUENCE)
        for mask in masks_of_both
    ]
    assert hopper.array_equal(got[0], got[1]) and hopper.array_equal(got[2], got[3])


@pytest.mark.gpu
def test_captured_launches_run_again(hopper: Any) -> None:
    g = rng(10)
    q, k, v = (random_array(g, (2, 4, 500, 64), "bfloat16") for _ in range(3))
    for config in (Config(SMALL), Config(SMALL, 2, 3)):
        out = hopper.zeros_like(hopper.asarray(q))
        args = Case(q, k, v, masks.causal(500).tobsr()).args(out, hopper)
        want = attention_cuda.run(args, candidate=config).copy()
        stream = hopper.cuda.Stream(non_blocking=True)
        hopper.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            attention_cuda.run(args, candidate=config)
            graph = stream.end_capture()
            for _ in range(3):
                args.out.fill(0)
                graph.launch(stream)
                stream.synchronize()
                assert hopper.array_equal(args.out, want)


@pytest.mark.gpu
def test_the_first_call_may_be_captured(hopper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own: no kernel is loaded, and there are no counters."""
    q, k, v = (hopper.asarray(random_array(rng(n), (2, 4, 500, 64), "float16")) for n in range(3))
    want, out = attention(q, k, v, select="sm90"), hopper.empty_like(q)
    monkeypatch.setattr(launch, "_kernels", {})
    monkeypatch.setattr(_counters, "_made", {})
    stream = hopper.cuda.Stream(non_blocking=True)
    hopper.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        attention(q, k, v, select="sm90", out=out)
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(0)
            graph.launch(stream)
            stream.synchronize()
            assert hopper.array_equal(out, want)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [*SM90_CONFIGS, PACKED], ids=lambda c: c.name)
def test_slices(hopper: Any, config: Sm90Config) -> None:
    for seed in range(6):
        case = Case.draw(seed + 60, config, DTYPES[seed % 2], (1, 100, 300, 700))
        if config.packed:
            case.kv_lengths = None
            size = case.q.shape[2], case.k.shape[2]
            case.mask = masks.BsrMask(rng(seed).random(size) < 0.1)
        compare(case, *run_on_gpu(hopper, config, case, ("", "", ""), 1 + seed, 2 + 3 * seed))


@pytest.mark.gpu
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("config", SM90_CONFIGS, ids=lambda c: c.name)
def test_modified_scores(hopper: Any, config: Sm90Config, name: str) -> None:
    for seed in range(3):
        case, shape = with_terms(config, name, seed + 80, DTYPES[seed % 2])
        if shape.fault() is None:  # wide heads leave no registers for some
            views = ("", "", "")
            compare(case, *run_on_gpu(hopper, shape, case, views, seed, 1 + seed))


@pytest.mark.gpu
def test_a_call_that_asks_for_it(hopper: Any) -> None:
    g = rng(14)
    q, k, v = (hopper.asarray(random_array(g, (1, 4, 300, 64), "float16")) for _ in range(3))
    mask = masks.sliding_window(300, window=50)
    got = attention(q, k, v, mask, select="sm90")
    hopper.testing.assert_allclose(got, attention(q, k, v, mask), atol=4e-3)
    with pytest.raises(UnsupportedError, match="negative"):
        attention(q, k, v, mask, select="sm90", scale=-1.0)


@pytest.mark.gpu
def test_a_call_that_asks_for_it_without_queries_or_keys(hopper: Any) -> None:
    q, none = (hopper.ones((1, 4, seq, 64), np.float16) for seq in (300, 0))
    out, lse = attention(q, none, none, select="sm90", return_lse=True)
    assert not out.any() and hopper.isneginf(lse).all()
    assert attention(none, q, q, select="sm90").shape == none.shape
