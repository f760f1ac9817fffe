"""Reads results files.

One of pytest-benchmark holds one run, or several that ``benchmarks/appending.py`` joined: then
``runs`` lists what each says of itself, and each benchmark names its own by ``run``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.report.results import Results, Run, Skip, Timing, case_of, function_of

__all__ = ["read_directory", "read_file"]


def read_file(path: str | Path) -> Results:
    """Read a results file of pytest-benchmark.

    Raises
    ------
    ArgumentError
        If it is none of pytest-benchmark's.
    OSError
        If it cannot be read.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or "benchmarks" not in content:
            raise KeyError("benchmarks")
        stamps: Sequence[Any] = content.get("runs") or [content]
        runs = [Run.of(path.name, stamp) for stamp in stamps]
        on_host = {function_of(each) for each in content["benchmarks"] if not _has_device(each)}
        timings = [
            Timing.of(runs[each.get("run", 0)], each, on_host=function_of(each) in on_host)
            for each in content["benchmarks"]
        ]
        skips = [_skip(runs[each.get("run", 0)], each) for each in content.get("skipped", ())]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as wrong:
        what = f"{type(wrong).__name__}: {wrong}"
        raise ArgumentError(mismatch(str(path), what, "what pytest-benchmark wrote")) from wrong
    return Results(tuple(timings), tuple(skips))


def read_directory(path: str | Path) -> Results:
    """Read every results file of a directory; JSON files of other kinds are passed over.

    Raises
    ------
    ArgumentError
        If there is no such directory, or no results file in it.
    """
    path = Path(path)
    files = sorted(path.glob("*.json")) if path.is_dir() else []
    found = [read_file(file) for file in files if _is_results(file)]
    if not found:
        expected = "a directory with files of `pytest --benchmark-json`"
        raise ArgumentError(mismatch("results", repr(str(path)), expected))
    return Results(
        tuple(timing for each in found for timing in each.timings),
        tuple(skip for each in found for skip in each.skips),
    )


def _is_results(file: Path) -> bool:
    """Whether a file is of a form that `read_file` reads; what is broken is, so that it says so."""
    try:
        content = json.loads(file.read_text())
    except ValueError:
        return True
    return isinstance(content, dict) and "benchmarks" in content


def _skip(run: Run, record: Mapping[str, Any]) -> Skip:
    wall_s = float(record.get("wall_s", 0.0))
    return Skip(run, function_of(record), case_of(record), str(record["reason"]), wall_s)


def _has_device(record: Mapping[str, Any]) -> bool:
    return "device_p50_ms" in record.get("extra_info", {})
