"""Masks of layer stacks: who sees whom, as a rule, as ours, and as a dense array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from engine_shapes import Cell
from shapes import BLOCK

from stof_cupy import masks

Rule = Callable[[Any, Any], Any]


def reach(seq: int) -> tuple[int, int]:
    """Return the window and the global tokens of the reference's masks."""
    return (256, 64) if seq >= 1024 else (64, 16)


def scattered(seq: int) -> Any:
    """Return BigBird's random blocks, bool, as the reference draws them."""
    blocks = -(-seq // BLOCK)
    return np.random.default_rng(0).random((blocks, blocks)) < min(1.0, 3.0 / blocks)


def rule(cell: Cell, blocks: Any) -> Rule | None:
    """Return who sees whom, of positions, for arrays of any library; None: everyone everyone.

    `blocks` is `scattered` as such an array.
    """
    window, tokens = reach(cell.seq)
    rules: dict[str, Rule] = {
        "sliding": lambda q, k: abs(q - k) <= window,
        "longformer": lambda q, k: (abs(q - k) <= window) | (q < tokens) | (k < tokens),
        "bigbird": lambda q, k: (
            (abs(q // BLOCK - k // BLOCK) <= 1)
            | (q < 2 * BLOCK)
            | (k < 2 * BLOCK)
            | blocks[q // BLOCK, k // BLOCK]
        ),
    }
    found = rules.get(cell.mask)
    if not cell.stack.causal:
        return found
    return lambda q, k: (q >= k) if found is None else (q >= k) & found(q, k)


def pattern(cell: Cell) -> Any:
    """Return the mask as ours, lowered; None: everyone sees everyone."""
    (window, tokens), s = reach(cell.seq), cell.seq
    made: Any = {
        "full": lambda: None,
        "sliding": lambda: masks.sliding_window(s, window=window),
        "longformer": lambda: masks.longformer(s, window=window, global_tokens=tokens),
        "bigbird": lambda: (
            masks.bigbird(s, random_blocks=0) | masks.blocks((s, s), *scattered(s).nonzero())
        ),
    }[cell.mask]()
    if cell.stack.causal:
        made = masks.causal(s) if made is None else made & masks.causal(s)
    return None if made is None else made.tobsr()


def dense(cell: Cell) -> Any:
    """Return the mask as a bool array (seq, seq) by its rule, or None."""
    found = rule(cell, scattered(cell.seq))
    at = np.arange(cell.seq)
    return None if found is None else found(at[:, None], at[None, :])


def decoder(cell: Cell) -> Cell:
    """Return a cell whose masks are those of the decoder: nobody sees the future."""
    return replace(cell, stack=replace(cell.stack, causal=True))
