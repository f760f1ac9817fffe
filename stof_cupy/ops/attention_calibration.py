"""The constants of the time model, fitted once to a GPU and kept on disk."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from stof_cupy import env
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks import BsrMask, causal, sliding_window
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_candidates import Candidate, Kernels, candidates
from stof_cupy.ops.attention_constants import NAMES, Constants
from stof_cupy.ops.attention_demand import Demand
from stof_cupy.ops.attention_model import predict

__all__ = ["Probe", "Timer", "calibrate", "calibrated", "fit", "path_of", "probes"]

Probe = tuple[Candidate, Problem, "AnyMask | None"]

Timer = Callable[[Candidate, Problem, "AnyMask | None"], float]
"""Returns microseconds on the GPU of one candidate: a median over launches."""

_VERSION = 1
"""Of the model: constants that another one was fitted with do not count."""

_FITTED = tuple(name for name in NAMES if name != "clock")  # which every rate has a share of
_STEPS = (1.5, 1.2, 1.07, 1.02)  # factors tried on each constant, coarse to fine
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


def calibrated(facts: DeviceFacts) -> Constants:
    """Return the constants that were fitted to a GPU, or the defaults; measures nothing."""
    return _read(path_of(facts))


@lru_cache(maxsize=16)
def _read(path: Path) -> Constants:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        values = {name: float(stored["constants"][name]) for name in NAMES}
    except (OSError, ValueError, KeyError, TypeError):  # none, or not what `calibrate` writes
        return Constants()
    usable = stored.get("version") == _VERSION and all(
        math.isfinite(value) and value > 0 for value in values.values()
    )
    return Constants(**values) if usable else Constants()


def calibrate(
    facts: DeviceFacts, timer: Timer, kernels: Kernels | None = None, *, again: bool = False
) -> Constants:
    """Return the constants of a GPU, measuring and keeping them if that was not done before.

    Parameters
    ----------
    facts : DeviceFacts
    timer : callable
        See `Timer`; asked once for each of `probes`.
    kernels : Kernels, optional
        Which there are.
    again : bool
        Measure even if there is a file.
    """
    path = path_of(facts)
    if path.exists() and not again:
        return calibrated(facts)
    measured = [(probe, timer(*probe)) for probe in probes(facts, kernels or Kernels())]
    constants = fit(facts, measured)
    record = {
        "version": _VERSION,
        "gpu": facts.name,
        "driver": facts.driver,
        "constants": asdict(constants),
        "probes": [
            {"candidate": repr(c), "problem": repr(p), "us": us} for (c, p, _), us in measured
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    aside.write_text(json.dumps(record, indent=1), encoding="utf-8")
    aside.replace(path)  # whole or not at all, whoever else writes
    _read.cache_clear()
    return constants


def probes(facts: DeviceFacts, kernels: Kernels) -> list[Probe]:
    """Return what to measure: few cases, each bound by something else, by several candidates."""
    draw = np.random.default_rng(0)

    def random(seq: int, density: float) -> AnyMask:
        return BsrMask(draw.random((seq, seq)) < density)

    def of(batch: int, heads: int, seq: int, dim: int, queries: int = 0) -> Problem:
        return Problem("float16", batch, heads, heads, queries or seq, seq, dim, dim)

    cases: list[tuple[Problem, AnyMask | None]] = [
        (of(1, 1, 64, 64), None),
        (of(1, 12, 512, 64), None),
        (of(4, 12, 2048, 64), None),
        (of(2, 16, 4096, 128), causal(4096).tobsr()),
        (of(4, 12, 2048, 64), sliding_window(2048, window=256).tobsr()),
        (of(1, 32, 8192, 128, queries=16), None),
        (of(1, 12, 1024, 64), random(1024, 0.001)),
        (of(1, 12, 4096, 64), random(4096, 0.001)),
        (of(1, 12, 4096, 64), random(4096, 0.02)),
    ]
    found: list[Probe] = []
    for problem, mask in cases:
        demand, best = Demand(problem, mask), Constants()
        every = [
            (predict(c, demand, facts, best).us, c)
            for c in candidates(problem, mask, facts, kernels)
        ]
        least = min(us for us, _ in every)
        found += [(c, problem, mask) for us, c in every if us <= 3 * least]
    return found


def fit(facts: DeviceFacts, measured: Iterable[tuple[Probe, float]]) -> Constants:
    """Return the constants under which the model is nearest to what was measured.

    Least squares of the logarithms, one constant at a time; one that nothing measured depends on
    stays at its default.
    """
    times = [(c, Demand(p, m), math.log(us)) for (c, p, m), us in measured]
    default = Constants()

    def off(constants: Constants) -> float:
        errors = (math.log(predict(c, d, facts, constants).us) - us for c, d, us in times)
        return sum(e * e for e in errors) + _LOYALTY * sum(
            math.log(getattr(constants, name) / getattr(default, name)) ** 2 for name in _FITTED
        )

    best, least = default, off(default)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name, factor in [(n, f) for n in _FITTED for f in (step, 1 / step)]:
                trial = best.scaled(name, factor)
                error = off(trial)
                if error < least - 1e-9:
                    best, least, improved = trial, error, True
    return best
