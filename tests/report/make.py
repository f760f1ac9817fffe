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
