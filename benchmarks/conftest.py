"""What every results file says about the machine and the code it was made on."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from typing import Any

import pytest

from stof_cupy.jit import device


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--commit``, for a tree that travelled to a GPU machine without its history."""
    parser.addoption("--commit", help="the commit that is measured, where git cannot tell")


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
