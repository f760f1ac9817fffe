from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy import env
from stof_cupy.jit import dependent, device, launch
from stof_cupy.jit.dependent import DependentLaunch
from stof_cupy.jit.source import WAIT, cuda_root
from stof_cupy.jit.spec import KernelSpec

HANDLE, STREAM = 0x7F0012345678, 0x7F0087654321


class Driver:
    """cuLaunchKernelEx, which remembers what it is given as the driver reads it."""

    def __init__(self) -> None:
        self.status = 0
        self.words: list[tuple[int, ...]] = []
        self.params = b""

    def __call__(self, config: Any, function: Any, params: Any, extra: None) -> int:
        read = ctypes.string_at(ctypes.addressof(config._obj), 56)
        words = np.frombuffer(read, np.uint32)
        stream, attributes = np.frombuffer(read, np.uint64)[4:6]
        attribute = np.frombuffer(ctypes.string_at(int(attributes), 72), np.uint32)
        self.words = [tuple(words[:7]), (int(stream), int(words[12])), tuple(attribute[:3])]
        self.params = ctypes.string_at(params[0], 32)
        assert function.value == HANDLE and extra is None
        return self.status


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(dependent, "_launcher", lambda: fake)
    cuda = ModuleType("cupy.cuda")
    cuda.driver = SimpleNamespace(check_status=refuse)  # type: ignore[attr-defined]
    cuda.get_current_stream = lambda: SimpleNamespace(ptr=STREAM)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return fake


def refuse(status: int) -> None:
    raise RuntimeError(f"status {status}")


def test_kernels_wait_as_the_stub_does() -> None:
    """Kernels that wait for themselves, by cuda/ptx/grid.cuh, and all others, by their stub."""
    header = (cuda_root() / "ptx" / "grid.cuh").read_text()
    assert WAIT.strip().replace("    asm", "  asm") in header


def params_of(spec: KernelSpec) -> np.void:
    packed: np.void = np.array([(1 << 47, 3, -5, 0.5, 7)], spec.params_dtype())[0]
    return packed


@pytest.mark.parametrize("grid, full", [((5,), (5, 1, 1)), ((5, 6, 7), (5, 6, 7))])
def test_what_the_driver_gets(
    spec: KernelSpec, driver: Driver, grid: tuple[int, ...], full: tuple[int, ...]
) -> None:
    params = params_of(spec)
    DependentLaunch(SimpleNamespace(ptr=HANDLE))(grid, (128, 1, 1), (params,), shared_mem=1024)
    assert driver.words == [(*full, 128, 1, 1, 1024), (STREAM, 1), (6, 0, 1)]
    assert driver.params == params.tobytes()


def test_what_the_driver_refuses(spec: KernelSpec, driver: Driver) -> None:
    driver.status = 700
    run = DependentLaunch(SimpleNamespace(ptr=HANDLE))
    with pytest.raises(RuntimeError, match="status 700"):
        run((1,), (128, 1, 1), (params_of(spec),), shared_mem=0)


@pytest.mark.parametrize(
    "arch, overlap, expected",
    [
        *(("80", "1", False), ("89", "1", False)),
        *(("90a", "1", True), ("120", "", True), ("90a", "0", False)),
    ],
)
def test_where_launches_overlap(
    spec: KernelSpec,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    arch: str,
    overlap: str,
    expected: bool,
) -> None:
    facts = SimpleNamespace(arch=arch, smem_per_block_optin=166912)
    monkeypatch.setattr(device, "facts", lambda _: facts)
    entry = SimpleNamespace(path="kernel.cubin")
    monkeypatch.setattr(launch, "_store", lambda _: SimpleNamespace(get=lambda *_: entry))
    monkeypatch.setenv(env.OVERLAP.name, overlap)
    function = SimpleNamespace(ptr=HANDLE)
    cupy = sys.modules["cupy"]
    found = SimpleNamespace(kernel=function)
    module = SimpleNamespace(get_function=lambda _: found)
    monkeypatch.setattr(cupy, "RawModule", lambda path: module, raising=False)
    cupy.cuda.Device = lambda _: nullcontext()
    made = launch._load(spec, 0)
    assert isinstance(made._function, DependentLaunch) == expected
