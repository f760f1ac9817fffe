"""What tests of several operators share."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.testing import poison
from tests.masks import on_host


class OnHost(np.ndarray):
    """A NumPy array that the launching code takes for one of CuPy."""

    device = SimpleNamespace(id=0)


@pytest.fixture(scope="module")
def hopper() -> Any:
    """Return CuPy, if its device is a Hopper."""
    cupy = pytest.importorskip("cupy")
    from stof_cupy.jit import device

    if device.facts().arch != "90a":
        pytest.skip(f"{device.facts().name} is no Hopper")
    return cupy


@pytest.fixture
def launched(monkeypatch) -> list[str]:
    """Let the operators' own launching code run its kernels compiled for the CPU."""
    names: list[str] = []

    class Kernel:
        def __init__(self, spec: Any, device: int) -> None:
            self.spec = spec

        def pack(self, **fields: Any) -> dict[str, Any]:
            return fields

        def __call__(self, grid: tuple[int, ...], fields: dict[str, Any]) -> None:
            names.append(self.spec.name)
            on_host.launch(self.spec, (*grid, 1), **fields)

    stub = SimpleNamespace(
        cuda=SimpleNamespace(Device=lambda _: nullcontext()),
        ndarray=(),  # nothing is an array of CuPy's, for those who ask
        empty=lambda shape, dtype: poison(tuple(shape), dtype).view(OnHost),
        ascontiguousarray=np.ascontiguousarray,
        clip=np.clip,
    )
    monkeypatch.setitem(sys.modules, "cupy", stub)
    monkeypatch.setattr("stof_cupy.jit.launch.kernel", Kernel)
    return names
