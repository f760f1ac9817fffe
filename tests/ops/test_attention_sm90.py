"""The Hopper attention's code on the CPU against the oracle."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.jit.attention_sm90 import Sm90Config
from stof_cupy.ops.attention_sm90 import Config
from stof_cupy.testing import assert_close, poison, random_array, rng, strided
from tests.ops import forced, fuzz_case, fuzz_check, on_hopper
from tests.ops.hopper_case import (
    HALF_SLAB,
    HALVES,
    IN_SEQUENCE,
    ODD,
    PACKED,
    SMALL,
    TERMS,
    THREE,
    THREE_HALVES,
    WIDE,
    Case,
    compare,
    run_on_cpu,
    with_terms,
)
from tests.ops.on_hopper import attend


@pytest.mark.parametrize(
    "config",
    [
        *(SMALL, ODD, HALF_SLAB, THREE, IN_SEQUENCE, WIDE, replace(WIDE, queries=2)),
        *(HALVES, THREE_HALVES, Sm90Config(128, 128, n=128, warpgroups=2, halves=True)),
    ],
    ids=lambda c: c.name,
)
@pytest.mark.parametrize("seed", range(8))
def test_the_code_computes_attention(config: Sm90Config, seed: int) -> None:
    case = Case.draw(seed, config, "bfloat16", (1, 15, 64, 100, 128, 200))
    how = {"ctas": 1 + seed % 4, "section": seed % 4, "long_slots": seed % 5}
    compare(case, *run_on_cpu(config, case, **how, seed=seed))


@pytest.mark.parametrize("seed", range(8))
def test_the_code_with_packed_keys(seed: int) -> None:
    case = Case.draw(seed, PACKED, "bfloat16", (1, 15, 64, 100, 200, 300))
    case.kv_lengths = None
    if seed % 3 == 0:  # whole columns: packed tiles without a bitmap, and values that do not count
        keep = np.repeat(rng(seed).random(-(-case.k.shape[2] // 8)) < 0.5, 8)[: case.k.shape[2]]
        case.mask = masks.BsrMask(keep | np.zeros((case.q.shape[2], 1), bool))
        case.v[:, :, ~keep] = np.nan
    compare(case, *run_on_cpu(PACKED, case, ctas=1 + seed % 4, seed=seed))


@pytest.mark.parametrize(
    "config", [SMALL, ODD, THREE, IN_SEQUENCE, WIDE, PACKED, HALVES], ids=lambda c: c.name
)
@pytest.mark.parametrize("step", [3.0, 60.0])
def test_scores_that_rise_from_tile_to_tile(config: Sm90Config, step: float) -> None:
    """By less than a float's range, and by more, so that they have to be computed again."""
    g = rng(11)
    shape = (1, 2, 200, config.dim_qk)
    q, k = (random_array(g, shape, "bfloat16") for _ in range(2))
    v = random_array(g, (*shape[:3], config.dim_v), "bfloat16")
    k *= (step * (1 + np.arange(200) // 40))[:, None].astype(k.dtype)
    for mask in (None, masks.causal(200), masks.BsrMask(g.random((200, 200)) < 0.3)):
        if mask is not None or not config.packed:
            case = Case(q, k, v, mask)
            compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", [SMALL, PACKED, HALVES], ids=lambda c: c.name)
def test_lists_of_more_tiles_than_come_with_a_row(config: Sm90Config) -> None:
    g = rng(5)
    keys = 64 * 70 - 11
    q, k, v = (random_array(g, (1, 1, s, 64), "bfloat16") for s in (60, keys, keys))
    whole = np.repeat(g.random(70) < 0.5, 64)[:keys]
    mixed = (g.random((60, keys)) < 0.1) & (np.arange(keys) < 3000 if config.n == 64 else True)
    mixed &= np.repeat(g.random(70) < 0.7, 64)[:keys]
    case = Case(q, k, v, masks.BsrMask(whole | mixed))
    compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", [HALVES, THREE_HALVES], ids=lambda c: c.name)
@pytest.mark.parametrize(
    "kind", ["band", "causal band", "blocks", "documents", "first keys", "built"]
)
def test_halves_of_tiles(config: Sm90Config, kind: str) -> None:
    """Of every kind, at a row's begin, middle and end."""
    g = rng(len(kind))
    seq = 700
    q, k, v = (random_array(g, (1, 2, seq, 64), "bfloat16") for _ in range(3))
    at = np.arange(seq)
    away = at - at[:, None]
    mask = {
        "band": abs(away) <= 190,
        "causal band": (away <= 0) & (away > -100),
        "blocks": np.kron(g.random((11, 11)) < 0.3, np.ones((64, 64), bool))[:seq, :seq],
        "documents": (away <= 0) & (at // 150 == at[:, None] // 150),
        "first keys": (at < 20) | (away == 0),
        "built": abs(away) <= 100,
    }[kind]
    case = Case(q, k, v, masks.BsrMask(mask))
    lists = case.mask.schedule((config.m, config.n), layout="accumulator")
    halves = lists.halves >> 24
    assert halves.any() and np.array_equal(lists.halves & 0xFFFFFF, lists.cols)
    if kind == "built":  # of these nothing is known
        lists.__dict__["halves"] = None
    for how in ({"ctas": 1}, {"ctas": 5, "long_slots": 2, "splits": 3, "seed": 1}):
        compare(case, *run_on_cpu(config, case, **how))


def test_the_code_in_float16() -> None:
    case = Case.draw(1, SMALL, "float16", (100, 200))
    compare(case, *run_on_cpu(SMALL, case))


@pytest.mark.parametrize("layout", ["rows", "slice", "transposed"])
def test_the_code_on_views(layout: str) -> None:
    g = rng(3)
    case = Case(*(random_array(g, (2, 2, 70, 40), "bfloat16") for _ in range(3)), masks.causal(70))
    exact, _, low = case.oracle()
    case.q, case.k, case.v = (strided(x)[layout] for x in (case.q, case.k, case.v))
    out = strided(poison((2, 2, 70, 40), case.q.dtype))[layout]
    attend(Config(SMALL), case.args(out))
    assert_close(out, exact, low)
    assert np.isnan(out.base.astype(np.float32)).sum() == out.base.size - out.size


@pytest.mark.parametrize("config", [SMALL, ODD, IN_SEQUENCE, HALVES], ids=lambda c: c.name)
def test_what_the_code_does_with_values_that_do_not_count(config: Sm90Config) -> None:
    """Rows that keep a key see its NaN, others do not, though a weight of 0 makes NaN of it too."""
    g = rng(4)
    q, k, v = (random_array(g, (1, 2, 120, 64), "bfloat16") for _ in range(3))
    mask = g.random((120, 120)) < 0.3
    mask[:, [3, 77]] = False
    mask[:70, 110] = False
    mask[20] = False
    k[:, :, 3] = np.nan
    v[:, :, 77] = np.inf
    v[:, 0, 110, ::3] = np.nan
    v[:, 1, 110, 1::3] = -np.inf
    case = Case(q, k, v, masks.BsrMask(mask))
    exact, _, _ = case.oracle()
    assert np.isnan(exact).any() and np.isfinite(exact[:, :, :70]).all()
    compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("keys", [64, 100, 150])
@pytest.mark.parametrize("mask", ["none", "causal", "random"])
def test_what_the_code_does_beyond_the_lengths(mask: str, keys: int) -> None:
    g = rng(keys)
    q, k, v = (random_array(g, (3, 1, 150, 32), "bfloat16") for _ in range(3))
    lengths = np.array([keys, keys - 13, keys - 37])
    for i, n in enumerate(lengths):
        k[i, :, n:], v[i, :, n:] = np.nan, np.inf
    chosen = {
        "none": None,
        "causal": masks.causal(150),
        "random": masks.BsrMask(g.random((150, 150)) < 0.3),
    }[mask]
    case = Case(q, k, v, chosen, None, lengths)
    for config in (SMALL, ODD, HALVES):
        compare(case, *run_on_cpu(config, case))


def test_packed_keys_that_do_not_count() -> None:
    g = rng(6)
    q, k, v = (random_array(g, (1, 1, 200, 64), "bfloat16") for _ in range(3))
    mask = g.random((200, 200)) < 0.03
    mask[:, 50] = False
    v[:, :, 50] = np.nan
    v[:, :, 51, 3] = np.inf
    case = Case(q, k, v, masks.BsrMask(mask))
    compare(case, *run_on_cpu(PACKED, case))


def test_what_the_code_does_with_lists_that_are_cut_off() -> None:
    case = Case.draw(0, SMALL, "bfloat16", (100,))
    case.mask = masks.causal(100)
    out, lse = run_on_cpu(SMALL, case, overflow=True)
    assert np.isnan(out.astype(np.float32)).all() and np.isnan(lse).all()


def test_runs_of_the_code_are_equal_whatever_the_order_of_its_threads() -> None:
    case = Case.draw(5, ODD, "bfloat16", (200,))
    first, _ = run_on_cpu(ODD, case)
    for seed in range(1, 4):
        again, _ = run_on_cpu(ODD, case, seed=seed, ctas=seed)
        assert np.array_equal(again.view("u2"), first.view("u2"))


def test_outputs_are_fenced_before_they_are_sent() -> None:
    """Without the fence the GPU would be right most of the time; the emulation is not."""
    case = Case.draw(1, SMALL, "bfloat16", (100,))
    run_on_cpu(SMALL, case)
    without = on_hopper._KERNEL.replace(
        '#include "{', '#define fence_async_proxy wgmma_fence\n#include "{'
    )
    compiled = on_hopper._compiled.__wrapped__
    with (
        mock.patch.object(on_hopper, "_KERNEL", without),
        mock.patch.object(on_hopper, "_compiled", compiled),
        pytest.raises(AssertionError, match="not fenced"),
    ):
        run_on_cpu(SMALL, case)


# ---------------------------------------------------------------- slices


@pytest.mark.parametrize("config", [SMALL, ODD, THREE, HALVES], ids=lambda c: c.name)
@pytest.mark.parametrize("seed", range(6))
def test_lists_in_slices(config: Sm90Config, seed: int) -> None:
    """Of all query tiles or some, more slices than tiles among them, lengths, and empty rows."""
    case = Case.draw(seed + 40, config, "bfloat16", (1, 64, 100, 200, 500))
    how = {"ctas": 1 + seed % 4, "long_slots": 1 + 7 * (seed % 2), "splits": 2 + 3 * (seed % 3)}
    case.terms = {"sinks": rng(seed).normal(size=case.q.shape[1]).astype(np.float32)}
    if seed % 2:
        case.terms["sinks"][:] = -np.inf
    compare(case, *run_on_cpu(config, case, **how, seed=seed))


def test_packed_keys_in_slices() -> None:
    case = Case.draw(3, PACKED, "bfloat16", (300,))
    case.mask, case.kv_lengths = masks.BsrMask(rng(3).random((300, 300)) < 0.1), None
    compare(case, *run_on_cpu(PACKED, case, 5, 3))


def test_values_that_do_not_count_in_slices() -> None:
    g = rng(12)
    q, k, v = (random_array(g, (1, 2, 120, 64), "bfloat16") for _ in range(3))
    mask = g.random((120, 300)) < 0.3
    k, v = (random_array(g, (1, 2, 300, 64), "bfloat16") for _ in range(2))
    mask[:, [3, 77]] = False
    mask[:70, 110] = False
    v[:, :, 77], v[:, 0, 110, ::3] = np.inf, np.nan
    case = Case(q, k, v, masks.BsrMask(mask))
    exact, _, _ = case.oracle()
    assert np.isnan(exact).any() and np.isfinite(exact[:, :, :70]).all()
    compare(case, *run_on_cpu(SMALL, case, 2, 3))
    out, lse = run_on_cpu(SMALL, case, 2, 3, overflow=True)
    assert np.isnan(out.astype(np.float32)).all() and np.isnan(lse).all()


# ---------------------------------------------------------------- what makes scores


@pytest.mark.parametrize(
    ("config", "name"),
    [
        *((SMALL, name) for name in TERMS),
        *((PACKED, "distances"), (PACKED, "bias"), (PACKED, "odd bias"), (THREE, "alibi")),
        (THREE, "rows of bias"),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_the_code_with_modified_scores(config: Sm90Config, name: str) -> None:
    for seed in range(2):
        case, shape = with_terms(config, name, seed + 20)
        if config.packed:
            case.kv_lengths = None
            size = case.q.shape[2], case.k.shape[2]
            case.mask = masks.BsrMask(rng(seed).random(size) < 0.2)
        compare(case, *run_on_cpu(shape, case, seed % 3, 1 + seed % 2, seed=seed))


def test_values_under_a_bias_that_masks() -> None:
    g = rng(13)
    q, k, v = (random_array(g, (1, 2, 100, 64), "bfloat16") for _ in range(3))
    bias = np.zeros((1, 2, 1, 100), np.float16)
    bias[..., 60:70] = -np.inf
    bias[:, 1, :, 5] = -65504
    v[:, :, 60:70], v[:, 1, 5] = np.nan, np.inf
    case = Case(q, k, v, terms={"bias": bias})
    shape = SMALL.roomy(("Additive<stof::f16>",))
    for splits in (1, 2):
        compare(case, *run_on_cpu(shape, case, 2, splits))


@pytest.mark.parametrize("seed", range(4))
def test_the_code_on_fuzzed_cases(seed: int) -> None:
    found = [each for each in forced.instances(200) if isinstance(each, forced.Hopper)]
    small = [each for each in found if each.name.endswith("d64_64x64_s2q2b3")]
    case = fuzz_case.draw(seed, small, heavy=0, largest=2e4)
    for outcome in fuzz_check.run_case(case, fuzz_check.Kernels(on_host=True)):
        assert outcome.verdict in ("ok", "refused"), outcome
