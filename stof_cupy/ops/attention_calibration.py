"""The constants of the time model, fitted once to a GPU and kept on disk."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from stof_cupy import env
from stof_cupy.errors import DeviceError, mismatch
from stof_cupy.files import UNUSABLE, write_whole
from stof_cupy.jit import device
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks import BsrMask, causal, sliding_window
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_candidates import Candidate
from stof_cupy.ops.attention_constants import NAMES, Constants
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_model import explain
from stof_cupy.ops.attention_times import time_of

__all__ = [
    "Timer",
    "calibrate",
    "calibrate_device",
    "calibrated",
    "fit",
    "kept",
    "path_of",
    "probes",
]

Timer = Callable[[Candidate, Case], float]
"""Returns microseconds on the GPU of one candidate, such as `attention_timing.timer`."""

_VERSION = 5
"""Of the model: constants that another one was fitted with do not count."""

_FITTED = tuple(name for name in NAMES if name != "clock")  # which every rate has a share of
_STEP = 0.02  # of a constant's logarithm, by which slopes are found: times have corners
_MOST_STEPS = 30
_LOYALTY = 0.005  # weight of a constant's default against one probe


def path_of(facts: DeviceFacts) -> Path:
    """Return the file of a GPU model and driver below the cache directory.

    Examples
    --------
    >>> l4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
    >>> path_of(l4).name
    'attention-nvidia-l4-driver-0.json'
    """
    name = re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-")
    return env.cache_dir("calibration", f"attention-{name}-driver-{facts.driver}.json")


@lru_cache(maxsize=16)
def calibrated(facts: DeviceFacts) -> Constants:
    """Return the constants that were fitted to a GPU, or the defaults; measures nothing.

    The file is read once a process.
    """
    return kept(facts) or Constants()


def kept(facts: DeviceFacts) -> Constants | None:
    """Return the constants that were fitted to a GPU and kept on disk, or None."""
    try:
        stored = json.loads(path_of(facts).read_text(encoding="utf-8"))
        values = {name: float(stored["constants"][name]) for name in NAMES}
    except UNUSABLE:  # none, or not what `calibrate` writes
        return None
    usable = stored.get("version") == _VERSION and all(
        math.isfinite(value) and value > 0 for value in values.values()
    )
    return Constants(**values) if usable else None


def calibrate(facts: DeviceFacts, timer: Timer, *, again: bool = False) -> Constants:
    """Return the constants of a GPU, measuring and keeping them if that was not done before.

    Parameters
    ----------
    facts : DeviceFacts
    timer : callable
        See `Timer`; asked once for each of `probes`.
    again : bool
        Measure even if that was done before.

    Raises
    ------
    DeviceError
        If a time is no positive number.
    """
    path, before = path_of(facts), kept(facts)
    if before is not None and not again:
        return before
    measured = [(candidate, case, timer(candidate, case)) for candidate, case in probes(facts)]
    for candidate, _, us in measured:
        if not 0 < us < math.inf:
            raise DeviceError(mismatch(f"time of {candidate.name}", us, "positive microseconds"))
    constants = fit(measured)
    record = {
        "version": _VERSION,
        "gpu": facts.name,
        "driver": facts.driver,
        "constants": asdict(constants),
        "probes": [
            {"candidate": candidate.name, "problem": repr(case.problem), "us": us}
            for candidate, case, us in measured
        ],
    }
    write_whole(path, json.dumps(record, indent=1).encode())
    calibrated.cache_clear()
    return constants


def calibrate_device(number: int | None = None, *, again: bool = False) -> Constants:
    """Return the constants of a GPU of this machine, measuring as `calibrate` does.

    Takes about a minute; nothing else should run on the GPU, and no stream be captured.

    Parameters
    ----------
    number : int, optional
        Of the device; default: CuPy's current one.
    again : bool
        Measure even if that was done before.

    Raises
    ------
    DeviceError, MissingDependencyError
        If there is no such device, or no CuPy.
    """
    number = device.current() if number is None else number
    facts = device.facts(number)
    import cupy

    from stof_cupy.ops.attention_timing import timer

    with cupy.cuda.Device(number):
        return calibrate(facts, timer, again=again)


def probes(facts: DeviceFacts) -> list[tuple[Candidate, Case]]:
    """Return what to measure: few cases, each bound by something else, by several candidates."""
    draw = np.random.default_rng(0)

    def random(seq: int, density: float) -> AnyMask:
        return BsrMask(draw.random((seq, seq)) < density)

    def of(batch: int, heads: int, seq: int, dim: int, queries: int = 0) -> Problem:
        return Problem("float16", batch, heads, heads, queries or seq, seq, dim, dim)

    near, past = sliding_window(2048, window=256).tobsr(), causal(4096).tobsr()
    cases: list[tuple[Problem, AnyMask | None]] = [
        (of(1, 1, 64, 64), None),
        (of(1, 12, 512, 64), None),
        (of(4, 12, 2048, 64), None),
        (of(2, 16, 4096, 128), None),
        (of(2, 16, 4096, 128), past),
        (of(1, 12, 4096, 64), past),
        (of(4, 12, 2048, 64), near),
        (of(1, 16, 2048, 128), near),
        (of(1, 32, 8192, 128, queries=16), None),
        (of(1, 12, 1024, 64), random(1024, 0.001)),
        (of(1, 12, 4096, 64), random(4096, 0.001)),
        (of(1, 12, 4096, 64), random(4096, 0.02)),
        (of(1, 16, 2048, 128), random(2048, 0.01)),
    ]
    found: list[tuple[Candidate, Case]] = []
    for problem, mask in cases:
        case = Case(problem, mask, facts)
        every = explain(case)
        near_best = [each.candidate for each in every if each.us <= 3 * every[0].us]
        found += [(candidate, case) for candidate in near_best[:: max(len(near_best) // 8, 1)]]
    return found


def fit(measured: Iterable[tuple[Candidate, Case, float]]) -> Constants:
    """Return the constants under which the model is nearest to what was measured.

    Least squares of the logarithms (Levenberg and Marquardt); a constant that nothing measured
    depends on stays at its default.
    """
    from scipy.optimize import least_squares

    times = [_Measured(*each) for each in measured]
    default = Constants()
    highest = np.log([default.room(name)[1] for name in _FITTED])

    def at(x: NDArray[np.float64]) -> Constants:
        made = default
        for name, each in zip(_FITTED, np.minimum(x, highest), strict=True):
            made = made.scaled(name, math.exp(each)) if each else made
        return made

    def off(x: NDArray[np.float64]) -> NDArray[np.float64]:
        constants = at(x)
        errors = [each.error(constants) for each in times]
        return np.concatenate([errors, _LOYALTY**0.5 * x])

    def slopes(x: NDArray[np.float64]) -> NDArray[np.float64]:
        here, steps = off(x), np.where(x < highest, _STEP, -_STEP)
        moved = [off(x + row) for row in np.diag(steps)]
        return (np.stack(moved, axis=1) - here[:, None]) / steps

    begin = np.zeros(len(_FITTED))
    found = least_squares(off, begin, slopes, method="lm", ftol=1e-2, max_nfev=_MOST_STEPS)
    return at(found.x)


class _Reader:
    """Constants that note which of them are read."""

    def __init__(self, constants: Constants) -> None:
        self.constants, self.read = constants, set[str]()

    def __getattr__(self, name: str) -> float:
        self.read.add(name)
        value: float = getattr(self.constants, name)
        return value


@dataclass(frozen=True, eq=False)
class _Measured:
    """A candidate's time on the GPU, and what the model said under constants that it read."""

    candidate: Candidate
    case: Case
    us: float
    said: dict[frozenset[str], dict[tuple[float, ...], float]] = field(default_factory=dict)

    def error(self, constants: Constants) -> float:
        """Return the logarithm of what the model says over what was measured."""
        for names, errors in self.said.items():
            found = errors.get(tuple(getattr(constants, name) for name in names))
            if found is not None:
                return found
        reader = _Reader(constants)
        time = time_of(self.candidate, self.case, cast(Constants, reader))
        error, read = math.log(time.us / self.us), frozenset(reader.read)
        values = tuple(getattr(constants, name) for name in read)
        return self.said.setdefault(read, {}).setdefault(values, error)
