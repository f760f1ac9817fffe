"""What the driver is asked about clusters, without one."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stof_cupy.jit.clusters import MOST, active_clusters
from stof_cupy.jit.dependent import LaunchConfig

SMEM = 232448
AT_ONCE = {2: 66, 3: 40, 4: 31, 5: 24, 6: 19, 7: 17, 8: 14}


class RefusedError(RuntimeError):
    pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A driver that knows `AT_ONCE`, and CuPy's way of loading a module."""
    fake = SimpleNamespace(loaded=[], asked=[], status=0)

    class Module:
        def load(self, code: bytes) -> None:
            fake.loaded.append(code)

        def get_function(self, name: str) -> SimpleNamespace:
            assert f".entry {name}()".encode() in fake.loaded[-1]
            return SimpleNamespace(ptr=7)

    def set_attribute(function: Any, attribute: int, value: Any) -> int:
        assert (function.value, attribute, value.value) == (7, 8, SMEM)
        return 0

    def ask(found: Any, function: Any, config: Any) -> int:
        launch = ctypes.cast(config, ctypes.POINTER(LaunchConfig)).contents
        assert launch.count == 1 and launch.attributes[0].id == 4
        size = launch.attributes[0].value[0]
        assert [*launch.attributes[0].value[:3]] == [size, 1, 1]
        assert launch.grid[0] % size == 0 and launch.shared_mem == SMEM
        fake.asked.append(size)
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = AT_ONCE[size]
        return int(fake.status)

    library = SimpleNamespace(cuFuncSetAttribute=set_attribute, cuOccupancyMaxActiveClusters=ask)
    modules = {name: ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.function")}
    modules["cupy.cuda.function"].Module = Module  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    fake.library, fake.Module = library, Module
    return fake


def test_every_size_is_asked_for(driver: SimpleNamespace) -> None:
    assert active_clusters(132, SMEM) == (132, *AT_ONCE.values())
    assert driver.asked == [*range(2, MOST + 1)]


def test_a_size_that_does_not_fit(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AT_ONCE, 8, 0)
    assert active_clusters(132, SMEM) == (132, *AT_ONCE.values())


def test_a_driver_that_does_not_say(
    driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.status = 1
    assert active_clusters(132, SMEM) == ()
    del driver.library.cuOccupancyMaxActiveClusters
    assert active_clusters(132, SMEM) == ()

    def refuse(self: Any, code: bytes) -> None:
        raise RefusedError("CUDA_ERROR_NO_BINARY_FOR_GPU")

    monkeypatch.setattr(driver.Module, "load", refuse)
    assert active_clusters(132, SMEM) == ()
