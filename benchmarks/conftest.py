"""What every results file says about the machine it was made on."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from stof_cupy.jit import device


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Add card, driver and versions to the results file; commit and date are there already."""
    names = ("stof-cupy", "numpy", "scipy", "cupy-cuda12x", "cupy-cuda13x", "torch", "transformers")
    machine_info["packages"] = {name: version for name in names if (version := _version(name))}
    if device.is_available():
        import cupy

        facts = device.facts()
        machine_info["gpu"] = {
            "name": facts.name,
            "arch": facts.arch,
            "multiprocessors": facts.sm_count,
            "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
            "runtime_cuda": cupy.cuda.runtime.runtimeGetVersion(),
        }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
