"""What the paper's experiments on fusion run: its models, a BERT layer, and where they run."""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import engine_stacks as stacks
import paper_masks
import pytest
from engine_stacks import STACKS, Stack

from stof_cupy import masks, models
from stof_cupy.fusion import structured
from stof_cupy.fusion.bench import PieceSpace, Site, wall_clock
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import machine_of
from stof_cupy.fusion.kernels import Setting
from stof_cupy.fusion.lower import Lowered, extract, lower
from stof_cupy.fusion.pieces import Piece, pieces
from stof_cupy.graph import Graph

DTYPES = {"numpy": "float32", "cuda": "float16"}
MACHINES = {"numpy": "cpu", "cuda": "gpu"}
MASK = "paper-bigbird"
"""Of whole models, Figs. 11 and 12 and Table 4."""


def backends(*values: Any) -> Any:
    """Return parameters for a backend, marked if it needs a GPU."""
    marks = pytest.mark.gpu if values[0] == "cuda" else ()
    return pytest.param(*values, id="-".join(map(str, values)), marks=marks)


@dataclass(frozen=True)
class Watched(Site):
    """A site that knows how long it took to time, and to make what is timed."""

    spent: MutableMapping[str, float] = field(default_factory=dict)

    def seconds(self, lowered: Lowered) -> float:
        """Return the time of a graph by the clock."""
        start = time.perf_counter()
        took = super().seconds(lowered)
        self.spent["all"] = self.spent.get("all", 0.0) + time.perf_counter() - start
        return took

    def compile(self, *graphs: Lowered, lengths: bool = False) -> None:
        """Compile what the cache on disk has not."""
        start = time.perf_counter()
        super().compile(*graphs, lengths=lengths)
        self.spent["all"] = self.spent.get("all", 0.0) + time.perf_counter() - start

    def watch(self, run: Any) -> float:
        """Time a call, and the timing."""
        start = time.perf_counter()
        took = float(_stopwatch(self.backend)(run))
        self.spent["timing"] = self.spent.get("timing", 0.0) + time.perf_counter() - start
        return took


def _stopwatch(backend: str) -> Any:
    if backend == "numpy":
        return wall_clock
    from stof_cupy.graph.cuda_recorder import CudaRecorder
    from stof_cupy.jit import device

    return CudaRecorder(device.current()).seconds


def site(backend: str, batch: int, seq: int, inputs: Mapping[str, Any]) -> Watched:
    """Return where a graph is timed by the clock."""
    facts = number = None
    if backend == "cuda":
        from stof_cupy.jit import device

        number = device.current()
        facts = device.facts(number)
    sizes = {"batch": batch, "seq": seq}
    spent: dict[str, float] = {}

    def watch(run: Any) -> float:
        return made.watch(run)

    made = Watched(
        backend, DTYPES[backend], number, machine_of(facts), sizes, watch, inputs, {}, spent
    )
    return made


def stack(model: str, backend: str) -> Stack:
    """Return the shape of one of the paper's models, as engine_stacks.py has it; small on NumPy."""
    full = STACKS[model]
    if backend == "cuda":
        return full
    shared = full.heads // full.kv_heads
    small = {"hidden": 128, "heads": 2, "kv_heads": max(2 // shared, 1), "inner": 512}
    return replace(full, layers=full.layers // 6, **small)


@lru_cache(maxsize=1)
def whole(model: str, backend: str) -> Graph:
    """Return a model of random weights, after the rewrites that say what the operators are."""
    shape = stack(model, backend)
    return structured(stacks.graph(shape, stacks.weights(shape, DTYPES[backend])))


def masked(model: str, seq: int) -> dict[str, Any]:
    """Return the masks of a model: the paper's, and of decoders what is not in the future."""
    mask = paper_masks.lowered(MASK, seq)
    past = mask & masks.causal(seq).tobsr()
    return {"mask": past if STACKS[model].causal else mask, "decoder_mask": past}


@lru_cache(maxsize=1)
def graph(layers: int, hidden: int) -> Graph:
    """Return a BERT encoder of random weights, after the same rewrites."""
    config = {
        "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden, "vocab_size": 100, "max_position_embeddings": 4096,
        "type_vocab_size": 2,
    }  # fmt: skip
    return structured(models.build(config, models.random_weights(config)).graph)


def _layer(hidden: int) -> tuple[Chain, Piece]:
    chain = Chain(graph(2, hidden))
    (repeated,) = (piece for piece in pieces(chain) if piece.copies > 1)
    return chain, repeated


def layer_space(hidden: int, place: Site) -> PieceSpace:
    """Return the segments of a layer."""
    return PieceSpace(*_layer(hidden), place)


def one_by_one(
    hidden: int, span: tuple[int, int], settings: Sequence[Setting], backend: str
) -> Lowered:
    """Return a segment of a layer as one graph of its operators, each at a setting of its own."""
    chain, piece = _layer(hidden)
    part = Chain(extract(chain, *(piece.start + at for at in span)))
    return lower(part, [(at, at + 1) for at in range(len(part))], settings, backend)
