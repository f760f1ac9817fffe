"""The choice among ways to compute a product: what was measured, and where that is kept."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import UnsupportedError
from stof_cupy.jit import launch
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops import gemm_choice, gemm_model, gemm_timing, gemm_vendor, gemm_ways
from stof_cupy.ops.gemm_args import Problem, validate
from stof_cupy.ops.gemm_sm90 import Layout
from stof_cupy.ops.gemm_vendor import Vendor
from tests.ops.test_gemm_model import A100, H100

PROBLEM = Problem("bfloat16", 512, 768, 768, EpilogueKind(bias=True))
HERE = Layout()
CACHED = (gemm_choice.choices, gemm_choice.norm, gemm_choice._stored)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernels = launch.store()  # which are no times: none is to be compiled anew
    monkeypatch.setattr(launch, "store", lambda: kernels)
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    for each in (*CACHED, gemm_model.choose, gemm_model.choose_norm):
        each.cache_clear()
    yield
    for each in (*CACHED, gemm_model.choose, gemm_model.choose_norm):
        each.cache_clear()


def names(problem: Problem = PROBLEM, facts: Any = H100) -> list[str]:
    return [gemm_choice.name_of(each) for each in gemm_choice.choices(problem, HERE, facts)]


def keep(times: dict[str, float], **how: bool) -> None:
    gemm_choice.keep(H100, gemm_choice.key_of(PROBLEM, HERE, **how), times)


def test_names_tell_ways_apart() -> None:
    for problem in (PROBLEM, Problem("float16", 16, 2048, 8192)):
        every = [gemm_choice.name_of(c) for c in gemm_model.candidates(problem, HERE, H100)]
        assert len(set(every)) == len(every) > 20
    every = [gemm_choice.name_of(c) for c in gemm_model.norm_candidates(PROBLEM, HERE, H100)]
    assert len(set(every)) == len(every) == 4


def test_keys_tell_products_apart() -> None:
    def key(*sizes: int, found: Layout | None = HERE, norm: bool = False, **kind: Any) -> str:
        problem = Problem("float16", *sizes, EpilogueKind(**kind))
        return gemm_choice.key_of(problem, found, norm=norm)

    keys = {
        key(8, 16, 64),
        key(16, 8, 64),
        key(8, 16, 64, bias=True),
        key(8, 16, 64, activation="silu", gated=True),
        key(8, 16, 64, activation="silu"),
        key(8, 16, 64, found=Layout(transposed_a=True)),
        key(8, 16, 64, found=Layout(transposed_b=True)),
        key(8, 16, 64, found=None),
        key(8, 16, 64, norm=True),
        gemm_choice.key_of(Problem("bfloat16", 8, 16, 64), HERE),
    }
    assert len(keys) == 10


def test_what_was_never_measured_is_the_models() -> None:
    (name,) = names()
    assert name == gemm_choice.name_of(gemm_model.choose(PROBLEM, HERE, H100))


def test_few_rows_are_among_the_ways() -> None:
    def best(m: int, facts: Any = H100, k: int = 2048) -> str:
        return names(Problem("bfloat16", m, 3072, k), facts)[0]

    assert best(1) == "streamed 8x24" and best(16) == "streamed 16x24"
    assert best(1, A100) == "few rows 1x2" and best(4, A100) == "few rows 4x1"
    assert best(16, A100) == "few rows 16x8" and best(5, A100) == "few rows 8x8"
    assert best(17, k=4096).startswith("sm90 128x32_c1_swapped_split")
    assert best(17) == "sm90 64x64_c1_pingpong"
    problem = Problem("bfloat16", 1, 3072, 2048)
    gemm_choice.keep(
        H100, gemm_choice.key_of(problem, HERE), {"few rows 1x2": 7.0, "sm80 64x64": 6.0}
    )
    assert names(problem) == ["sm80 64x64"]


def test_the_fastest_is_chosen_and_one_of_ours_comes_last() -> None:
    keep({"sm90 128x128_c1": 7.0, "cublaslt 1": 5.0, "cublaslt 0": 6.0, "sm80 128x128": 9.0})
    assert names() == ["cublaslt 1", "cublaslt 0", "sm90 128x128_c1"]
    keep({"sm90 128x128_c1": 4.0, "cublaslt 1": 5.0})
    assert names() == ["sm90 128x128_c1"]
    keep({"cublaslt 0": 5.0})
    assert names() == ["cublaslt 0", gemm_choice.name_of(gemm_model.choose(PROBLEM, HERE, H100))]
    # Of this product on this GPU alone.
    assert len(names(Problem("bfloat16", 513, 768, 768, EpilogueKind(bias=True)))) == 1
    assert names(facts=A100)[0].startswith("sm80")


def test_the_models_choice_is_taken_where_nothing_is_much_faster() -> None:
    guess = gemm_choice.name_of(gemm_model.choose(PROBLEM, HERE, H100))
    for other in ("sm90 256x128_c2", "cublaslt 0"):
        keep({other: 100.0, guess: 101.0, "sm80 64x64": 300.0})
        assert names() == [guess]
        keep({other: 100.0, guess: 102.0, "sm80 64x64": 300.0})
        assert names()[0] == other
    keep({"else": 1.0, "sm80 64x64": 99.5, guess: 100.0})  # beside what can be run
    assert names() == [guess]


def test_names_that_are_none_are_passed_over() -> None:
    keep({"sm90 1x1_c9": 1.0, "cublaslt x": 1.0, "else": 2.0, "sm80 64x64": 3.0})
    assert names() == ["sm80 64x64"]
    keep({f"cublaslt {gemm_vendor.RANKS}": 1.0, "cublaslt 9" + 5000 * "9": 1.0, "sm80 64x64": 3.0})
    assert names() == ["sm80 64x64"]
    keep({"sm80 128x128": float("nan"), "sm80 64x64": 3.0})
    assert names() == ["sm80 64x64"]
    path, version = gemm_choice.path_of(H100), gemm_choice._VERSION
    us = {gemm_choice.key_of(PROBLEM, HERE): {"sm80 64x64": 10**400}}
    texts = ("", "[]", "{}", json.dumps({"version": 0, "us": {}}), '{"version": 3, "us": 3}')
    for text in (*texts, "[" * 100_000, json.dumps({"version": version, "us": us})):
        path.write_text(text)
        for each in CACHED:
            each.cache_clear()
        assert names() == [gemm_choice.name_of(gemm_model.choose(PROBLEM, HERE, H100))]


def test_an_epilogue_that_cublaslt_has_not() -> None:
    silu = Problem("bfloat16", 512, 768, 768, EpilogueKind(activation="silu"))
    gemm_choice.keep(H100, gemm_choice.key_of(silu, HERE), {"cublaslt 0": 1.0, "sm80 64x64": 2.0})
    assert names(silu) == ["sm80 64x64"]


def test_rows_that_are_normalised_in_one_kernel_or_in_two() -> None:
    plan = next(gemm_model.norm_candidates(PROBLEM, HERE, H100))
    name = gemm_choice.name_of(plan)
    keep({gemm_choice.APART: 1.0, name: 2.0}, norm=True)
    assert gemm_choice.norm(PROBLEM, HERE, H100) == gemm_choice.APART
    keep({gemm_choice.APART: 3.0, name: 2.0}, norm=True)
    assert gemm_choice.norm(PROBLEM, HERE, H100) == plan
    keep({gemm_choice.APART: 3.0, gemm_choice.LATE: 1.0, name: 2.0}, norm=True)
    assert gemm_choice.norm(PROBLEM, HERE, H100) == gemm_choice.LATE
    assert gemm_choice.norm(PROBLEM, HERE, H100, late=False) == plan
    keep({"else": 1.0}, norm=True)
    expected = gemm_choice.guessed_norm(PROBLEM, HERE, H100)
    assert expected == (gemm_model.choose_norm(PROBLEM, HERE, H100) or gemm_choice.APART)
    added = replace(PROBLEM, m=1, epilogue=EpilogueKind(residual=True))
    assert gemm_choice.guessed_norm(added, HERE, H100) == gemm_choice.LATE
    assert gemm_choice.guessed_norm(added, HERE, H100, late=False) == gemm_choice.APART
    assert gemm_choice.norm(PROBLEM, HERE, H100) == expected


def test_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_vendor, "binding", lambda: None)
    ours = gemm_timing.to_time(PROBLEM, HERE, H100)
    assert ours[0] == gemm_model.choose(PROBLEM, HERE, H100)
    assert 1 < len(ours) <= gemm_timing.MOST and not any(isinstance(c, Vendor) for c in ours)
    monkeypatch.setattr(gemm_vendor, "binding", lambda: object())
    assert gemm_timing.to_time(PROBLEM, HERE, H100) == [*ours, Vendor(0), Vendor(1), Vendor(2)]
    gated = Problem("bfloat16", 512, 768, 768, EpilogueKind(activation="silu", gated=True))
    assert not any(isinstance(c, Vendor) for c in gemm_timing.to_time(gated, HERE, H100))


@pytest.mark.parametrize(
    "kind",
    [
        EpilogueKind(scale=True, bias=True, activation="silu", gated=True, residual=True),
        EpilogueKind(normed=True, bias=True, rotary=64, heads=True),
        EpilogueKind(normed=True, rotary="neighbours", statistics=True, residual=True),
        EpilogueKind(heads=True),
    ],
    ids=lambda kind: kind.name,
)
def test_what_is_timed_has_all_that_it_reads(
    kind: EpilogueKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = SimpleNamespace(standard_normal=lambda shape, dtype: np.zeros(shape, dtype))
    fake = SimpleNamespace(random=SimpleNamespace(default_rng=lambda seed: draw), ndarray=Problem)
    for name in ("ones", "zeros", "empty"):
        setattr(fake, name, getattr(np, name))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    problem = Problem("bfloat16", 10, 192, 64, kind)
    a, b, out = gemm_timing._arrays(problem, HERE)
    epilogue = gemm_timing._epilogue(problem)
    assert epilogue.kind == kind
    if kind.heads:
        a = a[None]
    assert validate(a, b.T, epilogue, out) == ("numpy", problem)


@pytest.mark.parametrize("measure", [gemm_timing.measure, gemm_timing.measure_norm])
def test_what_cannot_be_measured(measure: Callable[[Problem], Any]) -> None:
    """Of nothing there are no times, on any machine; of types that no kernel computes in none."""
    for size in ((0, 8, 64), (8, 0, 64), (8, 8, 0)):
        assert measure(Problem("float16", *size)) == {}
    with pytest.raises(UnsupportedError, match="dtype: got float32"):
        measure(Problem("float32", 8, 8, 64))


@pytest.mark.gpu
def test_measuring() -> None:
    from stof_cupy.jit import device

    pytest.importorskip("cupy")
    facts = device.facts()
    for problem in (PROBLEM, Problem("float16", 9, 512, 512)):
        times = gemm_timing.measure(problem)
        assert times and all(us > 0 for us in times.values())
        assert gemm_timing.measure(problem) == pytest.approx(dict(times), abs=1e-3)
        first = gemm_choice.name_of(gemm_choice.choices(problem, HERE, facts)[0])
        guess = gemm_choice.name_of(gemm_ways.ways(problem, HERE, facts)[0].choice)
        fastest = min(times, key=lambda name: times[name])
        near = times.get(guess, math.inf) <= gemm_choice._EQUAL * times[fastest]
        assert first == (guess if near else fastest)
    for kind in (
        EpilogueKind(normed=True, bias=True, activation="gelu_tanh"),
        EpilogueKind(rotary=64, heads=True),
        EpilogueKind(rotary="neighbours", statistics=True),
    ):
        assert gemm_timing.measure(Problem("bfloat16", 100, 192, 256, kind))
    kind = EpilogueKind(bias=True, residual=True)
    times = gemm_timing.measure_norm(replace(PROBLEM, epilogue=kind))
    assert {gemm_choice.APART, gemm_choice.LATE} <= set(times)


def test_times_that_cannot_be_written_last_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_choice, "_UNWRITTEN", {})
    folder = gemm_choice.path_of(H100).parent
    folder.write_text("a file where the folder should be")
    other = gemm_choice.name_of(gemm_ways.ways(PROBLEM, HERE, H100)[3].choice)
    with pytest.warns(UserWarning, match="cannot be written .*STOF_CACHE_DIR"):
        keep({other: 1.0})
    keep({other: 1.0}, norm=True)  # and says so once
    assert names() == [other]
    folder.unlink()
    keep({"another": 1.0}, norm=True)
    assert names() == [other], "what could not be written before is lost"
    assert not gemm_choice._UNWRITTEN
    assert len(json.loads(gemm_choice.path_of(H100).read_text())["us"]) == 2
