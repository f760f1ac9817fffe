"""Results of several runs in one file, so that a grid is covered a budget at a time.

    pytest benchmarks/bench_paper_attention.py -m gpu --budget 400 --results grid.json \
        --benchmark-json=.benchmarks/last.json

A file is pytest-benchmark's, with three keys more: ``runs`` has machine, commit and date of each
run, and a benchmark's ``run`` is its number there; ``skipped`` says what did not run and why. A
*cell* is all ways of one thing to do. What the file has whole is run again with ``--again`` alone;
of what it has in part everything is, because a ratio is of times from one run.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

WAY = "way"
STAMP = ("machine_info", "commit_info", "datetime", "version")


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


def cells(items: Iterable[pytest.Item]) -> dict[tuple[Any, ...], list[pytest.Item]]:
    """Return items by their cells."""
    found: dict[tuple[Any, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        found[cell_of(item)].append(item)
    return found


def read(path: Path) -> dict[str, Any]:
    """Return what a file has; of one run alone, in the form of several."""
    if not path.exists():
        return {"runs": [], "benchmarks": [], "skipped": []}
    content: dict[str, Any] = json.loads(path.read_text())
    if "runs" not in content:
        content["runs"] = [{name: content[name] for name in STAMP if name in content}]
        for each in content["benchmarks"]:
            each["run"] = 0
    content.setdefault("skipped", [])
    return content


def known(content: Mapping[str, Any]) -> set[str]:
    """Return the names of what was measured or skipped for a reason."""
    return {each["fullname"] for key in ("benchmarks", "skipped") for each in content[key]}


def joined(
    content: dict[str, Any], run: Mapping[str, Any], skipped: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a file's content with one more run; what was measured before and is again, is new."""
    number = len(content["runs"])
    fresh = {
        "benchmarks": [each | {"run": number} for each in run["benchmarks"]],
        "skipped": [{**each, "run": number} for each in skipped],
    }
    names = known(fresh)
    every = {
        key: [each for each in content[key] if each["fullname"] not in names] + fresh[key]
        for key in fresh
    }
    stamps = [*content["runs"], {name: run[name] for name in STAMP if name in run}]
    used = sorted({each["run"] for records in every.values() for each in records})
    for records in every.values():
        for each in records:
            each["run"] = used.index(each["run"])
    newest = {name: run[name] for name in STAMP if name in run}
    return {**newest, "runs": [stamps[at] for at in used], **every}


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(beside, path)
