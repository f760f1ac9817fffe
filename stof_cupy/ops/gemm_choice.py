"""Which way a product is computed: what was measured of it on this GPU, else what the model says.

`gemm_timing.measure` times the ways that may be the fastest, cuBLASLt's among them, and keeps the
times in a file of the GPU; here that file is read. Nothing is measured by a call of `gemm`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from stof_cupy import env
from stof_cupy.files import UNUSABLE, write_whole
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops import gemm_model, gemm_vendor, gemm_ways
from stof_cupy.ops.attention_calibration import path_of as attention_path_of
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_few_rows import Config as FewRows
from stof_cupy.ops.gemm_sm90 import Layout, Plan
from stof_cupy.ops.gemm_streamed import Config as Streamed
from stof_cupy.ops.gemm_vendor import Vendor

__all__ = [
    "APART",
    "LATE",
    "Choice",
    "Times",
    "choices",
    "guessed_norm",
    "keep",
    "key_of",
    "name_of",
    "norm",
    "path_of",
    "times_of",
]

Choice: TypeAlias = gemm_ways.Choice | Vendor
"""One way to compute a product."""

Times: TypeAlias = Mapping[str, float]
"""Microseconds of ways to compute a product, by `name_of`."""

APART = "apart"
"""The name of a product and a LayerNorm in two kernels."""

LATE = "apart, residual late"
"""The same, where the second adds the residual; faster nearly everywhere."""

_EQUAL = 1.01
"""Times of the fastest that the model's choice may take and still is taken: runs differ by that."""

_VERSION = 8
"""Of our kernels: times of others do not count."""


def name_of(choice: Choice | str) -> str:
    """Return what tells a way from all others for the same product.

    Examples
    --------
    >>> name_of(Vendor(0))
    'cublaslt 0'
    """
    if isinstance(choice, str):  # see `norm`
        return choice
    if isinstance(choice, FewRows):
        return f"few rows {choice.rows}x{choice.slices}"
    if isinstance(choice, Streamed):
        return f"streamed {choice.rows}x{choice.columns}"
    if isinstance(choice, Vendor):
        return f"cublaslt {choice.rank}"
    if isinstance(choice, Plan):
        pieces = f" {choice.splits}" if choice.splits > 1 else ""
        return f"sm90 {choice.config.name}{pieces}{' stream' if choice.stream else ''}"
    return f"sm80 {choice.tile.m}x{choice.tile.n}"


def key_of(problem: Problem, found: Layout | None, *, norm: bool = False) -> str:
    """Return what a product is called in the file.

    Examples
    --------
    >>> key_of(Problem("float16", 8, 16, 64), Layout(transposed_b=True))
    'float16 8x16x64 km'
    """
    layout = "any"
    if found is not None:
        layout = "".join("km"[each] for each in (found.transposed_a, found.transposed_b))
    sizes = f"{problem.m}x{problem.n}x{problem.k}{problem.epilogue.name}"
    return f"{problem.dtype} {sizes} {layout}{' norm' if norm else ''}"


@lru_cache(maxsize=4096)
def choices(problem: Problem, found: Layout | None, facts: DeviceFacts) -> tuple[Choice, ...]:
    """Return what to run: the first that can be, of which the last always can.

    cuBLASLt is among them where it was measured to be the fastest. What the model says goes before
    what is hardly faster. The last 4096 answers are kept.

    Examples
    --------
    >>> l4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
    >>> [name_of(each) for each in choices(Problem("float16", 8, 16, 64), None, l4)]
    ['sm80 64x64']
    """
    every = gemm_ways.ways(problem, found, facts)
    ours = {name_of(each.choice): each.choice for each in every}
    vendors: dict[str, Choice] = {}
    if gemm_vendor.fault(problem) is None:
        vendors = {name_of(each): each for each in map(Vendor, range(gemm_vendor.RANKS))}
    times = times_of(facts, key_of(problem, found))
    known = sorted((us, name) for name, us in times.items() if name in ours or name in vendors)
    guess = every[0].choice
    if known and times.get(name_of(guess), math.inf) <= _EQUAL * known[0][0]:
        return (guess,)
    first: list[Choice] = []
    for _, name in known:
        if name in ours:
            return (*first, ours[name])
        first.append(vendors[name])
    return (*first, guess)


def guessed_norm(
    problem: Problem, found: Layout | None, facts: DeviceFacts, late: bool = True
) -> Plan | str:
    """Return what `norm` does where nothing was measured."""
    two = LATE if late and problem.epilogue.residual else APART
    return gemm_model.choose_norm(problem, found, facts) or two


@lru_cache(maxsize=4096)
def norm(
    problem: Problem, found: Layout | None, facts: DeviceFacts, late: bool = True
) -> Plan | str:
    """Return how to compute a product and normalise its rows: in one kernel, `APART` or `LATE`.

    The latter only if it may be `late`: the result does not take the residual's place.
    """
    plans = {name_of(plan): plan for plan in gemm_model.norm_candidates(problem, found, facts)}
    times = times_of(facts, key_of(problem, found, norm=True))
    two = (APART, LATE) if late else (APART,)
    known = [name for name in times if name in plans or name in two]
    if not known:
        return guessed_norm(problem, found, facts, late)
    best = min(known, key=lambda name: times[name])
    return plans.get(best, best)


# ---------------------------------------------------------------- the file


def path_of(facts: DeviceFacts) -> Path:
    """Return the file of a GPU model and driver below the cache directory.

    Examples
    --------
    >>> l4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
    >>> path_of(l4).name
    'gemm-nvidia-l4-driver-0.json'
    """
    path = attention_path_of(facts)
    return path.with_name(path.name.replace("attention", "gemm", 1))


def times_of(facts: DeviceFacts, key: str) -> Times:
    """Return what was measured of a product on a GPU; nothing if it was not."""
    return _stored(path_of(facts)).get(key, {})


def keep(facts: DeviceFacts, key: str, times: Times) -> None:
    """Add the times of a product to the file of a GPU.

    Where that cannot be written a warning says so, once, and they last as long as this process.
    """
    path = path_of(facts)
    every = {**_known(path), key: {name: round(us, 3) for name, us in times.items()}}
    record = {"version": _VERSION, "gpu": facts.name, "driver": facts.driver, "us": every}
    try:
        write_whole(path, json.dumps(record, indent=1).encode())
        _UNWRITTEN.pop(path, None)
    except OSError as error:
        if path not in _UNWRITTEN:
            warnings.warn(
                f"times of products {path} cannot be written ({error}); what is measured now is "
                f"lost when this process ends. Set {env.CACHE_DIR.name} to another place.",
                stacklevel=2,
            )
        _UNWRITTEN.setdefault(path, {})[key] = every[key]
    for cached in (_stored, choices, norm):
        cached.cache_clear()


_UNWRITTEN: dict[Path, dict[str, dict[str, float]]] = {}
"""Times by file and product, where the file could not be written."""


@lru_cache(maxsize=16)
def _stored(path: Path) -> dict[str, dict[str, float]]:
    return _known(path)


def _known(path: Path) -> dict[str, dict[str, float]]:
    return {**_read(path), **_UNWRITTEN.get(path, {})}


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Return the times in a file; none if there is none, or it is not what `keep` writes."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["version"] != _VERSION:
            return {}
        return {
            str(key): {str(name): float(us) for name, us in times.items() if float(us) > 0}
            for key, times in stored["us"].items()
        }
    except UNUSABLE:
        return {}
