from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import ModuleType, SimpleNamespace

import pytest

from stof_cupy.errors import DeviceError, MissingDependencyError, UnsupportedError
from stof_cupy.jit import device, nvrtc
from stof_cupy.jit.device import DeviceFacts, arch_of, facts, is_available

NVRTC_12_4 = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90)
NVRTC_12_9 = (*NVRTC_12_4, 100, 101, 103, 120, 121)
NVRTC_13_5 = (75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)


@pytest.mark.parametrize(
    "gpu, cc, supported, arch",
    [
        ("A100", (8, 0), NVRTC_12_4, "80"),
        ("RTX 3090", (8, 6), NVRTC_13_5, "86"),
        ("RTX 4090", (8, 9), NVRTC_13_5, "89"),
        ("L4", (8, 9), NVRTC_12_4, "89"),
        ("H100", (9, 0), NVRTC_12_4, "90a"),
        ("H200", (9, 0), NVRTC_13_5, "90a"),
        ("B200", (10, 0), NVRTC_12_9, "100"),
        ("B300", (10, 3), NVRTC_13_5, "103"),
        ("RTX 5090", (12, 0), NVRTC_13_5, "120"),
        ("GB10", (12, 1), NVRTC_13_5, "121"),
        ("8.8, unknown to 12.9", (8, 8), NVRTC_12_9, "87"),
        ("a later Hopper", (9, 1), NVRTC_13_5, "90"),
        ("a later Blackwell", (12, 9), NVRTC_13_5, "121"),
    ],
)
def test_arch_of(gpu: str, cc: tuple[int, int], supported: tuple[int, ...], arch: str) -> None:
    assert arch_of(cc, supported) == arch
    assert arch_of(cc, reversed(supported)) == arch


@pytest.mark.parametrize("cc", [(7, 5), (7, 0), (6, 1)])
def test_before_ampere_is_refused(cc: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedError, match=rf"capability {cc[0]}\.{cc[1]}, expected 8\.0"):
        arch_of(cc, NVRTC_12_4)


@pytest.mark.parametrize("cc, supported", [((10, 0), NVRTC_12_4), ((14, 0), NVRTC_13_5)])
def test_major_that_nvrtc_does_not_know(cc: tuple[int, int], supported: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match=r"80, 86.*install a newer NVRTC"):
        arch_of(cc, supported)


class CUDARuntimeError(RuntimeError):
    pass


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """As much of CuPy as facts() uses, with one A100 as device 0."""

    def properties(device_id: int) -> dict[str, object]:
        if device_id != 0:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        return {"name": b"NVIDIA A100", "major": 8, "minor": 0, "totalGlobalMem": 80 << 30}

    attributes = {
        "MultiProcessorCount": 108,
        "MaxSharedMemoryPerBlockOptin": 166912,
        "MaxSharedMemoryPerMultiprocessor": 167936,
        "L2CacheSize": 40 << 20,
        "ClockRate": 1410000,
        "MaxThreadsPerMultiProcessor": 2048,
        "MemoryClockRate": 1593000,
        "GlobalMemoryBusWidth": 5120,
    }
    cupy, cuda, runtime = (ModuleType(n) for n in ("cupy", "cupy.cuda", "cupy.cuda.runtime"))
    cupy.cuda, cuda.runtime = cuda, runtime
    cuda.is_available = lambda: True
    cuda.Device = lambda device_id: SimpleNamespace(attributes=attributes)
    runtime.CUDARuntimeError = CUDARuntimeError
    runtime.getDevice = lambda: 0
    runtime.getDeviceProperties = properties
    runtime.driverGetVersion = lambda: 13000
    for module in (cupy, cuda, runtime):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(nvrtc, "load", lambda: SimpleNamespace(archs=NVRTC_13_5))
    device._facts.cache_clear()
    yield cupy
    device._facts.cache_clear()


A100 = DeviceFacts(
    *("NVIDIA A100", "80", (8, 0), 108, 166912, 167936, 40 << 20, 1410000, 80 << 30),
    *(2048, 1593000, 5120, 13000),
)


def test_facts_are_asked_once(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    known = facts()
    assert known == A100
    assert facts(0) is facts() is known
    monkeypatch.setitem(sys.modules, "cupy.cuda.runtime", None)  # not even CuPy is asked for
    assert facts(0) is known


def test_no_such_device(fake_cupy: ModuleType) -> None:
    with pytest.raises(DeviceError, match=r"device: got 3, expected a CUDA device; .*ordinal"):
        facts(3)


def test_no_driver(fake_cupy: ModuleType) -> None:
    def refuse() -> int:
        raise CUDARuntimeError("cudaErrorInsufficientDriver")

    fake_cupy.cuda.runtime.getDevice = refuse
    for ask in (facts, device.current):
        with pytest.raises(DeviceError, match=r"none.*InsufficientDriver"):
            ask()


def test_no_cupy(fake_cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_available()
    for name in ("cupy", "cupy.cuda", "cupy.cuda.runtime"):
        monkeypatch.setitem(sys.modules, name, None)
    for ask in (facts, device.current):
        with pytest.raises(MissingDependencyError, match="cuda13"):
            ask()
    assert not is_available()


def test_is_available_never_raises(fake_cupy: ModuleType) -> None:
    def broken() -> bool:
        raise OSError("libcuda.so.1: file too short")

    fake_cupy.cuda.is_available = broken
    assert not is_available()


def test_clusters_that_run_at_once() -> None:
    hopper = replace(A100, sm_count=132, clusters=(132, 66, 40, 31))
    assert [hopper.at_once(ctas) for ctas in (1, 2, 3, 4, 5, 200)] == [132, 66, 40, 31, 26, 1]
    assert [A100.at_once(ctas) for ctas in (1, 4)] == [108, 27]


def test_facts_go_through_json() -> None:
    hopper = replace(A100, clusters=(132, 66))
    again = DeviceFacts.from_json(json.loads(json.dumps(asdict(hopper))))
    assert again == hopper and hash(again) == hash(hopper)
    older = asdict(A100)
    del older["clusters"]
    assert DeviceFacts.from_json(older) == A100


@pytest.mark.gpu
def test_facts_of_this_gpu() -> None:
    here = facts()
    assert is_available() and facts(0) is facts(0)
    assert here.arch.rstrip("a") == "{}{}".format(*here.compute_capability)
    assert here.sm_count > 0 and here.l2_bytes > 0 and here.clock_khz > 0
    assert 48 << 10 < here.smem_per_block_optin <= here.smem_per_sm < here.memory_bytes
    if here.compute_capability >= (9, 0):
        assert len(here.clusters) == 8 and here.clusters[0] == here.sm_count
        assert all(0 < n * size <= here.sm_count for size, n in enumerate(here.clusters, 1))
        assert sorted(here.clusters, reverse=True) == [*here.clusters]
