"""Layer stacks that bench_engine.py runs: their shapes, weights, masks, and ours as a graph.

No embedding and no head: hidden states go in and come out. Weights are random and the same for all
who run them.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import numpy as np
from engine_graphs import graph
from engine_masks import decoder, dense, pattern, reach, rule, scattered
from engine_shapes import (
    ANCHORS,
    EPS,
    FAR,
    GRID,
    MASKS,
    SIZES,
    STACKS,
    Cell,
    Stack,
    frequencies,
)

from stof_cupy.dtypes import as_dtype

__all__ = [
    "ANCHORS",
    "EPS",
    "FAR",
    "GRID",
    "MASKS",
    "SIZES",
    "STACKS",
    "Cell",
    "Stack",
    "decoder",
    "dense",
    "frequencies",
    "graph",
    "hidden_states",
    "inputs",
    "operations",
    "pattern",
    "reach",
    "rule",
    "scattered",
    "weights",
]

_BLOCK = 2**22 + 77  # numbers that are drawn


def weights(stack: Stack, dtype: str = "bfloat16") -> dict[str, Any]:
    """Return all weights by name, matrices ``(rows, columns)``, activations keeping their size."""
    block = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)

    @cache
    def scaled(mean: float, deviation: float) -> Any:
        return np.resize((mean + deviation * block).astype(as_dtype(dtype)), 2 * _BLOCK)

    def drawn(name: str, shape: tuple[int, ...], mean: float, deviation: float) -> Any:
        # A billion draws take a minute: windows of one block do as well.
        first = zlib.crc32(name.encode()) % _BLOCK
        return np.resize(scaled(mean, deviation)[first : first + _BLOCK], shape)

    shapes: dict[str, tuple[tuple[int, ...], float, float]] = {}
    for layer, sizes in stack.layer_sizes().items():
        for part, (rows, columns) in sizes.items():
            shapes[f"{layer}.{part}.weight"] = (rows, columns), 0.0, columns**-0.5
            if not stack.plain:
                shapes[f"{layer}.{part}.bias"] = (rows,), 0.0, 0.1
        for norm in ("norm1", "norm2", *(["norm3"] if "cross_q" in sizes else [])):
            shapes[f"{layer}.{norm}.weight"] = (stack.hidden,), 1.0, 0.1
            if not stack.plain:
                shapes[f"{layer}.{norm}.bias"] = (stack.hidden,), 0.0, 0.1
    for side in ("encoder", "decoder") if stack.buckets else ():
        shapes[f"{side}_norm.weight"] = (stack.hidden,), 1.0, 0.1
        shapes[f"{side}_bias"] = (stack.buckets, stack.heads), 0.0, 1.0
    made = {name: drawn(name, *each) for name, each in shapes.items()}
    for name, array in made.items() if stack.buckets else ():
        if name.endswith((".qkv.weight", ".cross_q.weight")):  # scores are not scaled later
            array[: stack.hidden] *= as_dtype(dtype).type(stack.head_dim**-0.5)
    return made


def hidden_states(cell: Cell, dtype: str = "bfloat16") -> Any:
    """Return the inputs (batch, seq, hidden)."""
    block = np.random.default_rng(1).standard_normal(2**20 + 33, np.float32)
    return np.resize(block.astype(as_dtype(dtype)), (cell.batch, cell.seq, cell.stack.hidden))


def inputs(cell: Cell, x: Any) -> dict[str, Any]:
    """Return all inputs of our graph, beside hidden states: NumPy's, or CuPy's as they are."""
    found = {"x": x, "mask": pattern(cell)}
    if cell.stack.buckets:
        found["decoder_mask"] = pattern(decoder(cell))
    if cell.stack.rotary:
        at = np.broadcast_to(np.arange(cell.seq, dtype=np.int32), (cell.batch, cell.seq))
        found["positions"] = np.ascontiguousarray(at)
        if not isinstance(x, np.ndarray):
            import cupy

            found["positions"] = cupy.asarray(found["positions"])
    return found


def operations(cell: Cell) -> float:
    """Return the operations of a run: of products, and of attention what masks keep."""
    kept = [_density(cell)]
    if cell.stack.buckets:
        kept += [_density(decoder(cell)), 1.0]
    tokens, s = cell.batch * cell.seq, cell.stack
    attention = 4.0 * tokens * cell.seq * sum(kept) * s.heads * s.head_dim * s.layers
    return s.gemm_flop(tokens) + attention


def _density(cell: Cell) -> float:
    found = dense(cell)
    return 1.0 if found is None else float(found.mean())
