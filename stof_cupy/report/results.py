"""Runs, and the times that were taken in them, as results files have them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["Results", "Run", "Skip", "Timing", "case_of", "function_of", "is_ours"]

_WAYS = {"bench_stof_cupy": "ours", "bench_transformers": "transformers", "bench_plain": "NumPy"}
"""Functions of older files, which stand for whose call it is that they time."""

_LEAST_ROUNDS = 5
"""Of device times whose number is not noted: the fewest that benchmarks/device_time.py takes."""


@dataclass(frozen=True)
class Run:
    """Where, when and of what times were taken.

    Attributes
    ----------
    file : str
        Name of the results file.
    date : str
        ISO, to the day.
    time : str
        ISO, as exact as the file has it.
    commit : str
        What was measured; "" if nobody said.
    dirty : bool
        Whether the checkout had changes.
    machine : str
        The GPU, or the CPU where there was none.
    driver : str
        Of the GPU; "" without one.
    packages : mapping of str to str
        Versions.
    """

    file: str
    date: str
    time: str
    commit: str
    dirty: bool
    machine: str
    driver: str
    packages: Mapping[str, str] = field(hash=False, compare=False)

    @classmethod
    def of(cls, file: str, stamp: Mapping[str, Any]) -> Run:
        """Return the run that a file, or one of its ``runs``, describes."""
        machine, commit = stamp.get("machine_info", {}), stamp.get("commit_info", {})
        gpu, cpu = machine.get("gpu", {}), machine.get("cpu", {})
        time = str(stamp.get("datetime", ""))
        return cls(
            file,
            time[:10],
            time,
            str(commit.get("id", "")),
            bool(commit.get("dirty", False)),
            str(gpu.get("name") or cpu.get("brand") or cpu.get("brand_raw") or "unknown"),
            str(gpu.get("driver", "")),
            MappingProxyType(dict(machine.get("packages", {}))),
        )

    @property
    def stamp(self) -> str:
        """Machine, driver, date, commit and versions in one line."""
        commit = f"commit {self.commit[:7]}{' with changes' if self.dirty else ''}"
        parts = [self.machine, f"driver {self.driver}" if self.driver else "", self.date]
        parts.append(commit if self.commit else "")
        parts += [f"{name} {version}" for name, version in self.packages.items()]
        return ", ".join(filter(None, parts))


def is_ours(way: str) -> bool:
    """Whether a way is of this package, and no peer.

    Examples
    --------
    >>> is_ours("ours sm80"), is_ours("templates"), is_ours("FA3")
    (True, True, False)
    """
    return way.startswith("ours") or way in _OURS


@dataclass(frozen=True)
class Timing:
    """One benchmark of one run.

    Attributes
    ----------
    run : Run
    bench : str
        File and function, ``bench_attention.py::bench_anchors``.
    way : str
        Whose call was timed.
    key : tuple of pairs of str
        Parameters but for the way: what was to be done. Names and values as text.
    p20, p50, p80 : float
        Quantiles, ms: the device's where all of a benchmark's have them, else the host's.
    rounds : int
        From so many times.
    info : mapping
        What else the benchmark noted.
    wall_s : float
        Seconds that the benchmark took with inputs, checks and compilers; 0 if not noted.
    host : float
        Median of a call and the wait for it by the host's clock, ms.
    case : str
        Its name within the benchmark.
    """

    run: Run
    bench: str
    way: str
    key: tuple[tuple[str, str], ...]
    p20: float
    p50: float
    p80: float
    rounds: int
    info: Mapping[str, Any] = field(hash=False, compare=False)
    wall_s: float = 0.0
    host: float = 0.0
    case: str = ""

    @classmethod
    def of(cls, run: Run, record: Mapping[str, Any], *, on_host: bool) -> Timing:
        """Return what pytest-benchmark wrote of one benchmark."""
        info = MappingProxyType(dict(record.get("extra_info", {})))
        file, _, function = function_of(record).partition("::")
        params = dict(record.get("params") or {})
        named = params.pop("way", None)
        way = info.get("way", named)
        bench = f"{file}::{function}"
        if way is None and function in _WAYS:
            way, bench = _WAYS[function], file
        key = tuple(sorted((name, _text(value)) for name, value in params.items()))
        quantiles = _quantiles(record["stats"], {} if on_host else info)
        if not all(0 < each < math.inf for each in quantiles[:3]):
            raise ValueError(f"times {quantiles[:3]} ms of {record['fullname']}")
        wall_s, host = float(record.get("wall_s", 0.0)), _quantiles(record["stats"], {})[1]
        case = case_of(record)
        return cls(run, bench, str(way or "ours"), key, *quantiles, info, wall_s, host, case)

    @property
    def is_ours(self) -> bool:
        """Whether it was this package that ran."""
        return is_ours(self.way)

    @property
    def with_host(self) -> bool:
        """Whether a device's time has the host's in it, because a call could not be captured."""
        return self.info.get("graph") is False

    def __getitem__(self, name: str) -> Any:
        """Return a parameter as text, or what was noted by that name; None if there is none."""
        return dict(self.key).get(name, self.info.get(name))


_OURS = {
    "templates",
    "apart",
    "stated",
    "measured",
    "rebuild",
    "replay",
    "recorded",
    "launched",
    "packed",
    "padded",
}
"""Ways of benchmarks that time several of ours; newer ones begin with ``ours``."""


@dataclass(frozen=True)
class Skip:
    """A benchmark that did not run, and why."""

    run: Run
    bench: str
    case: str
    reason: str
    wall_s: float

    @property
    def failed(self) -> bool:
        """Whether something went wrong, in the words of benchmarks/appending.py."""
        return self.reason.startswith(("failed: ", "took the GPU's context with it: "))


@dataclass(frozen=True)
class Results:
    """All that some files say."""

    timings: tuple[Timing, ...]
    skips: tuple[Skip, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """Runs that have a timing, the newest last."""
        found = {timing.run for timing in self.timings}
        return tuple(sorted(found, key=lambda run: (run.time, run.file, run.commit)))

    def of(self, *benches: str) -> tuple[Timing, ...]:
        """Return the timings of benchmarks, by file name or ``file::function``."""
        return tuple(
            timing
            for timing in self.timings
            if timing.bench in benches or timing.bench.partition("::")[0] in benches
        )

    def on(self, machines: Collection[str]) -> Results:
        """Return what was measured on some machines."""
        timings = (each for each in self.timings if each.run.machine in machines)
        skips = (each for each in self.skips if each.run.machine in machines)
        return Results(tuple(timings), tuple(skips))


def function_of(record: Mapping[str, Any]) -> str:
    """Return ``file::function``, without directories and parameters."""
    file, _, function = str(record["fullname"]).partition("::")
    return f"{Path(file).name}::{function.partition('[')[0]}"


def case_of(record: Mapping[str, Any]) -> str:
    """Return what stands in brackets after the function, or ""."""
    return str(record["fullname"]).partition("[")[2].removesuffix("]")


def _quantiles(
    stats: Mapping[str, Any], info: Mapping[str, Any]
) -> tuple[float, float, float, int]:
    """Return p20, p50 and p80 in ms, and of how many times they are."""
    if "device_p50_ms" in info:
        p20, p50, p80 = (float(info[f"device_{name}_ms"]) for name in ("p20", "p50", "p80"))
        return p20, p50, p80, int(info.get("device_rounds", _LEAST_ROUNDS))
    data = sorted(stats.get("data") or (stats["min"], stats["median"], stats["max"]))
    p20, p50, p80 = (1e3 * _quantile(data, share) for share in (0.2, 0.5, 0.8))
    return p20, p50, p80, int(stats["rounds"])


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _text(value: Any) -> str:
    """Return a parameter as it is written: ``full`` for no mask, 1x8x4096 for a shape."""
    if value is None:
        return "full"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "x".join(map(str, value))
    return str(value)
