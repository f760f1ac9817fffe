"""What every results file says about the machine and the code, and how long a run may take."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from pathlib import Path
from typing import Any

import appending
import cards
import pytest

from stof_cupy.errors import ArgumentError
from stof_cupy.jit import device

# Doctest would import what benchmarks share, and some of that imports what is not installed.
collect_ignore_glob = ["[!b]*.py"]

_START = time.monotonic()
_SKIPPED = pytest.StashKey[list[dict[str, Any]]]()
_SECONDS = pytest.StashKey[dict[str, float]]()
_CELL = pytest.StashKey[tuple[Any, ...]]()
_WHY_NOT = pytest.StashKey[str]()
_CELLS = pytest.StashKey[dict[tuple[Any, ...], list[pytest.Item]]]()
_CLAIMS = pytest.StashKey[appending.Claims]()
_BEFORE = pytest.StashKey[dict[str, Any]]()
_STAMP = pytest.StashKey[dict[str, Any]]()
_SAVED = pytest.StashKey[float]()
_ORDER = pytest.StashKey[dict[str, int]]()
_SPENT = "--budget is spent"
_TAKEN = "another run has it"
_PACKAGES = (
    *("stof-cupy", "numpy", "scipy", "cupy-cuda12x", "cupy-cuda13x"),
    *("torch", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "transformers"),
    *("tokenspeed-fa3", "flash-attn-4", "nvidia-cutlass-dsl", "flashinfer-python"),
)
"""Ours and the peers', whose versions are noted."""
_OFTEN = 15.0
"""Seconds between two times that ``--results`` is written."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--commit``, for a tree that travelled without its history, and bounds of a run."""
    parser.addoption("--commit", help="the commit that is measured, where git cannot tell")
    parser.addoption("--heavy", action="store_true", help="what takes minutes, too")
    parser.addoption("--budget", type=float, help="seconds after which no cell is begun")
    parser.addoption(
        "--results",
        type=Path,
        help="file that is added to, {card}: the GPU's name; see appending.py",
    )
    parser.addoption("--ways", help="e.g. ours,Flex: whose calls are timed, of those with a way")
    parser.addoption("--again", action="store_true", help="what --results has already, too")
    parser.addoption("--older", action="store_true", help="what it has of another commit, too")


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what a run notes beside times."""
    config.stash[_SKIPPED], config.stash[_SECONDS] = [], {}
    if path := config.getoption("--results"):
        gpu = cards.gpu()
        path = config.option.results = cards.named(path, gpu)
        try:
            before = appending.read(path)
            cards.refuse_others(path, appending.gpus(before), gpu)
        except ArgumentError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[_BEFORE], config.stash[_SAVED] = before, _START - _OFTEN
        config.stash[_CLAIMS] = appending.Claims(path, before)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is heavy or whose way is not asked for, and what ``--results`` has whole."""
    found = list(items)
    config.stash[_ORDER] = {item.nodeid: at for at, item in enumerate(items)}
    if not config.getoption("--heavy"):
        found = [i for i in found if not getattr(i, "originalname", "").endswith("_heavy")]
    if config.getoption("--ways"):
        wanted = {"", "ours", *config.getoption("--ways").split(",")}
        found = [item for item in found if appending.way_of(item) in wanted]
    before = config.stash.get(_BEFORE, None)
    if before is not None and not config.getoption("--again"):
        gone = appending.lost(before)
        found = [item for item in found if item.nodeid not in gone]
        if config.getoption("--older"):
            before = appending.of_commit(before, str(_commit(config).get("id", "")))
        there = appending.settled(before)
        groups = appending.cells(found).values()
        whole = {i for group in groups if all(i.nodeid in there for i in group) for i in group}
        found = [item for item in found if item not in whole]
    kept = set(found)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = found
    config.stash[_CELLS] = appending.cells(found)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip cells that are not this run's to begin; one that is begun is ended."""
    stash, cell = item.config.stash, appending.cell_of(item)
    if stash.get(_CELL, None) != cell:
        stash[_CELL], stash[_WHY_NOT] = cell, _why_not(item, cell)
    if stash[_WHY_NOT]:
        pytest.skip(stash[_WHY_NOT])


def _why_not(item: pytest.Item, cell: tuple[Any, ...]) -> str:
    """Return why a cell is not begun, or "": the budget is spent, or another run has taken it."""
    budget, claims = item.config.getoption("--budget"), item.config.stash.get(_CLAIMS, None)
    if budget is not None and time.monotonic() - _START > budget:
        return _SPENT
    names = [each.nodeid for each in item.config.stash[_CELLS][cell]]
    return "" if claims is None or claims.takes(appending.group_of(item), names) else _TAKEN


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Note how long a benchmark took with all that is around it, and why one did not run."""
    report = (yield).get_result()
    seconds = item.config.stash[_SECONDS]
    seconds[item.nodeid] = seconds.get(item.nodeid, 0.0) + report.duration
    reason = ""
    if report.failed and call.excinfo is not None:
        reason = f"{appending.FAILED}{call.excinfo.exconly()}".splitlines()[0][:200]
    elif report.skipped and item.get_closest_marker("skip") is None:  # a mark: there is no GPU
        reason = str(call.excinfo.value if call.excinfo else "")
    if reason and reason not in (_SPENT, _TAKEN):
        if _is_lost():
            reason = f"{appending.LOST}{reason}"
            item.session.shouldstop = f"{item.nodeid} {reason}"
        item.config.stash[_SKIPPED].append({"fullname": item.nodeid, "reason": reason})


def _is_lost() -> bool:
    """Whether whatever runs on the GPU from now on fails in this process."""
    cupy = sys.modules.get("cupy")
    try:
        if cupy is not None and cupy.cuda.is_available():
            cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError:  # type: ignore[union-attr]
        return True
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Ask for machine and commit while the GPU answers."""
    config = session.config
    if _BEFORE in config.stash and not config.option.collectonly and session.items:
        machine = config._benchmarksession.get_machine_info()  # type: ignore[attr-defined]
        config.stash[_STAMP] = {"machine_info": machine, "commit_info": _commit(config)}


def _commit(config: pytest.Config) -> dict[str, Any]:
    commit: dict[str, Any] = config.hook.pytest_benchmark_generate_commit_info(config=config)
    config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit)
    return commit


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    """Write ``--results`` after a cell, now and then: a process may be ended from outside."""
    yield
    config = item.config
    ended = nextitem is None or appending.cell_of(nextitem) != appending.cell_of(item)
    if ended and _STAMP in config.stash and time.monotonic() - config.stash[_SAVED] > _OFTEN:
        _save(config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write ``--results``."""
    if _STAMP in session.config.stash:
        _save(session.config)


def _save(config: pytest.Config) -> None:
    """Add what was measured to what ``--results`` has; what was added before is replaced."""
    done = list(config._benchmarksession.benchmarks)  # type: ignore[attr-defined]
    skipped = config.stash[_SKIPPED]
    if not done and not skipped:
        return
    run = config.hook.pytest_benchmark_generate_json(
        config=config, benchmarks=done, include_data=True, **config.stash[_STAMP]
    )
    seconds = config.stash[_SECONDS]
    for each in (*run["benchmarks"], *skipped):
        each["wall_s"] = round(seconds.get(each["fullname"], 0.0), 3)
    path = config.getoption("--results")
    with appending.alone(path):  # others may have added to it since, on another GPU of the host
        there = appending.read(path)
        appending.write(path, appending.joined(there, run, skipped, config.stash[_ORDER]))
    config.stash[_SAVED] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_generate_json(benchmarks: list[Any]) -> None:
    """Drop what failed before its first round, which pytest-benchmark would stumble over."""
    benchmarks[:] = [each for each in benchmarks if each.stats.data]


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add to each benchmark the seconds that it took."""
    seconds = config.stash[_SECONDS]
    for each in output_json["benchmarks"]:
        each["wall_s"] = round(seconds.get(each["fullname"], 0.0), 3)


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
    machine_info["packages"] = {name: found for name in _PACKAGES if (found := _version(name))}
    if device.is_available():
        import cupy

        facts = device.facts()
        machine_info["gpu"] = {
            "name": facts.name,
            "arch": facts.arch,
            "multiprocessors": facts.sm_count,
            "driver": cards.driver(),
            "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
            "runtime_cuda": cupy.cuda.runtime.runtimeGetVersion(),
        }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
