"""What every results file says about the machine and the code, and how long a run may take."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import time
from typing import Any

import pytest

from stof_cupy.jit import device

_START = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--commit``, for a tree that travelled without its history, and bounds of a run."""
    parser.addoption("--commit", help="the commit that is measured, where git cannot tell")
    parser.addoption("--heavy", action="store_true", help="what takes minutes, too")
    parser.addoption("--budget", type=float, help="seconds after which benchmarks are skipped")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is heavy, unless asked for."""
    if not config.getoption("--heavy"):
        heavy = [item for item in items if getattr(item, "originalname", "").endswith("_heavy")]
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in heavy]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin after the budget is spent."""
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - _START > budget:
        pytest.skip("--budget is spent")


def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, Any]) -> None:
    """Let ``--commit`` stand in for git."""
    if commit := config.getoption("--commit"):
        commit_info.clear()
        commit_info |= {"id": commit, "dirty": False}


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Add card, driver and versions; leave out what only lengthens the file."""
    machine_info["cpu"] = {"brand": machine_info.get("cpu", {}).get("brand_raw", "unknown")}
    names = ("stof-cupy", "numpy", "scipy", "cupy-cuda12x", "cupy-cuda13x", "torch", "transformers")
    machine_info["packages"] = {name: version for name in names if (version := _version(name))}
    if device.is_available():
        import cupy

        facts = device.facts()
        machine_info["gpu"] = {
            "name": facts.name,
            "arch": facts.arch,
            "multiprocessors": facts.sm_count,
            "driver": _driver(),
            "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
            "runtime_cuda": cupy.cuda.runtime.runtimeGetVersion(),
        }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str:
    if not shutil.which("nvidia-smi"):
        return "unknown"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    run = subprocess.run(query, capture_output=True, text=True, check=False)
    return run.stdout.split("\n")[0].strip() or "unknown"
