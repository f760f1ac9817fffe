"""What does the two-stage search find, and for how many timings?

    pytest benchmarks/bench_search.py --benchmark-json=out.json
    pytest benchmarks/bench_search.py -s -k table       prints the table alone

On NumPy, and on CUDA where there is a GPU. Every segment of an encoder layer is timed at every
setting first. All searches then run on those times, so that they differ in what they ask for and
not in noise; ``loss`` is the time of what a search found over the best there is, minus one. "no
cache" times equal segments of two layers each for itself. About 20 s a shape on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from stof_cupy import models
from stof_cupy.fusion import structured
from stof_cupy.fusion.baselines import exhaustive, greedy_rules, random_search
from stof_cupy.fusion.bench import PieceSpace, Site, wall_clock
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import machine_of
from stof_cupy.fusion.ledger import Budget, Ledger, Span
from stof_cupy.fusion.pieces import pieces
from stof_cupy.fusion.search import Outcome, two_stage

SHAPES = {"numpy": ((1, 128), (4, 128)), "cuda": ((1, 128), (8, 512))}
HIDDEN = {"numpy": 256, "cuda": 768}
SEEDS = range(10)


class Timed:
    """A space whose times were all taken before."""

    def __init__(self, space: PieceSpace) -> None:
        self._space = space
        self.kinds, self.segments, self.key = space.kinds, space.segments, space.key
        self.settings, self.predicted, self.rules = space.settings, space.predicted, space.rules
        self._times = {
            (space.key(span), setting): space.measure(span, setting)
            for span in space.segments()
            for setting in space.settings(span)
        }

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
def layer(backend: str, batch: int, seq: int) -> Timed:
    """Return an encoder layer with all its segments timed."""
    hidden = HIDDEN[backend]
    config = {
        "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "num_hidden_layers": 2, "hidden_size": hidden, "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden, "vocab_size": 100, "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }  # fmt: skip
    graph = structured(models.build(config, models.random_weights(config)).graph)
    facts, device, stopwatch = None, None, wall_clock
    if backend == "cuda":
        from stof_cupy.graph.cuda_recorder import CudaRecorder
        from stof_cupy.jit import device as gpu

        device = gpu.current()
        facts, stopwatch = gpu.facts(device), CudaRecorder(device).seconds
    dtype = "float32" if backend == "numpy" else "float16"
    sizes = {"batch": batch, "seq": seq}
    site = Site(backend, dtype, device, machine_of(facts), sizes, stopwatch)
    chain = Chain(graph)
    (repeated,) = (piece for piece in pieces(chain) if piece.copies > 1)
    space = PieceSpace(chain, repeated, site)
    site.compile(*space.every())
    return Timed(space)


Search = Callable[[Timed, Sequence[Span], int], Outcome]

SEARCHES: dict[str, Search] = {
    "two stages": lambda space, rules, seed: two_stage(Ledger(space), rules, seed=seed),
    "no stage 2": lambda space, rules, seed: two_stage(
        Ledger(space), rules, seed=seed, stage2=False
    ),
    "no reward": lambda space, rules, seed: two_stage(
        Ledger(space), rules, seed=seed, reward=False
    ),
    "no pruning": lambda space, rules, seed: two_stage(
        Ledger(space, Budget(prune=1e9, hope=1e9)), rules, seed=seed
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
        backend, *shape, id=f"{backend}-{shape[0]}x{shape[1]}",
        marks=pytest.mark.gpu if backend == "cuda" else (),
    )
    for backend in SHAPES
    for shape in SHAPES[backend]
]  # fmt: skip


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(("backend", "batch", "seq"), CASES)
def bench_search(benchmark: Any, backend: str, batch: int, seq: int, name: str) -> None:
    space = layer(backend, batch, seq)
    best = exhaustive(Ledger(space))
    found = [SEARCHES[name](space, space.rules(), seed) for seed in SEEDS]
    benchmark.pedantic(lambda: SEARCHES[name](space, space.rules(), 0), rounds=3)
    benchmark.extra_info |= {
        "loss": mean([each.seconds / best.seconds - 1 for each in found]),
        "timed": mean([each.timed for each in found]),
        "us": mean([each.seconds for each in found]) * 1e6,
    }


@pytest.mark.parametrize(("backend", "batch", "seq"), CASES)
def bench_table(backend: str, batch: int, seq: int) -> None:
    space = layer(backend, batch, seq)
    best = exhaustive(Ledger(space))
    print(f"\n{backend}, {batch} x {seq}: {best.seconds * 1e6:.0f} us at best, {best.scheme}")
    for name, search in SEARCHES.items():
        found = [search(space, space.rules(), seed) for seed in SEEDS]
        loss = mean([each.seconds / best.seconds - 1 for each in found])
        print(f"  {name:16} loss {loss:6.2%}  timed {mean([each.timed for each in found]):6.1f}")
