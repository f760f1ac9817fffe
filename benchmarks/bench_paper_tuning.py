"""Table 4 and Fig. 13 of the paper: what tuning costs, and where that time goes.

    pytest benchmarks/bench_paper_tuning.py -m gpu --benchmark-json=out.json
    pytest benchmarks/bench_paper_tuning.py -m "not gpu"          small, on the CPU

`bench_tuning`: the paper's models, as engine_stacks.py has them, are tuned by the clock with no
scheme in the cache, under the paper's BigBird mask. ``--heavy`` adds ``tune="full"``, which may
take two minutes a case; ``-k t5`` is one model. Shares are of timing kernels, of making what is
timed, compiling what the cache on disk has not, and the rest: analysis, scheme codes, rewards.
MCFuser and Bolt, which the paper compares with, are not to be had.

`bench_choice`: the time model's choice of attention's kernel on an H100's numbers, for a mask that
it has not seen, and for one that it has; and the lowering of the mask for a kernel.
"""

from __future__ import annotations

from typing import Any

import paper_layers
import paper_masks
import pytest
from engine_stacks import STACKS
from paper_layers import MACHINES, backends
from regret import H100
from shapes import PAPER_CHOICE, PAPER_DIM, PAPER_HEADS, PAPER_STACKS
from timing import note_quantiles

from stof_cupy.fusion.tune import tune
from stof_cupy.masks import BsrMask
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_model import choose

MODELS = [
    backends(backend, model, batch, seq)
    for backend, machine in MACHINES.items()
    for model in STACKS
    for batch, seq in PAPER_STACKS[machine]
]
TILE = (64, 64)


def record(benchmark: Any, backend: str, model: str, batch: int, seq: int, mode: str) -> None:
    """Tune once, and note what it took and gained."""
    place = paper_layers.site(backend, batch, seq, paper_layers.masked(model, seq))
    graph = paper_layers.whole(model, backend)
    tuned = benchmark.pedantic(lambda: tune(graph, place, mode), rounds=1)
    report, spent = tuned.report, place.spent
    outcomes = [piece.outcome for piece in report.pieces if piece.outcome is not None]
    timing = spent.get("timing", 0.0)
    making = spent.get("all", 0.0) - timing
    benchmark.extra_info |= {
        "way": "ours",
        "tuned_s": report.spent,
        "timed": sum(outcome.timed for outcome in outcomes),
        "pruned": sum(outcome.pruned for outcome in outcomes),
        "timing_share": timing / report.spent,
        "making_share": making / report.spent,
        "search_share": 1 - (timing + making) / report.spent,
        "gain": _gain(report.rules_seconds, report.seconds),
    }


def _gain(rules: float | None, tuned: float | None) -> float:
    """Return how many times as fast as by the rules the model runs, which it falls back on."""
    return 1.0 if rules is None or tuned is None else max(rules / tuned, 1.0)


@pytest.mark.parametrize(("backend", "model", "batch", "seq"), MODELS)
def bench_tuning(benchmark: Any, backend: str, model: str, batch: int, seq: int) -> None:
    record(benchmark, backend, model, batch, seq, "fast")


@pytest.mark.parametrize(("backend", "model", "batch", "seq"), MODELS)
def bench_tuning_heavy(benchmark: Any, backend: str, model: str, batch: int, seq: int) -> None:
    record(benchmark, backend, model, batch, seq, "full")


@pytest.mark.parametrize("step", ["choice of a new mask", "choice again", "lowering"])
@pytest.mark.parametrize("seq", PAPER_CHOICE)
@pytest.mark.parametrize("mask", ["paper-causal", "paper-longformer", "paper-bigbird"])
def bench_choice(benchmark: Any, mask: str, seq: int, step: str) -> None:
    lowered = paper_masks.lowered(mask, seq)
    problem = Problem("float16", 1, PAPER_HEADS, PAPER_HEADS, seq, seq, PAPER_DIM, PAPER_DIM)

    form = paper_masks.FORMS[mask]
    arrays = paper_masks.draws(form.kind, seq)

    def fresh() -> tuple[tuple[BsrMask], dict[str, Any]]:
        return (paper_masks.pattern(form, seq, arrays).tobsr(),), {}

    def again() -> tuple[tuple[BsrMask], dict[str, Any]]:
        return (lowered,), {}

    def select(given: BsrMask) -> Any:
        return choose(Case(problem, given, H100))

    def lower(given: BsrMask) -> Any:
        return given.schedule(TILE, layout="accumulator")

    run, setup = {
        "choice of a new mask": (select, fresh),
        "choice again": (select, again),
        "lowering": (lower, fresh),
    }[step]
    run(lowered)
    benchmark.pedantic(run, setup=setup, rounds=10)
    note_quantiles(benchmark)
    benchmark.extra_info["way"] = "ours"
