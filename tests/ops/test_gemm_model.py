"""The chooser of GEMM kernels: what is legal, and how the model ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.gemm_ahead import GEMM_SM90_AHEAD
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, Sm90Gemm
from stof_cupy.ops import gemm_model, gemm_sm80, gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout, Plan

H100 = DeviceFacts(
    *("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20),
    *(1980000, 80 << 30, 2048, 2619000, 5120),
)
A100 = DeviceFacts(
    *("NVIDIA A100-SXM4-80GB", "80", (8, 0), 108, 166912, 167936, 40 << 20),
    *(1410000, 80 << 30, 2048, 1593000, 5120),
)
GELU = EpilogueKind(bias=True, activation="gelu_tanh")
GATED = EpilogueKind(activation="silu", gated=True)
HERE = Layout()


def chosen(m: int, n: int, k: int, kind: EpilogueKind = PLAIN) -> Plan:
    choice = gemm_model.choose(Problem("bfloat16", m, n, k, kind), HERE, H100)
    assert isinstance(choice, Plan)
    return choice


def test_every_configuration_is_one() -> None:
    assert [config.fault() for config in GEMM_SM90_CONFIGS] == [None] * len(GEMM_SM90_CONFIGS)
    assert len({config.name for config in GEMM_SM90_CONFIGS}) == len(GEMM_SM90_CONFIGS)
    assert all(config.fault(kind) is None for _, config, kind in GEMM_SM90_AHEAD)


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        ({"n": 72}, PLAIN, "n:"),
        ({"n": 48}, PLAIN, "n:"),
        ({"n": 96}, GATED, "n:"),
        ({"n": 96}, EpilogueKind(rotary="neighbours"), "n:"),
        ({"n": 96}, EpilogueKind(statistics=True), "n:"),
        ({"n": 96}, EpilogueKind(heads=True), "n:"),
        ({"n": 96, "across": 2}, PLAIN, "n:"),
        ({"n": 96, "joined": 2}, PLAIN, "n:"),
        ({"n": 96, "transposed_b": True}, PLAIN, "n:"),
        ({"n": 144, "cluster": 2}, PLAIN, "cluster"),
        ({"n": 192}, GATED, "n:"),
        ({"m": 192}, PLAIN, "m:"),
        ({"m": 256, "n": 256}, PLAIN, "registers"),
        ({"stages": 5}, PLAIN, "stages"),
        ({"joined": 4, "stages": 2}, PLAIN, "stages"),  # no room for what is joined
        ({"joined": 8}, PLAIN, "joined"),  # of the rows of so many columns, which are spilled
        ({"n": 192, "joined": 4}, PLAIN, "joined"),
        ({"n": 64, "joined": 4}, EpilogueKind(statistics=True), "joined"),
        ({"cluster": 3}, PLAIN, "cluster"),
        ({"transposed_b": True}, GATED, "gated"),
        ({"swapped": True, "m": 256}, PLAIN, "m:"),
    ],
)
def test_what_is_no_configuration(change: dict[str, int], kind: EpilogueKind, named: str) -> None:
    wrong = replace(Sm90Gemm(128, 256), **change).fault(kind)
    assert wrong is not None and named in wrong


@pytest.mark.parametrize(
    ("problem", "found", "named"),
    [
        (Problem("float16", 0, 8, 8), HERE, "no empty axis"),
        (Problem("float16", 8, 8, 8), None, "multiple of 16 bytes"),
        (Problem("float16", 8, 8, 8, GATED), Layout(transposed_b=True), "gated"),
    ],
)
def test_what_the_kernel_does_not_take(problem: Problem, found: Layout | None, named: str) -> None:
    wrong = gemm_sm90.fault(Plan(Sm90Gemm(128, 128)), problem, found)
    assert wrong is not None and named in wrong
    choice = gemm_model.choose(problem, found, H100)
    assert isinstance(choice, gemm_sm80.Config)


def test_older_gpus_have_the_other_kernel() -> None:
    for size in ((8192, 8192, 8192), (1, 64, 64)):
        choice = gemm_model.choose(Problem("float16", *size), HERE, A100)
        assert isinstance(choice, gemm_sm80.Config)


def test_large_tiles_for_large_problems_and_small_ones_for_small() -> None:
    big = chosen(4096, 4096, 4096).config
    assert (big.m, big.n, big.pingpong) == (128, 256, False)
    assert chosen(32768, 3072, 768, GELU).config.pingpong  # hides the epilogue
    assert chosen(256, 1024, 1024).config.m * chosen(256, 1024, 1024).config.n < 128 * 192


def test_tiles_whose_width_fills_the_sms() -> None:
    assert chosen(4096, 576, 1536).config == Sm90Gemm(128, 144)
    assert chosen(4096, 1728, 576, GELU).config == Sm90Gemm(128, 144, pingpong=True)
    assert chosen(512, 3168, 1024, GELU).config == Sm90Gemm(128, 96)  # 4 x 33: a tile an SM


def test_few_rows_swap_the_operands_and_cut_k() -> None:
    for m in (1, 8, 16, 64):
        plan = chosen(m, 2048, 8192)
        assert plan.config.swapped and plan.splits > 1
        assert plan.config.n >= min(m, 32)


def test_what_is_cut_is_all_of_it() -> None:
    for k in (40, 64, 100, 1000, 8192):
        problem = Problem("float16", 16, 64, k)
        for splits in range(1, -(-k // 64) + 1):
            plan = Plan(Sm90Gemm(128, 64, split=True), splits)
            steps, pieces = plan.split_steps(problem), plan.pieces(problem)
            assert (pieces - 1) * steps < -(-k // 64) <= pieces * steps


def test_clusters_that_do_not_fit_are_no_candidates() -> None:
    """On a small share of a GPU, whose driver says 0 for them."""
    share = replace(H100, sm_count=16, clusters=(16, 8, 5, 4, 0, 0, 0, 0))
    kind = EpilogueKind(bias=True, residual=True)
    for n, k in ((768, 3072), (1024, 768)):
        problem = Problem("float16", 128, n, k, kind)
        plans = [e.choice for e in gemm_model.explain(problem, Layout(), share)]
        sizes = {plan.config.ctas for plan in plans if isinstance(plan, Plan)}
        assert sizes >= {1, 2, 4} and max(sizes) == 4
        norms = [plan.config.ctas for plan in gemm_model.norm_candidates(problem, Layout(), share)]
        assert norms and max(norms) <= 4 < -(-n // 128)
