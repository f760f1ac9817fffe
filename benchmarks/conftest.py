"""What every results file says about the machine and the code, and how long a run may take."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import appending
import pytest

from stof_cupy.jit import device

# Doctest would import what benchmarks share, and some of that imports what is not installed.
collect_ignore_glob = ["[!b]*.py"]

_START = time.monotonic()
_SKIPPED = pytest.StashKey[list[dict[str, Any]]]()
_SECONDS = pytest.StashKey[dict[str, float]]()
_BEGUN = pytest.StashKey[tuple[Any, ...]]()
_SPENT = "--budget is spent"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--commit``, for a tree that travelled without its history, and bounds of a run."""
    parser.addoption("--commit", help="the commit that is measured, where git cannot tell")
    parser.addoption("--heavy", action="store_true", help="what takes minutes, too")
    parser.addoption("--budget", type=float, help="seconds after which no cell is begun")
    parser.addoption("--results", type=Path, help="file that is added to; see appending.py")
    parser.addoption("--ways", help="e.g. ours,Flex: whose calls are timed, of those with a way")
    parser.addoption("--again", action="store_true", help="what --results has already, too")


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what a run notes beside times."""
    config.stash[_SKIPPED], config.stash[_SECONDS] = [], {}
    if config.getoption("--results") and not config.getoption("benchmark_json", None):
        raise pytest.UsageError("--results needs --benchmark-json=FILE, where this run alone goes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is heavy or whose way is not asked for, and what ``--results`` has whole."""
    found = list(items)
    if not config.getoption("--heavy"):
        found = [i for i in found if not getattr(i, "originalname", "").endswith("_heavy")]
    if config.getoption("--ways"):
        wanted = {"", "ours", *config.getoption("--ways").split(",")}
        found = [item for item in found if appending.way_of(item) in wanted]
    path = config.getoption("--results")
    if path is not None and not config.getoption("--again"):
        there = appending.known(appending.read(path))
        groups = appending.cells(found).values()
        whole = {i for group in groups if all(i.nodeid in there for i in group) for i in group}
        found = [item for item in found if item not in whole]
    kept = set(found)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = found


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip cells that would begin after the budget is spent; one that is begun is ended."""
    budget, cell = item.config.getoption("--budget"), appending.cell_of(item)
    spent = budget is not None and time.monotonic() - _START > budget
    if spent and item.config.stash.get(_BEGUN, None) != cell:
        pytest.skip(_SPENT)
    item.config.stash[_BEGUN] = cell


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Note how long a benchmark took with all that is around it, and why one did not run."""
    report = (yield).get_result()
    seconds = item.config.stash[_SECONDS]
    seconds[item.nodeid] = seconds.get(item.nodeid, 0.0) + report.duration
    reason = ""
    if report.failed and call.excinfo is not None:
        reason = f"failed: {call.excinfo.exconly()}".splitlines()[0][:200]
    elif report.skipped and item.get_closest_marker("skip") is None:  # a mark: there is no GPU
        reason = str(call.excinfo.value if call.excinfo else "")
    if reason and reason != _SPENT:
        item.config.stash[_SKIPPED].append({"fullname": item.nodeid, "reason": reason})


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_generate_json(benchmarks: list[Any]) -> None:
    """Drop what failed before its first round, which pytest-benchmark would stumble over."""
    benchmarks[:] = [each for each in benchmarks if each.stats.data]


def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]
) -> None:
    """Add to each benchmark the seconds that it took, and the run to ``--results``."""
    seconds = config.stash[_SECONDS]
    for each in output_json["benchmarks"]:
        each["wall_s"] = round(seconds.get(each["fullname"], 0.0), 3)
    skipped = [
        {**each, "wall_s": round(seconds[each["fullname"]], 3)} for each in config.stash[_SKIPPED]
    ]
    path = config.getoption("--results")
    if path is not None:
        appending.write(path, appending.joined(appending.read(path), output_json, skipped))


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
