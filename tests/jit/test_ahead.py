"""Kernels compiled ahead by other processes are found where kernels are loaded from."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stof_cupy import env
from stof_cupy.errors import CompileError
from stof_cupy.jit import ahead, catalogue, launch, nvrtc
from stof_cupy.jit.ahead import compile_ahead, compiling
from stof_cupy.jit.spec import KernelSpec

SPECS = [
    catalogue.layer_norm("float16"),
    catalogue.elementwise("float16", "add"),
    catalogue.elementwise("bfloat16", "add"),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path))


def hits(specs: list[KernelSpec]) -> list[bool]:
    return [launch.store().find(spec, "80") is not None for spec in specs]


def test_what_is_missing_is_compiled_once(library: nvrtc.Library) -> None:
    assert hits(SPECS) == [False] * 3
    assert compile_ahead([*SPECS, *SPECS], "80", jobs=2) == 3
    assert hits(SPECS) == [True] * 3
    entry = launch.store().get(SPECS[0], "80")
    assert entry.hit and entry.cubin.registers > 0
    assert compile_ahead(SPECS, "80", jobs=2) == 0


def test_a_kernel_that_does_not_compile_leaves_the_others(library: nvrtc.Library) -> None:
    broken = replace(SPECS[0], name="broken", type="stof::NoSuchKernel")
    assert compile_ahead([broken, *SPECS], "80", jobs=1) == 0  # not worth a process
    assert compile_ahead([broken, *SPECS], "80", jobs=2) == 4
    assert hits([broken, *SPECS]) == [False, True, True, True]
    with pytest.raises(CompileError, match="broken"):
        launch.store().get(broken, "80")


@pytest.mark.parametrize("jobs", [1, 16])
def test_few_kernels_are_left_to_whoever_loads_them(library: nvrtc.Library, jobs: int) -> None:
    assert compile_ahead(SPECS[:2], "80", jobs=jobs) == 0
    assert hits(SPECS) == [False] * 3


@pytest.mark.parametrize("jobs", [1, 16])
def test_few_kernels_of_later_runs_are_compiled_now(library: nvrtc.Library, jobs: int) -> None:
    assert compile_ahead(SPECS[:1], "80", jobs=jobs, later=True) == 1
    assert hits(SPECS) == [True, False, False]
    assert compile_ahead(SPECS[:1], "80", jobs=jobs, later=True) == 0


@pytest.mark.parametrize("python", ["/bin/false", "/no/such/file"])
def test_processes_that_end_at_once_do_no_harm(
    library: nvrtc.Library, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead.sys, "executable", python)
    compile_ahead(SPECS, "80", jobs=2)
    assert hits(SPECS) == [False] * 3


def test_a_rehearsal_is_of_its_thread_and_launches_nothing() -> None:
    seen: list[bool] = []

    def other() -> None:
        seen.append(launch._rehearsed.get() is None)

    with launch.rehearsal() as wanted:
        for spec in (SPECS[0], SPECS[1], SPECS[0]):
            run = launch.kernel(spec, 7)  # a device that nobody has
            names = dict.fromkeys((name for name, _ in spec.params), 0)
            run((3,), run.pack(**names))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert list(wanted) == SPECS[:2] and seen == [True]
    assert launch._rehearsed.get() is None and not {spec.name for spec in SPECS} & {
        *launch.loaded()
    }


def test_what_is_compiled_meanwhile_is_there_at_the_end(library: nvrtc.Library) -> None:
    for fails in (False, True):
        broken = RuntimeError("of the caller")
        try:
            with compiling(SPECS, "80", jobs=3, later=True) as count:
                if fails:
                    raise broken
        except RuntimeError as error:
            assert fails and error is broken
        assert count == (0 if fails else 3) and hits(SPECS) == [True] * 3
