"""Figs. 3, 4 and 12 of the paper: what fusion is worth, segment by segment and in a whole model.

    pytest benchmarks/bench_paper_fusion.py -m gpu --benchmark-json=out.json
    pytest benchmarks/bench_paper_fusion.py -m "not gpu"          small, on the CPU

`bench_segment`: operators of a BERT layer as one segment, and one by one in one graph, everything
at its best setting, by width, batch and length; the worst stands beside the best (Fig. 4). A
product's bias and activation are part of it either way that our kernels have.

`bench_ablation`: the paper's models, as engine_stacks.py has them, under its BigBird mask; of
decoders what of it is not in the future. "fusion alone" computes attention over all keys, without a
mask: less than any masked dense attention would take. "attention alone" runs every operator by
itself. A time is that of replays of a CUDA graph, or the host's on NumPy. Runs on several GPUs that
add to one file take a model each; ``-k "ablation and t5"`` is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import paper_layers
import pytest
from engine_stacks import STACKS
from paper_layers import MACHINES, backends
from shapes import PAPER_HIDDEN, PAPER_STACKS

from stof_cupy.fusion.bench import PieceSpace, Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.kernels import Setting
from stof_cupy.fusion.lower import lower
from stof_cupy.fusion.tune import tune

TOGETHER = ("model",)
ROUNDS = 5
SEGMENTS = {
    "gemm+layer_norm": ("gemm", "add", "layer_norm"),
    "gemm+gelu": ("gemm", "gelu"),
    "add+layer_norm": ("add", "layer_norm"),
    "gemm+gelu+gemm": ("gemm", "gelu", "gemm"),
}
"""Operators in a row; the last of a kind in a layer is taken: the wider of two."""

CASES = [
    backends(backend, hidden, batch, seq, segment, way)
    for backend, machine in MACHINES.items()
    for hidden in PAPER_HIDDEN[machine]
    for batch, seq in PAPER_STACKS[machine]
    for segment in SEGMENTS
    for way in ("ours fused", "ours detached")
]

MODELS = [
    backends(backend, model, batch, seq, way)
    for backend, machine in MACHINES.items()
    for model in STACKS
    for batch, seq in PAPER_STACKS[machine]
    for way in ("ours", "ours, attention alone", "ours, fusion alone", "ours, neither")
]


def record(benchmark: Any, measure: Callable[[], float], way: str) -> None:
    """Note what measurements say; the benchmark's own clock times the measuring."""
    seconds: list[float] = []
    benchmark.pedantic(lambda: seconds.append(measure()), rounds=ROUNDS)
    if not np.isfinite(seconds).all():
        pytest.skip(f"{way}: it does not run")
    p20, p50, p80 = (float(x) for x in np.quantile(seconds, (0.2, 0.5, 0.8)) * 1e3)
    benchmark.extra_info |= {
        **{"way": way, "device_p20_ms": p20, "device_p50_ms": p50, "device_p80_ms": p80},
        "device_rounds": ROUNDS,
    }


def span_of(space: PieceSpace, names: tuple[str, ...]) -> tuple[int, int] | None:
    """Return the last segment of a layer that is made of such operators, if there is a kernel."""
    ops = [space.names((at, at + 1)) for at in range(len(space.kinds))]
    found = [s for s in space.segments() if tuple(ops[slice(*s)]) == names]
    return found[-1] if found else None


@lru_cache(maxsize=1)
def layer(backend: str, hidden: int, batch: int, seq: int) -> tuple[PieceSpace, Site]:
    """Return the segments of a layer, whose kernels are there: many are compiled at a time."""
    place = paper_layers.site(backend, batch, seq, {})
    space = paper_layers.layer_space(hidden, place)
    place.compile(*space.ways())
    return space, place


def timed(space: PieceSpace, span: tuple[int, int]) -> dict[Setting, float]:
    """Return the times of a segment by setting, the best first."""
    every = {setting: space.measure(span, setting) for setting in space.settings(span)}
    return dict(sorted(every.items(), key=lambda item: item[1]))


@pytest.mark.parametrize(("backend", "hidden", "batch", "seq", "segment", "way"), CASES)
def bench_segment(
    benchmark: Any, backend: str, hidden: int, batch: int, seq: int, segment: str, way: str
) -> None:
    space, place = layer(backend, hidden, batch, seq)
    span = span_of(space, SEGMENTS[segment])
    if span is None:
        pytest.skip(f"{backend} has no kernel for {segment} at {hidden}")
    if way == "ours detached":
        best = [next(iter(timed(space, (at, at + 1)))) for at in range(*span)]
        alone = paper_layers.one_by_one(hidden, span, best, backend)
        place.compile(alone)
        record(benchmark, lambda: place.seconds(alone), way)
        return
    every = timed(space, span)
    setting = next(iter(every))
    record(benchmark, lambda: space.measure(span, setting), way)
    benchmark.extra_info |= {
        "settings": len(every),
        "setting": ", ".join(f"{name} {value}" for name, value in setting),
        "worst_over_best": max(every.values()) / every[setting],
    }


@pytest.mark.parametrize(("backend", "model", "batch", "seq", "way"), MODELS)
def bench_ablation(
    benchmark: Any, backend: str, model: str, batch: int, seq: int, way: str
) -> None:
    sparse = way in ("ours", "ours, attention alone")
    place = paper_layers.site(
        backend, batch, seq, paper_layers.masked(model, seq) if sparse else {}
    )
    graph = paper_layers.whole(model, backend)
    if way in ("ours", "ours, fusion alone"):
        lowered = tune(graph, place, "fast").lowered
    else:
        chain = Chain(graph)
        singles = [(at, at + 1) for at in range(len(chain))]
        lowered = lower(chain, singles, [()] * len(singles), backend)
        place.compile(lowered)
    record(benchmark, lambda: place.seconds(lowered), way)
