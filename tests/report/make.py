"""Results files for tests, in the form of pytest-benchmark's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def stamp(date: str = "2026-11-28", gpu: str = "A GPU", **packages: str) -> dict[str, Any]:
    return {
        "machine_info": {"gpu": {"name": gpu, "driver": "580.1"}, "packages": packages},
        "commit_info": {"id": "abcdef0123", "dirty": False},
        "datetime": f"{date}T01:02:03+00:00",
    }


def record(
    function: str,
    way: str,
    times: Sequence[float],
    *,
    device: Sequence[float] | None = None,
    run: int = 0,
    **params: Any,
) -> dict[str, Any]:
    """Return a benchmark; times are in ms, the device's p20, p50 and p80."""
    info: dict[str, Any] = {"way": way}
    if device is not None:
        info |= dict(zip(("device_p20_ms", "device_p50_ms", "device_p80_ms"), device, strict=True))
        info["device_rounds"] = 20
    data = [each / 1e3 for each in times]
    return {
        "fullname": f"benchmarks/bench_{function}[{'-'.join(map(str, params.values()))}-{way}]",
        "params": {**params, "way": way},
        "extra_info": info,
        "stats": {"data": data, "rounds": len(data)},
        "run": run,
        "wall_s": 1.5,
    }


def write(
    path: Path,
    records: Iterable[dict[str, Any]],
    stamps: Sequence[dict[str, Any]] = (),
    skipped: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write a file of one run, or of several."""
    content = {**(stamps[-1] if stamps else stamp()), "benchmarks": list(records)}
    if stamps:
        content |= {"runs": list(stamps), "skipped": list(skipped)}
    path.write_text(json.dumps(content))
    return path


def searches(backend: str = "cuda") -> list[dict[str, Any]]:
    """Return benchmarks of searches, of which two know a layer and one another."""
    found = []
    for way, seq, loss in (
        ("ours two stages", 128, 0.004),
        ("ours exhaustive", 128, 0.0),
        ("ours two stages", 512, 0.03),
    ):
        where = {"family": "bert", "backend": backend, "batch": 1, "seq": seq}
        each = record("search.py::bench_search", way, [1.0], **where)
        each["extra_info"] |= {"loss": loss, "most": 2 * loss, "timed": 40 - seq / 16, "fewer": 2.5}
        found.append(each)
    return found


def ragged() -> list[dict[str, Any]]:
    """Return benchmarks of sequences of many lengths, of which one model has no time one by one."""
    times = {
        "minilm": {"packed": 2.0, "padded": 3.0, "one by one": 50.0},
        "bert-base": {"packed": 7.0, "padded": 12.0},
    }
    found = []
    for model, ways in times.items():
        for way, ms in ways.items():
            named = {"backend": "cuda", "model": model}
            each = record("ragged.py::bench_ragged", f"ours {way}", [ms], **named)
            each["extra_info"] |= {"sequences": 64, "mean_length": 254.25, "error": 1e-3}
            if model == "bert-base":
                each["extra_info"]["in_a_row_ms"] = ms - 1
            found.append(each)
    return found
