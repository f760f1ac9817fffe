"""Hopper's attention with a bias by distance: tiles of one bias, near ones, and keys from anywhere.

On the CPU the kernel's own code runs (tests/ops/on_hopper.py), on a GPU what `attention` launches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stof_cupy import RelativeBias, attention, masks
from stof_cupy.errors import MissingDependencyError
from stof_cupy.jit import nvrtc
from stof_cupy.jit.attention_sm90 import Sm90Config, attention_sm90
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.ops import reference
from stof_cupy.testing import assert_close, random_array, rng
from tests.masks.on_host import fenced
from tests.ops.hopper_case import BIG, PACKED, SMALL, Case, compare, run_on_cpu

RELATIVE, ENDS = ("Relative",), "bottom-right"
HERE = [SMALL.roomy(RELATIVE), BIG.roomy(RELATIVE), replace(PACKED, scores=RELATIVE)]
LONGEST = Sm90Config(64, 64, n=256, warpgroups=2, scores=RELATIVE)


def biased(g: np.random.Generator, heads: int, far: int, *, both: bool, size: float = 3) -> Any:
    table = g.normal(scale=size, size=(16, heads)).astype(np.float32)
    return {"bias": RelativeBias(table, bidirectional=both, max_distance=far)}


def drawn(seed: int, queries: int, keys: int, dim: int = 64) -> Case:
    g = rng(seed)
    q, k, v = (random_array(g, (1, 2, n, dim), "bfloat16") for n in (queries, keys, keys))
    how = biased(g, 2, int(g.choice([9, 40, 128])), both=seed % 2 == 0)
    return Case(q, k, v, terms=how, scale=1.0)


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
@pytest.mark.parametrize("kind", ["whole", "causal", "band", "columns", "scattered"])
def test_near_and_far_tiles(config: Any, kind: str) -> None:
    """With more queries than keys too: some of them stand before the first key."""
    for seed, (queries, keys) in enumerate([(300, 300), (130, 460), (333, 150)]):
        case, g = drawn(seed + 10, queries, keys), rng(seed)
        away = np.arange(keys) - np.arange(keys - queries, keys)[:, None]
        kept = {
            "causal": away <= 0,
            "band": abs(away) <= 70,
            "columns": (np.arange(keys) // 8 % 5 == seed) & (away < 1000),
            "scattered": g.random(away.shape) < 0.1,
        }.get(kind)
        if kept is None and config.packed:
            kept = away < 1000  # it has lists
        case.mask = None if kept is None else masks.BsrMask(kept)
        compare(case, *run_on_cpu(config, case, ctas=1 + seed, seed=seed))


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
@pytest.mark.parametrize("far", [3, 18, 130, 5000])
@pytest.mark.parametrize("both", [True, False])
def test_every_distance_has_its_bias(config: Any, far: int, both: bool) -> None:
    """Up to where the last bucket begins: at `far`, if each distance before has one of its own."""
    g, buckets = rng(far), (far - 1) * 2 if far < 200 else 32
    for queries, keys in ((320, 320), (128, 464), (336, 144)):  # distances of tiles: 2 mod 16
        case = drawn(far, queries, keys)
        table = g.normal(scale=3, size=(buckets * (2 if both else 1), 2)).astype(np.float32)
        bias = RelativeBias(table, bidirectional=both, max_distance=far)
        if far < 200:
            ends = bias.by_distance()[0]
            assert ends[0] != ends[1] and (ends[-1] != ends[-2] or not both)
        case.terms, case.mask = {"bias": bias}, masks.BsrMask(np.ones((queries, keys), bool))
        compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", [*HERE, LONGEST], ids=lambda c: c.name)
@pytest.mark.parametrize("far", [2, 18, 114, 242, 5000])
@pytest.mark.parametrize("before", [True, False])
def test_nothing_beside_the_table_is_read(
    config: Any, far: int, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 256 keys from 256 on, query 0 is up to 511 away where query 15 is 241 from the first."""
    plain = RelativeBias.for_kernels

    def for_kernels(self: RelativeBias, reach: int) -> tuple[int, Any]:
        alike, values = plain(self, reach)
        return alike, fenced(np.ascontiguousarray(values, np.float32), before=before)

    monkeypatch.setattr(RelativeBias, "for_kernels", for_kernels)
    for queries, keys in ((512, 512), (1, 300), (300, 1), (20, 9)):
        case, g = drawn(far, queries, keys), rng(far)
        case.q, case.k, case.v = (x[:, :1] for x in (case.q, case.k, case.v))  # one row of columns
        table = g.normal(size=(4, 1)).astype(np.float32)
        case.terms = {"bias": RelativeBias(table, bidirectional=True, max_distance=far)}
        for mask in (np.ones((queries, keys), bool), g.random((queries, keys)) < 0.02):
            case.mask = masks.BsrMask(mask)
            compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
def test_queries_and_keys_that_stand_elsewhere(config: Any) -> None:
    case, g = drawn(12, 150, 260), rng(7)
    rows, cols = g.integers(0, 400, 150), np.sort(g.integers(0, 400, 260))
    bias: RelativeBias = case.terms["bias"]
    far = bias.max_distance
    away = np.clip(cols - rows[:, None], -far, far)
    case.terms, case.mask = {"bias": bias.by_distance()[:, away + far]}, masks.BsrMask(away < 30)
    exact, _, low = case.oracle()
    case.terms = {"bias": bias, "positions": (rows.astype(np.int32), cols.astype(np.int32))}
    assert_close(run_on_cpu(config, case)[0], exact, low)


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
@pytest.mark.parametrize("step", [3.0, 60.0, 1e8])
@pytest.mark.parametrize("far", [0.0, -300.0, 300.0])
def test_scores_that_rise_where_nobody_looks(config: Any, step: float, far: float) -> None:
    """In tiles of one bias: by less than a float's range, by more, and where floats are coarse."""
    case = drawn(4, 200, 400)
    case.terms["bias"].table[[7, 15]] += np.float32(far)
    rise = np.where(np.arange(400) < 128, 1, step * (1 + np.arange(400) // 64))
    case.k *= rise[:, None].astype(case.k.dtype)
    for mask in (
        masks.causal(200, 400, align=ENDS),
        masks.BsrMask(rng(1).random((200, 400)) < 0.3),
    ):
        case.mask = mask
        compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
@pytest.mark.parametrize("size", [-30.0, 1e4, 3e7])
def test_far_biases_of_any_size(config: Any, size: float) -> None:
    """What is beside them does not count in float32 either: scores are far apart, or the same."""
    case = drawn(6, 100, 300)
    case.q[:] = 0
    table = rng(2).normal(size=(16, 2)).astype(np.float32)
    table[[7, 15]] += np.float32(size)
    case.terms = {"bias": RelativeBias(table, bidirectional=True, max_distance=40)}
    case.mask = masks.BsrMask(np.ones((100, 300), bool))
    compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
def test_far_biases_beyond_the_range_reach_no_row_that_masks_them(config: Any) -> None:
    """In base 2 they are infinite: what is masked must not be -inf plus that."""
    case = drawn(8, 128, 300)
    table = rng(3).normal(size=(16, 2)).astype(np.float32)
    table[[7, 15]] = 3e38
    case.terms = {"bias": RelativeBias(table, bidirectional=True, max_distance=9)}
    kept = np.zeros((128, 300), bool)
    kept[np.arange(128), np.arange(172, 300)] = True
    see = np.arange(128) % 16 == 3
    case.mask = masks.BsrMask(kept | see[:, None])
    out, lse = run_on_cpu(config, case)
    exact, exact_lse, low = case.oracle()
    assert_close(out[:, :, ~see], exact[:, :, ~see], low[:, :, ~see])
    np.testing.assert_allclose(lse[:, :, ~see], exact_lse[:, :, ~see], rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("config", HERE, ids=lambda c: c.name)
def test_a_negative_scale_lengths_and_slices(config: Any) -> None:
    case = drawn(8, 150, 700)
    case.scale, case.mask = -0.3, masks.sliding_window(150, 700, window=500, align=ENDS)
    compare(case, *run_on_cpu(config, case, 2, 3))
    if not config.packed:
        case.scale, case.kv_lengths = 0.2, np.int32([333])
        compare(case, *run_on_cpu(config, case, 2, 3))


def test_packed_keys_of_the_longest_have_registers() -> None:
    """They take the way of any keys."""
    try:
        library = nvrtc.load()
    except MissingDependencyError:
        pytest.skip("no NVRTC")
    if library.version < (13, 5):
        pytest.skip("which spills elsewhere, too")
    wide = Sm90Config(256, 64, n=64, warpgroups=2, queries=1, packed=True, scores=RELATIVE)
    compile_cubin(attention_sm90("bfloat16", wide), "90a", library)


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("kind", ["whole", "causal", "window", "longformer", "scattered"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_hopper(hopper: Any, dim: int, kind: str, dtype: str) -> None:
    for seed, (queries, keys) in enumerate([(700, 700), (300, 1111), (513, 200)]):
        g = rng(100 + seed + dim)
        q, k, v = (random_array(g, (2, 3, n, dim), dtype) for n in (queries, keys, keys))
        away = np.arange(keys) - np.arange(keys - queries, keys)[:, None]
        mask = {
            "causal": away <= 0,
            "window": abs(away) <= 150,
            "longformer": (abs(away) <= 20) | (np.arange(keys) % 200 < 3),
            "scattered": g.random((queries, keys)) < 0.02,
        }.get(kind)
        far, both = int(g.choice([9, 128, 5000])), seed % 2 == 0
        scale = float(g.choice([0.3, dim**-0.5, -0.1]))
        how = {**biased(g, 3, far, both=both), "scale": scale}
        exact = reference.attention(q, k, v, mask, **how)
        low = reference.attention(q, k, v, mask, **how, precision=dtype)
        table = hopper.asarray(how["bias"].table)
        how["bias"] = RelativeBias(table, bidirectional=both, max_distance=far)
        placed = [hopper.asarray(x) for x in (q, k, v)]
        for select in ("model", "sm90", "sm80"):
            out = attention(*placed, mask, **how, select=select)
            assert_close(hopper.asnumpy(out), exact, low)
