"""Hopper's attention with ALiBi: tiles on one side of a warp's queries, and those on both.

On the CPU the kernel's own code runs (tests/ops/on_hopper.py), on a GPU what `attention` launches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.ops import reference
from stof_cupy.testing import assert_close, random_array, rng
from tests.ops.hopper_case import BIG, PACKED, SMALL, Case, compare, run_on_cpu

ALIBI, ENDS = ("Alibi",), "bottom-right"
HERE = [SMALL.roomy(ALIBI), BIG.roomy(ALIBI), replace(PACKED, scores=ALIBI)]


def drawn(seed: int, queries: int, keys: int, slopes: Any = None) -> Case:
    g = rng(seed)
    q, k, v = (random_array(g, (1, 2, n, 64), "bfloat16") for n in (queries, keys, keys))
    slopes = np.exp2(-g.uniform(1, 8, 2)).astype(np.float32) if slopes is None else slopes
    return Case(q, k, v, terms={"alibi": slopes}, scale=0.5)


def kept(kind: str, queries: int, keys: int, seed: int) -> Any:
    away = np.arange(keys) - np.arange(keys - queries, keys)[:, None]
    return {
        "causal": away <= 0,
        "after": away > 0,
        "band": abs(away) <= 70,
        "columns": (np.arange(keys) // 8 % 5 == seed) & (away < 1000),
        "scattered": rng(seed).random(away.shape) < 0.1,
    }.get(kind)


KINDS = ["whole", "causal", "after", "band", "columns", "scattered"]


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_on_one_side_and_on_both(config: Any, kind: str) -> None:
    for seed, (queries, keys) in enumerate([(300, 300), (130, 460), (333, 150)]):
        case, mask = drawn(seed + 10, queries, keys), kept(kind, queries, keys, seed)
        if mask is None and config.packed:
            mask = np.ones((queries, keys), bool)  # it has lists
        case.mask = None if mask is None else masks.BsrMask(mask)
        compare(case, *run_on_cpu(config, case, ctas=1 + seed, seed=seed))


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
@pytest.mark.parametrize("slope", [0.0, -0.3, 1e3, 3e6])
def test_slopes_of_any_size(config: Any, slope: float) -> None:
    """Zero, negative ones, for which far keys count most, and those that leave one key."""
    case = drawn(6, 130, 300, np.float32([slope, slope / 2]))
    case.scale, case.mask = -0.3, masks.sliding_window(130, 300, window=120, align=ENDS)
    compare(case, *run_on_cpu(config, case, 2, 2))


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
def test_scores_that_rise_from_tile_to_tile(config: Any) -> None:
    case = drawn(4, 200, 400)
    case.k *= (30 * (1 + np.arange(400) // 64))[:, None].astype(case.k.dtype)
    case.mask = masks.causal(200, 400, align=ENDS)
    compare(case, *run_on_cpu(config, case))


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_hopper(hopper: Any, dim: int, kind: str, dtype: str) -> None:
    for seed, (queries, keys) in enumerate([(700, 700), (300, 1111), (513, 200)]):
        g = rng(100 + seed + dim)
        q, k, v = (random_array(g, (2, 3, n, dim), dtype) for n in (queries, keys, keys))
        mask = kept(kind, queries, keys, seed)
        slopes = np.exp2(-g.uniform(1, 8, 3)).astype(np.float32)
        how = {"scale": float(g.choice([0.3, dim**-0.5, -0.1]))}
        exact = reference.attention(q, k, v, mask, **how, alibi=slopes)
        low = reference.attention(q, k, v, mask, **how, alibi=slopes, precision=dtype)
        placed = [hopper.asarray(x) for x in (q, k, v)]
        for select in ("model", "sm90", "sm80"):
            made = {**how, "alibi": hopper.asarray(slopes), "select": select}
            assert_close(hopper.asnumpy(attention(*placed, mask, **made)), exact, low)
