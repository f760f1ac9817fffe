"""Results of several runs in one file, so that a grid is covered a budget at a time.

    pytest benchmarks/bench_paper_attention.py -m gpu --budget 400 --results grid_{card}.json

A file is pytest-benchmark's, with three keys more: ``runs`` has machine, commit and date of each
run, and a benchmark's ``run`` is its number there; ``skipped`` says what did not run and why. A
*cell* is all ways of one thing to do. What the file has whole is run again with ``--again`` alone;
of what it has in part everything is, because a ratio is of times from one run. What failed, or
wanted a package that is there now, the file has not; what took the GPU's context with it is left.

Runs on several GPUs of a host may add to one file at a time: each takes cells that no other has
begun. A module's ``TOGETHER`` names parameters whose cells one run is to do, for what they share.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.report.results import is_ours

WAY = "way"
STAMP = ("machine_info", "commit_info", "datetime", "version")
FAILED = "failed: "
LOST = "took the GPU's context with it: "
_ABSENT = re.compile(r"No module named '([\w.]+)'")


def cell_of(item: pytest.Item) -> tuple[Any, ...]:
    """Return what an item has in common with the other ways of its cell."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    names = sorted(name for name in params if name != WAY)
    function = item.nodeid.partition("[")[0]
    if WAY not in params:
        return (item.nodeid,)
    return (function, *(repr(params[name]) for name in names))


def way_of(item: pytest.Item) -> str:
    """Return whose call an item times; "" if it has no such parameter."""
    return str(getattr(getattr(item, "callspec", None), "params", {}).get(WAY, ""))


def group_of(item: pytest.Item) -> tuple[Any, ...]:
    """Return what an item has in common with all that one of several runs is to do."""
    names = getattr(getattr(item, "module", None), "TOGETHER", None)
    params = getattr(getattr(item, "callspec", None), "params", {})
    if names is None or not set(names) <= params.keys():
        return cell_of(item)
    return (item.nodeid.partition("[")[0], *(repr(params[name]) for name in names))


def cells(items: Iterable[pytest.Item]) -> dict[tuple[Any, ...], list[pytest.Item]]:
    """Return items by their cells."""
    found: dict[tuple[Any, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        found[cell_of(item)].append(item)
    return found


def read(path: Path) -> dict[str, Any]:
    """Return what a file has; of one run alone, in the form of several.

    Raises
    ------
    ArgumentError
        If it is of another kind, or broken: nothing is added to such a file.
    """
    if not path.exists():
        return {"runs": [], "benchmarks": [], "skipped": []}
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if not isinstance(content, dict) or "benchmarks" not in content:
            raise ValueError("no benchmarks")
    except ValueError as wrong:
        hint = "move it away, or name another"
        what = mismatch(f"--results {path}", str(wrong), "what pytest-benchmark wrote", hint)
        raise ArgumentError(what) from wrong
    if "runs" not in content:
        content["runs"] = [{name: content[name] for name in STAMP if name in content}]
        for each in content["benchmarks"]:
            each["run"] = 0
    content.setdefault("skipped", [])
    return content


def gpus(content: Mapping[str, Any]) -> list[str]:
    """Return the names of the GPUs that a file's runs had, "" for one without."""
    stamps = (run.get("machine_info", {}) for run in content["runs"])
    return [str(stamp.get("gpu", {}).get("name", "")) for stamp in stamps]


def known(content: Mapping[str, Any]) -> set[str]:
    """Return the names of what was measured or skipped for a reason."""
    return {each["fullname"] for key in ("benchmarks", "skipped") for each in content[key]}


def settled(content: Mapping[str, Any]) -> set[str]:
    """Return the names of what need not be tried again."""
    stale = {each["fullname"] for each in content["skipped"] if _passes(each["reason"])}
    return known(content) - stale


def of_commit(content: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """Return what a file has of a commit alone, which seven digits tell."""
    ids = [str(run.get("commit_info", {}).get("id", ""))[:7] for run in content["runs"]]
    found = {
        key: [each for each in content[key] if ids[each["run"]] == commit[:7]]
        for key in ("benchmarks", "skipped")
    }
    return {**content, **found}


def lost(content: Mapping[str, Any]) -> set[str]:
    """Return the names of what nothing can be measured after."""
    skipped = content["skipped"]
    return {each["fullname"] for each in skipped if each["reason"].startswith(LOST)}


def _passes(reason: str) -> bool:
    """Whether a reason may hold no longer: something failed, or a package that is here was not."""
    absent = _ABSENT.search(reason)
    if absent is None:
        return reason.startswith(FAILED)
    try:
        return importlib.util.find_spec(absent[1]) is not None
    except ModuleNotFoundError:
        return False


def joined(
    content: Mapping[str, Any],
    run: Mapping[str, Any],
    skipped: Iterable[Mapping[str, Any]],
    order: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a file's content with one more run, by `order` of names and not as it was measured.

    What was measured before and is again, is new; but what the new run has fewer ways of stays
    beside it, so that peers do not lose the time of ours that theirs is compared with. A way of
    ours that the new run left out for a reason is not missed.
    """
    number = len(content["runs"])
    fresh = {
        "benchmarks": [each | {"run": number} for each in run["benchmarks"]],
        "skipped": [{**each, "run": number} for each in skipped],
    }
    names = known(fresh)
    measured = {each["fullname"] for each in fresh["benchmarks"]}
    there: dict[tuple[str, int], set[str]] = defaultdict(set)
    for each in content["benchmarks"]:
        own = is_ours(str((each.get("params") or {}).get(WAY, "")))
        if not (own and each["fullname"] in names - measured):
            there[_cell_name(each), each["run"]].add(each["fullname"])
    gone = {cell for cell, old in there.items() if old <= measured}
    kept = {
        "benchmarks": [e for e in content["benchmarks"] if (_cell_name(e), e["run"]) not in gone],
        "skipped": [each for each in content["skipped"] if each["fullname"] not in names],
    }
    every = {key: [*map(dict, kept[key]), *fresh[key]] for key in fresh}
    for records in every.values():
        records.sort(key=lambda each: order.get(each["fullname"], -1))
    stamps = [*content["runs"], {name: run[name] for name in STAMP if name in run}]
    used = sorted({each["run"] for records in every.values() for each in records})
    for records in every.values():
        for each in records:
            each["run"] = used.index(each["run"])
    newest = {name: run[name] for name in STAMP if name in run}
    return {**newest, "runs": [stamps[at] for at in used], **every}


def _cell_name(record: Mapping[str, Any]) -> str:
    """Return a record's name without its way, which is the last of its parameters."""
    way = (record.get("params") or {}).get(WAY, "")
    return str(record["fullname"]).removesuffix(f"-{way}]")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other runs from a file while it is read and written."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(beside, path)


class Claims:
    """Cells that this process takes, and no other that adds to the same file on this host.

    A lock on a byte of an empty file stands for a group of cells, so that those of a process that
    was ended are free.

    Parameters
    ----------
    path : Path
        The results.
    before : mapping
        What they had when this run began.
    """

    def __init__(self, path: Path, before: Mapping[str, Any]) -> None:
        self._path, self._old = path, {run.get("datetime") for run in before["runs"]}
        self._done: set[str] = set()
        self._seen: tuple[int, int] | None = None
        name = hashlib.sha256(f"{os.getuid()} {path.resolve()}".encode()).hexdigest()[:16]
        file = Path(tempfile.gettempdir()) / f"stof_cupy-cells-{name}"
        self._locks = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def takes(self, group: tuple[Any, ...], names: Iterable[str]) -> bool:
        """Whether a cell of a group, of such benchmarks, is to be measured by this process."""
        import fcntl

        try:
            fcntl.lockf(
                self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(repr(group).encode())
            )
        except OSError:
            return False
        return not set(names) <= self._since()

    def _since(self) -> set[str]:
        """Return what the file has from runs that were not there when this one began."""
        if not self._path.exists():
            return set()
        found = self._path.stat()
        if self._seen != (found.st_mtime_ns, found.st_size):
            self._seen = found.st_mtime_ns, found.st_size
            content = read(self._path)
            fresh = [run.get("datetime") not in self._old for run in content["runs"]]
            every = (*content["benchmarks"], *content["skipped"])
            self._done = {each["fullname"] for each in every if fresh[each["run"]]}
        return self._done
