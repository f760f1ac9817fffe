"""Attention on a GPU, fuzzed: thousands of random problems beside the float64 oracle.

    python -m tests.ops.fuzz_attention                      5,000 cases from seed 0 on
    python -m tests.ops.fuzz_attention --seed 123           one case, as a failure names it
    python -m tests.ops.fuzz_attention --emulate numpy      without a GPU: the cases themselves
    python -m tests.ops.fuzz_attention --emulate kernels    and the kernels compiled for the CPU

A case is drawn for one of at most 200 instances of the block-wise, row-wise and Hopper kernels,
which are compiled first, and runs on it and as `attention` chooses. Each process has a CUDA context
of its own, so a fault or a hang is one case's. Where OUT is set, ``$OUT/fuzz_attention.json`` has
every outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from stof_cupy import env
from stof_cupy.errors import StofError
from stof_cupy.jit.mask_kernels import MASK_BUILDS, mask_build, mask_order
from stof_cupy.jit.spec import KernelSpec
from tests.ops import forced, fuzz_case
from tests.ops.fuzz_check import Kernels, Outcome, run_case
from tests.ops.workers import FatalError, Lost, results

MOST_KERNELS = 320
SHOWN = 12


class Families(NamedTuple):
    """Whose cases are drawn."""

    hopper: bool = True
    others: bool = True

    def instances(self) -> list[forced.Instance]:
        """Return theirs."""
        every = forced.instances(MOST_KERNELS)
        return [x for x in every if (self.hopper if isinstance(x, forced.Hopper) else self.others)]


ALL = Families()


@cache
def ready(arch: str, families: Families = ALL) -> list[KernelSpec]:
    """Return the kernels that are compiled beforehand for an architecture."""
    specs = forced.kernels(families.instances())
    specs += [mask_build(tile, order) for tile, order in MASK_BUILDS] + [mask_order()]
    return [spec for spec in specs if spec.supports(arch)]


@cache
def kernels(emulate: str | None, families: Families = ALL) -> Kernels:
    """Return what this process may launch."""
    if emulate is not None:
        return Kernels(on_host=emulate == "kernels")
    from stof_cupy.jit import device

    facts = device.facts()
    return Kernels(facts, frozenset(ready(facts.arch, families)))


def compile_one(job: tuple[KernelSpec, str]) -> str:
    """Compile a kernel; return why that failed, or nothing."""
    from stof_cupy.jit.cache import Store

    spec, arch = job
    try:
        Store(env.cache_dir("kernels")).get(spec, arch)
    except StofError as error:
        return f"{spec.name}: {str(error)[:300]}"
    return ""


def drawn(seed: int, emulate: str | None, families: Families = ALL) -> fuzz_case.Case:
    """Return the case of a seed, as this machine can run it."""
    chosen = families.instances()
    if emulate == "kernels":  # a compiler for CPUs takes minutes for large tiles
        chosen = [each for each in chosen if each.head_dim <= 64]
        return fuzz_case.draw(seed, chosen, heavy=0, largest=3e4)
    return fuzz_case.draw(seed, chosen)


def run_one(job: tuple[int, str | None, Families]) -> tuple[str, list[Outcome], list[str]]:
    """Run the case of a seed; return what it is, what came of it, and the kernels loaded so far."""
    seed, emulate, families = job
    case = drawn(seed, emulate, families)
    title = f"{case.instance.name} {case}"
    try:
        outcomes = run_case(case, kernels(emulate, families))
        if emulate is None:
            import cupy

            cupy.cuda.Device().synchronize()
    except Exception as error:  # of CUDA, which leaves a context of no use, or the program's own
        raise FatalError((title, [Outcome("?", "error", repr(error)[:400])], [])) from error
    from stof_cupy.jit.launch import loaded

    return title, outcomes, loaded()


# ---------------------------------------------------------------- the program


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--cases", type=int, default=5000)
    made.add_argument("--first", type=int, default=0, help="the first seed")
    made.add_argument("--seed", type=int, help="this seed alone")
    made.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1))
    made.add_argument("--limit", type=float, default=240, help="seconds to begin cases in")
    made.add_argument("--each", type=float, default=60, help="seconds a case may take")
    made.add_argument(
        "--hopper",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the kernel for Hopper too; racecheck does not follow the mbarriers that order it",
    )
    made.add_argument(
        "--others",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the block-wise and row-wise kernels too",
    )
    made.add_argument("--emulate", choices=("numpy", "kernels"), help="no GPU")
    return made


def compile_all(arch: str, processes: int, families: Families = ALL) -> list[str]:
    """Compile what cases need, in parallel; return what failed."""
    start, specs = time.monotonic(), ready(arch, families)
    jobs = [(spec, arch) for spec in sorted(specs, key=lambda s: -s.smem_bytes)]
    made = results(compile_one, jobs, processes=processes, each_s=120, total_s=200)
    failed = [str(result) for _, result in made if result]
    print(
        f"{len(specs)} kernels compiled in {time.monotonic() - start:.0f} s, {len(failed)} failed"
    )
    return failed


def run_all(seeds: list[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the cases of seeds; return a record of each, by seed."""
    families = Families(options.hopper, options.others)
    records, jobs = [], [(seed, options.emulate, families) for seed in seeds]
    limits = {"each_s": options.each, "total_s": options.limit}
    for (seed, *_), result in results(run_one, jobs, processes=options.processes, **limits):
        if isinstance(result, Lost):
            result = "", [Outcome("?", "error", result.why)], []
        title, outcomes, loaded = result
        if not title:
            case = drawn(seed, options.emulate, families)
            title = f"{case.instance.name} {case}"
        records.append({"seed": seed, "case": title, "outcomes": outcomes, "loaded": loaded})
    return sorted(records, key=lambda record: record["seed"])


def failures(records: list[dict[str, Any]]) -> list[str]:
    """Return a line for each failure."""
    return [
        f"--seed {record['seed']} [{one.way}] {one.verdict}: {one.reason}\n    {record['case']}"
        for record in records
        for one in record["outcomes"]
        if one.verdict in ("wrong", "error")
    ]


def summary(records: list[dict[str, Any]]) -> list[str]:
    """Return a line for each way: runs, refusals and the commonest of their reasons."""
    lines = []
    for way in sorted({one.way for record in records for one in record["outcomes"]}):
        mine = [one for record in records for one in record["outcomes"] if one.way == way]
        verdicts = Counter(one.verdict for one in mine)
        why = Counter(
            one.reason.partition(": got")[0][:50] for one in mine if one.verdict == "refused"
        )
        counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
        common = "; ".join(f"{n} {reason}" for reason, n in why.most_common(4))
        lines.append(f"  {way:17} {counts}{f' ({common})' if common else ''}")
    return lines


def main() -> int:
    options = parser().parse_args()
    failed: list[str] = []
    families = Families(options.hopper, options.others)
    if options.emulate is None:
        from stof_cupy.jit import device, nvrtc

        facts = device.facts()
        print(facts.name, f"sm_{facts.arch}", "NVRTC", nvrtc.load().version)
        failed = compile_all(facts.arch, options.processes, families)
    seeds = list(range(options.first, options.first + options.cases))
    seeds = seeds if options.seed is None else [options.seed]
    start = time.monotonic()
    records = run_all(seeds, options)
    ran = sum(any(one.verdict == "ok" for one in record["outcomes"]) for record in records)
    loaded = {name for record in records for name in record.pop("loaded")}
    print(
        f"seeds {seeds[0]} to {seeds[-1]}: {len(records)} of {len(seeds)} cases, {ran} of them "
        f"computed, in {time.monotonic() - start:.0f} s; {len(loaded)} kernels loaded"
    )
    if options.emulate is None and (
        late := loaded - {spec.name for spec in ready(facts.arch, families)}
    ):
        print(f"{len(late)} not compiled beforehand: {', '.join(sorted(late))[:300]}")
    print("\n".join(summary(records)))
    wrong = failures(records)
    print(f"{len(wrong)} failures" + (f", the first {SHOWN}:" if len(wrong) > SHOWN else ""))
    print("\n".join([*failed[:SHOWN], *wrong[:SHOWN]]))
    if out := os.environ.get("OUT"):
        cases = [{**each, "outcomes": [vars(one) for one in each["outcomes"]]} for each in records]
        result = {"seeds": seeds, "kernels": sorted(loaded), "failed": failed, "cases": cases}
        (Path(out) / "fuzz_attention.json").write_text(json.dumps(result) + "\n")
    return 1 if wrong or failed or len(records) < len(seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
