"""Scores near the ends of float32, and what weights that round to 0 must not hide: on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.jit.attention_kernels import Shape
from stof_cupy.ops.attention_args import Scores
from stof_cupy.ops.attention_fields import kind_of
from stof_cupy.ops.attention_rowwise import stages
from stof_cupy.testing import poison, rng
from tests.ops import hopper_case as hopper
from tests.ops import test_attention_kernels as blockwise
from tests.ops import test_attention_rowwise as rowwise

SCATTERED = blockwise.SCATTERED
MASKS = {"all": None, "scattered": SCATTERED, "few": SCATTERED & (rng(8).random((70, 200)) < 0.1)}
SHAPES = (blockwise.SMALL, blockwise.WIDE, blockwise.THREE_GROUPS)
HOPPERS = {"small": hopper.SMALL, "three": hopper.THREE, "in-sequence": hopper.IN_SEQUENCE}
SCALES = (0.01, 1.0, 300.0, -1.0)


def extremes(dtype: str = "float16", *, dim: int = 32, lowest: bool = False) -> tuple[Any, ...]:
    """Draw scores of one term each, which float32 holds exactly, of up to 4e9.

    Many keys share a row's highest score. `lowest`: all are negative.
    """
    g = rng(21)
    q, k = np.zeros((1, 2, 70, dim)), np.zeros((1, 1, 200, dim))
    q[..., 0] = g.uniform(20000, 60000, q.shape[:3]) * (-1 if lowest else g.choice([-1, 1], 70))
    k[..., 0] = g.choice([60000, 30000, 50000] if lowest else [60000, 30000, -60000], 200)
    arrays = q, k, g.normal(size=k.shape)
    if dtype == "float16":
        return tuple(x.astype(np.float16) for x in arrays)
    from ml_dtypes import bfloat16

    return tuple(x.astype(bfloat16) for x in arrays)


def steps(dtype: Any = np.float16) -> tuple[Any, ...]:
    """Draw scores that rise by float32's least steps, to where an origin plus 8 is rounded up."""
    q, k = np.zeros((1, 1, 70, 32)), np.zeros((1, 1, 200, 32))
    q[..., 0], q[..., 1], k[..., 0] = 1, 1, 60000
    k[..., 1] = np.arange(200) / 256
    return q.astype(dtype), k.astype(dtype), rng(22).uniform(1, 2, k.shape).astype(dtype)


def rising(late: int, low: float = -60000, high: float = 0) -> tuple[Any, ...]:
    """Draw scores that are far from 0, below it, for the first `late` keys only."""
    g = rng(23)
    q, k = np.zeros((1, 2, 70, 32)), np.zeros((1, 1, 200, 32))
    q[..., 0] = g.uniform(20000, 60000, q.shape[:3])
    k[..., 0] = np.where(np.arange(200) < late, low, high)
    return tuple(x.astype(np.float16) for x in (q, k, g.normal(size=k.shape)))


LATE = (0.001, 0.2, 1.0, 300.0)


@pytest.mark.parametrize("late", [64, 150, 192])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_a_row_whose_first_scores_alone_are_far(shape: Shape, late: int) -> None:
    """What they have weighed is infinite, or 0, and then nothing beside the others."""
    for scale in LATE:
        blockwise.check(rising(late), None, shape, scale=scale)
    blockwise.check(rising(late), SCATTERED, shape, scale=1.0)
    blockwise.check(rising(late, high=-30000), None, shape, scale=1.0)
    blockwise.check(rising(late, low=60000, high=-30000), None, shape, scale=-1.0)
    blockwise.check(rising(late), None, blockwise.SMALL, scale=1.0, cut=(2, 2, 1))


@pytest.mark.parametrize("name", HOPPERS)
def test_a_row_whose_first_scores_alone_are_far_on_hopper(name: str) -> None:
    for scale in LATE:
        case = hopper.Case(*rising(150), None, scale)
        hopper.compare(case, *hopper.run_on_cpu(HOPPERS[name], case))
        rowwise.check(*rising(150), None, scale=scale)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_block_wise(shape: Shape, mask: str) -> None:
    for scale in SCALES:
        blockwise.check(extremes(), MASKS[mask], shape, scale=scale)
    blockwise.check(extremes(lowest=True), MASKS[mask], shape, scale=1.0)


def test_block_wise_in_slices_and_carefully() -> None:
    blockwise.check(extremes(), SCATTERED, blockwise.SMALL, scale=1.0, cut=(2, 4, 1))
    q, k, v = extremes()
    mask = SCATTERED.copy()
    mask[:, 3] = False
    v[:, :, 3] = np.nan
    blockwise.check((q, k, v), mask, blockwise.SMALL, scale=1.0)
    blockwise.check((q, k, v), mask, blockwise.SMALL, scale=1.0, softcap=1e12)


def test_scores_that_rise_by_the_least_step() -> None:
    q, k, v = steps()
    for scale in (1700.0, 1900.0, 2100.0, 30000.0):
        for out in (_blockwise(q, k, v, scale), rowwise.run(q, k, v, scale=scale)[0]):
            assert ((out >= 1) & (out <= 2)).all()
        out, _ = hopper.run_on_cpu(hopper.SMALL, hopper.Case(q, k, v, scale=scale))
        assert ((out >= 1) & (out <= 2)).all()


def _blockwise(q: Any, k: Any, v: Any, scale: float) -> Any:
    from stof_cupy.ops.attention_args import validate
    from stof_cupy.ops.attention_cuda import launches
    from stof_cupy.ops.attention_fields import Args
    from tests.masks import on_host

    out = poison((*q.shape[:3], v.shape[3]), q.dtype)
    _, problem, _, scores = validate(q, k, v, None, Scores(scale=scale), None, out)
    config = blockwise.config_of(problem, scores, blockwise.SMALL, None)
    every, _used = launches(config, Args(problem, q, k, v, out, None, None, scores, None))
    for spec, blocks, fields in every:
        on_host.launch(spec, (blocks, 1), **fields)
    return out


@pytest.mark.parametrize("mask", MASKS)
def test_row_wise(mask: str) -> None:
    for scale in SCALES:
        rowwise.check(*extremes(), MASKS[mask], scale=scale)
    rowwise.check(*extremes(lowest=True), MASKS[mask], scale=1.0)


@pytest.mark.parametrize("name", HOPPERS)
def test_hopper(name: str) -> None:
    config = HOPPERS[name]
    for mask in (None, SCATTERED, MASKS["few"]):
        for scale, lowest in ((0.01, False), (1.0, False), (300.0, False), (1.0, True)):
            case = hopper.Case(*extremes(lowest=lowest), mask, scale)
            hopper.compare(case, *hopper.run_on_cpu(config, case))
    case = hopper.Case(*extremes(), SCATTERED, 1.0)
    hopper.compare(case, *hopper.run_on_cpu(config, case, 1, 2))


@pytest.mark.parametrize("name", HOPPERS)
@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_what_hopper_computes_again_beside_large_scores(name: str, scale: float) -> None:
    """Of many keys that share the highest score, a log-sum-exp does not tell how many they are."""
    q, k, v = extremes()
    mask = SCATTERED.copy()
    mask[:, 3] = mask[:40, 130] = False
    v[:, :, 3], v[:, :, 130, ::5] = np.inf, np.nan
    for sinks in (None, np.float32([1e5, -1e9])):
        terms = {} if sinks is None else {"sinks": sinks}
        case = hopper.Case(q, k, v, mask, scale, terms=terms)
        hopper.compare(case, *hopper.run_on_cpu(HOPPERS[name], case))
        hopper.compare(case, *hopper.run_on_cpu(HOPPERS[name], case, 1, 2))


def test_what_hopper_computes_again_of_long_products_is_a_mean_of_values() -> None:
    """Their terms are added up in another order than by wgmma."""
    g = rng(24)
    q, k = (g.uniform(-6e4, 6e4, (1, 1, n, 32)) for n in (70, 200))
    v = g.uniform(1, 2, k.shape)
    mask = SCATTERED.copy()
    mask[:, 3] = False
    v[:, :, 3] = np.nan
    arrays = (x.astype(np.float16) for x in (q, k, v))
    case = hopper.Case(*arrays, mask, 1.0)
    for cut in ((), (1, 2)):
        out, _ = hopper.run_on_cpu(hopper.SMALL, case, *cut)
        empty = ~mask.any(1)
        assert not out[:, :, empty].any()
        assert ((out[:, :, ~empty] >= 0.999) & (out[:, :, ~empty] <= 2.001)).all()


def test_lists_that_are_cut_off_give_nan_with_a_bias_on_hopper() -> None:
    q, k, v = blockwise.inputs(dims=(32, 32))
    bias = rng(25).normal(size=(70, 200)).astype(np.float16)
    case = hopper.Case(q, k, v, SCATTERED, terms={"bias": bias})
    config = hopper.SMALL.roomy(stages(kind_of(Scores(bias=bias))))
    hopper.compare(case, *hopper.run_on_cpu(config, case))
    out, lse = hopper.run_on_cpu(config, case, overflow=True)
    assert np.isnan(out).all() and np.isnan(lse).all()


# 3e38 * log2(e) is beyond float32, and so is -3.4e38 times that.
SINKS = (np.float32([3e38, -3.4e38]), np.float32([2.3e38, 2.4e38]), np.float32([3.4e38, 0]))


@pytest.mark.parametrize("sinks", SINKS, ids=str)
def test_sinks(sinks: Any) -> None:
    arrays = blockwise.inputs(dims=(32, 32))
    blockwise.check(arrays, SCATTERED, blockwise.SMALL, sinks=sinks)
    blockwise.check(arrays, SCATTERED, blockwise.SMALL, sinks=sinks, cut=(2, 4, 1))
    rowwise.check(*arrays, SCATTERED, sinks=sinks)
    case = hopper.Case(*arrays, SCATTERED, terms={"sinks": sinks})
    hopper.compare(case, *hopper.run_on_cpu(hopper.SMALL, case))
    hopper.compare(case, *hopper.run_on_cpu(hopper.SMALL, case, 1, 2))


def test_a_sink_that_is_nan_is_seen() -> None:
    arrays = blockwise.inputs(dims=(32, 32))
    out, lse = rowwise.run(*arrays, SCATTERED, sinks=np.float32([np.nan, 0]))
    assert np.isnan(out[:, 0]).all() and np.isnan(lse[:, 0]).all()
    assert np.isfinite(out[:, 1]).all() and np.isfinite(lse[:, 1]).all()


@pytest.mark.parametrize("lists", ["keys", "tiles"])
@pytest.mark.parametrize("pairs", [1, 2])
def test_a_kept_key_of_weight_zero_shows_its_nan(lists: str, pairs: int) -> None:
    q, k, v = blockwise.inputs(dims=(32, 32))
    bias = rng(9).normal(size=(70, 200)).astype(np.float32)
    bias[:, 90] = -1e4  # kept, with a weight of 0
    bias[:, 91] = -np.inf
    v[:, :, 90:92] = np.nan
    out, _ = rowwise.run(q, k, v, np.ones((70, 200), bool), bias=bias, lists=lists, pairs=pairs)
    assert np.isnan(out).all()
    rowwise.check(q, k, v, SCATTERED, bias=bias, lists=lists, pairs=pairs)
    bias[:, 90] = np.finfo(np.float32).min
    rowwise.check(q, k, v, SCATTERED, bias=bias, lists=lists, pairs=pairs)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_bias_that_is_nan_shows_in_its_row_unless_its_key_is_masked(dtype: Any) -> None:
    arrays = blockwise.inputs(dims=(32, 32))
    bias = np.zeros((70, 200), dtype)
    bias[5, 7] = bias[69, 199] = bias[3, 4] = np.nan
    mask = SCATTERED.copy()
    mask[5, 7] = mask[69, 199] = True
    mask[3, 4] = False
    rowwise.check(*arrays, mask, bias=bias)
    rowwise.check(*arrays, bias=bias)
    config = hopper.SMALL.roomy(stages(kind_of(Scores(bias=bias))))
    for each in (None, mask):
        blockwise.check(arrays, each, blockwise.SMALL, bias=bias)
        case = hopper.Case(*arrays, each, terms={"bias": bias})
        out, lse = hopper.run_on_cpu(config, case)
        hopper.compare(case, out, lse)
        assert np.isnan(out[:, :, [5, 69]]).all() and np.isnan(lse[:, :, [5, 69]]).all()
        assert np.isnan(out[:, :, 3]).all() == (each is None)
