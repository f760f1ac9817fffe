"""The fuzz program: a few of its cases here, on NumPy and on a GPU, and that it finds faults."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

from tests.ops import forced, fuzz_attention, fuzz_case, fuzz_check
from tests.ops.workers import FatalError, Lost, results

INSTANCES = forced.instances(fuzz_attention.MOST_KERNELS)
SMALLEST = ("f16_d32_1x16s2q1b3", "f16_d32_p1_keylists")


def test_instances_are_few_enough_and_of_every_family() -> None:
    compiled = fuzz_attention.ready("90a")
    assert 150 < len(compiled) <= fuzz_attention.MOST_KERNELS
    assert {type(each) for each in INSTANCES} == {forced.Block, forced.Row, forced.Hopper}
    assert len({each.name for each in INSTANCES}) == len(INSTANCES)
    assert forced.instances(10**4) == INSTANCES, "some kinds come last"
    assert len(forced.kernels(forced.instances(40))) <= 40
    alone = fuzz_attention.Families(others=False)
    assert {type(each) for each in alone.instances()} == {forced.Hopper}
    assert set(fuzz_attention.ready("90a", alone)) < set(compiled)
    assert isinstance(fuzz_attention.drawn(3, "numpy", alone).instance, forced.Hopper)


@pytest.mark.parametrize("first", range(0, 45, 15))
def test_cases_of_numpy(first: int) -> None:
    """The arguments that a case is drawn with are right, and its instance takes nearly all."""
    outcomes = [
        outcome
        for seed in range(first, first + 15)
        for outcome in fuzz_check.run_case(
            fuzz_case.draw(seed, INSTANCES, heavy=0), fuzz_check.Kernels()
        )
    ]
    assert [one for one in outcomes if one.verdict in ("wrong", "error")] == []
    assert sum(one.verdict == "ok" for one in outcomes) >= 0.9 * len(outcomes)


@pytest.mark.parametrize("family", [forced.Block, forced.Row])
def test_cases_of_kernels_compiled_for_the_cpu(family: Any) -> None:
    instance = next(
        each for each in INSTANCES if isinstance(each, family) and each.name.endswith(SMALLEST)
    )
    for seed in range(4):
        case = fuzz_case.draw(seed, [instance], heavy=0, largest=2e4)
        for outcome in fuzz_check.run_case(case, fuzz_check.Kernels(on_host=True)):
            assert outcome.verdict == "ok", (seed, outcome)


def test_a_case_is_the_same_every_time() -> None:
    first, again = (fuzz_case.draw(7, INSTANCES) for _ in range(2))
    assert str(first) == str(again) and first.q.tobytes() == again.q.tobytes()


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (lambda out, lse: out.__setitem__((..., 0), out[..., 0] * 1.05 + 0.01), "max abs error"),
        (lambda out, lse: out.__setitem__((..., -1, -1), np.nan), "max abs error"),
        (lambda out, lse: lse.__iadd__(1e-3), "LSE"),
        (lambda out, lse: out.base.fill(0), "beside the output"),
    ],
)
def test_faults_are_found(fault: Any, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from stof_cupy.ops import cpu_attention

    right = cpu_attention.attention

    def wrong(*args: Any, **how: Any) -> Any:
        out, lse = right(*args, **how)
        fault(out, lse)
        return out, lse

    monkeypatch.setattr(cpu_attention, "attention", wrong)
    case = next(
        case
        for case in (fuzz_case.draw(seed, INSTANCES, heavy=0) for seed in range(100, 200))
        if not case.lens and case.q.size and case.dense is None
    )
    case.views["out"] = "rows"
    case.how.pop("kv_lengths", None)
    outcome = fuzz_check.run_case(case, fuzz_check.Kernels())[1]
    assert outcome.verdict == "wrong" and found in outcome.reason


def job(number: int) -> int:
    if number == 3:
        os._exit(7)
    if number == 5:
        time.sleep(60)
    if number == 6:
        raise FatalError(-6)
    return 2 * number


def test_jobs_that_crash_or_hang_cost_themselves_alone() -> None:
    got = dict(results(job, range(9), processes=2, each_s=5, total_s=60))
    assert sorted(got) == list(range(9))
    assert isinstance(got[3], Lost) and "died (7)" in got[3].why
    assert isinstance(got[5], Lost) and "not done" in got[5].why
    assert got[6] == -6
    assert [got[n] for n in (0, 1, 2, 4, 7, 8)] == [0, 2, 4, 8, 14, 16]
    assert list(results(job, [0], processes=1, each_s=5, total_s=-1)) == []


@pytest.mark.gpu
def test_cases_on_a_gpu() -> None:
    """150 of the program's cases, which takes thousands."""
    from stof_cupy.jit import device

    seeds = range(100_000, 100_150)
    specs = fuzz_attention.ready(device.facts().arch)
    processes = min(8, os.cpu_count() or 1)
    compiled = results(
        fuzz_attention.compile_one,
        [(spec, device.facts().arch) for spec in specs],
        processes=processes,
        each_s=120,
        total_s=300,
    )
    assert [why for _, why in compiled if why] == []
    options = fuzz_attention.parser().parse_args(["--processes", str(processes)])
    records = fuzz_attention.run_all(list(seeds), options)
    assert fuzz_attention.failures(records) == []
    assert len(records) == len(seeds)
