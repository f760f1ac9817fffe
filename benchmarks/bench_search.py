"""What does the two-stage search find, and for how many timings?

    make bench-gpu BENCH=search
    pytest benchmarks/bench_search.py -m "not gpu" --results out.json
    stof-cupy report --results DIRECTORY --view search

On NumPy, on CUDA where there is a GPU, and on the kernels for an H100 with times that are made up:
what analysis predicts, wrong by about a tenth for each segment and for each setting.

Every segment of a layer is timed at every setting first. All searches then run on those times, so
that they differ in what they ask for and not in noise; ``loss`` is the time of what a search found
over the best there is, minus one. "no cache" times equal segments of two layers each for itself.
About 20 s a shape on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from regret import H100
from shapes import SEARCH, SEARCH_HIDDEN

from stof_cupy import models
from stof_cupy.fusion import structured
from stof_cupy.fusion.baselines import exhaustive, greedy_rules, random_search
from stof_cupy.fusion.bench import PieceSpace, Site, wall_clock
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import machine_of
from stof_cupy.fusion.ledger import Budget, Ledger, Span
from stof_cupy.fusion.pieces import pieces
from stof_cupy.fusion.search import Outcome, two_stage
from stof_cupy.fusion.tune import MODES

SEEDS = range(10)

BERT = {
    "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_hidden_layers": 2,
    "vocab_size": 100, "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "vocab_size": 100, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip


class Timed:
    """A space whose times were all taken before."""

    def __init__(self, space: PieceSpace, wrong: float = 0.0, seed: int = 0) -> None:
        self._space = space
        self.kinds, self.segments, self.key = space.kinds, space.segments, space.key
        self.settings, self.predicted, self.rules = space.settings, space.predicted, space.rules
        self._times: dict[Any, float] = {}
        rng = np.random.default_rng(seed)
        for span in {space.key(span): span for span in space.segments()}.values():
            off = rng.lognormal(0, wrong)
            for setting in space.settings(span):
                time = space.measure(span, setting) * off * rng.lognormal(0, wrong)
                self._times[space.key(span), setting] = time

    def measure(self, span: Span, setting: Any) -> float:
        return self._times[self.key(span), setting]


class Unshared:
    """Two layers, of which no segment knows of an equal one: what the cache of segments is for."""

    def __init__(self, layer: Timed) -> None:
        self._layer, self._size = layer, len(layer.kinds)
        self.kinds = [*layer.kinds, *layer.kinds]

    def segments(self) -> list[Span]:
        own = self._layer.segments()
        return [*own, *((a + self._size, b + self._size) for a, b in own)]

    def key(self, span: Span) -> str:
        return f"{span}"

    def settings(self, span: Span) -> Any:
        return self._layer.settings(self._there(span))

    def predicted(self, span: Span, setting: Any) -> float:
        return self._layer.predicted(self._there(span), setting)

    def measure(self, span: Span, setting: Any) -> float:
        return self._layer.measure(self._there(span), setting) / 2  # of two layers that of one

    def rules(self) -> list[Span]:
        own = self._layer.rules()
        return [*own, *((a + self._size, b + self._size) for a, b in own)]

    def _there(self, span: Span) -> Span:
        return span[0] % self._size, (span[1] - 1) % self._size + 1


@cache
def layers(family: str, backend: str, batch: int, seq: int) -> list[Timed]:
    """Return a layer with all its segments timed, for each seed; times are made up anew for it."""
    hidden = SEARCH_HIDDEN[backend]
    config = {**(BERT if family == "bert" else LLAMA), "hidden_size": hidden}
    config |= {"num_attention_heads": hidden // 64, "intermediate_size": 4 * hidden}
    config |= {"num_key_value_heads": hidden // 128} if family == "llama" else {}
    graph = structured(models.build(config, models.random_weights(config)).graph)
    facts, device, stopwatch = None, None, wall_clock
    if backend == "model":
        facts, stopwatch = H100, None
    elif backend == "cuda":
        from stof_cupy.graph.cuda_recorder import CudaRecorder
        from stof_cupy.jit import device as gpu

        device = gpu.current()
        facts, stopwatch = gpu.facts(device), CudaRecorder(device).seconds
    kernels = "numpy" if backend == "numpy" else "cuda"
    sizes = {"batch": batch, "seq": seq, "keys": seq, "picked": 0}
    dtype = "float32" if backend == "numpy" else "float16"
    site = Site(kernels, dtype, device, machine_of(facts), sizes, stopwatch)
    chain = Chain(graph)
    (repeated,) = (piece for piece in pieces(chain) if piece.copies > 1)
    space = PieceSpace(chain, repeated, site)
    site.compile(*space.ways())
    if backend == "model":
        return [Timed(space, 0.1, seed) for seed in SEEDS]
    return [Timed(space)] * len(SEEDS)


Search = Callable[[Timed, Sequence[Span], int], Outcome]


def mode(name: str) -> Budget:
    """Return the budget of a word of ``tune=``, with all the time there is."""
    return replace(MODES[name] or Budget(), seconds=math.inf)


SEARCHES: dict[str, Search] = {
    "two stages": lambda space, rules, seed: two_stage(Ledger(space), rules, seed=seed),
    "tune='fast'": lambda space, rules, seed: two_stage(
        Ledger(space, mode("fast")), rules, seed=seed
    ),
    "tune='full'": lambda space, rules, seed: two_stage(
        Ledger(space, mode("full")), rules, seed=seed
    ),
    "no stage 2": lambda space, rules, seed: two_stage(
        Ledger(space), rules, seed=seed, stage2=False
    ),
    "no reward": lambda space, rules, seed: two_stage(
        Ledger(space), rules, seed=seed, reward=False
    ),
    "no pruning": lambda space, rules, seed: two_stage(
        Ledger(space, Budget(prune=1e9, hope=1e9, choices=10**9)), rules, seed=seed
    ),
    "no cache": lambda space, rules, seed: two_stage(
        Ledger(Unshared(space)), Unshared(space).rules(), seed=seed
    ),
    "random, as many": lambda space, rules, seed: random_search(
        Ledger(space), two_stage(Ledger(space), rules, seed=seed).timed, seed=seed
    ),
    "rules alone": lambda space, rules, seed: greedy_rules(Ledger(space), rules),
    "exhaustive": lambda space, rules, seed: exhaustive(Ledger(space)),
}

CASES = [
    pytest.param(
        family, backend, *shape, id=f"{family}-{backend}-{shape[0]}x{shape[1]}",
        marks=pytest.mark.gpu if backend == "cuda" else (),
    )
    for family in ("bert", "llama")
    for backend in SEARCH
    for shape in SEARCH[backend]
]  # fmt: skip
each_case = pytest.mark.parametrize(("family", "backend", "batch", "seq"), CASES)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def outcomes(spaces: Sequence[Timed], name: str) -> dict[str, float]:
    """Return what a search loses, on average and at most, and how much it times."""
    best = [exhaustive(Ledger(space)) for space in spaces]
    found = [SEARCHES[name](x, x.rules(), seed) for seed, x in enumerate(spaces)]
    losses = [x.seconds / y.seconds - 1 for x, y in zip(found, best, strict=True)]
    timed = mean([each.timed for each in found])
    return {
        "loss": mean(losses),
        "most": max(losses),
        "timed": timed,
        "fewer": best[0].timed / timed,
        "us": mean([each.seconds for each in found]) * 1e6,
    }


@pytest.mark.parametrize("way", [f"ours {name}" for name in SEARCHES])
@each_case
def bench_search(benchmark: Any, family: str, backend: str, batch: int, seq: int, way: str) -> None:
    spaces, name = layers(family, backend, batch, seq), way.removeprefix("ours ")
    benchmark.pedantic(lambda: SEARCHES[name](spaces[0], spaces[0].rules(), 0), rounds=3)
    benchmark.extra_info |= {"way": way, **outcomes(spaces, name)}
