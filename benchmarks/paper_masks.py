"""The masks of the paper (STOF, arXiv 2506.06095) and of its artifact, each in two definitions.

Table 2 has band and global tokens of 32, the root of 1024, and so do all lengths here. Of BigBird
it says "filling rate 10 %" and no more: here a tenth of the 32x32 blocks, drawn at random. The
artifact times others: sliding is causal with a reach of 64; Longformer has a second group of global
tokens in the middle; BigBird has 102 random cells in each 32x32 block on and next to the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from stof_cupy import masks

REACH = TOKENS = SIDE = 32
CELLS = 102
"""Random cells of an artifact's block, some of them the same: int(0.1 * 32 * 32)."""


@dataclass(frozen=True)
class Form:
    """A mask's kind, as attention_cells.py and the peers know it, and its sizes."""

    kind: str
    reach: int = REACH
    tokens: int = TOKENS


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "paper-causal": Form("causal"),
        "paper-sliding": Form("sliding"),
        "paper-longformer": Form("longformer"),
        "paper-bigbird": Form("bigbird-filled"),
        "artifact-sliding": Form("causal-sliding", reach=64),
        "artifact-longformer": Form("longformer-twice"),
        "artifact-bigbird": Form("bigbird-cells"),
    }
)
"""By name; the artifact's causal is the paper's."""

SPARSITY: Mapping[str, float] = MappingProxyType(
    {
        "paper-causal": 0.500,
        "paper-sliding": 0.938,
        "paper-longformer": 0.888,
        "paper-bigbird": 0.808,
    }
)
"""What Table 2 prints for 1024 tokens."""


@lru_cache(maxsize=2)
def draws(kind: str, s: int) -> dict[str, Any]:
    """Return what a kind looks up: filled blocks, the artifact's cells, or its global tokens."""
    make: dict[str, Callable[[int], Any]] = {
        "longformer-twice": _twice,
        "bigbird-filled": _filled,
        "bigbird-cells": _cells,
    }
    return {kind: make[kind](s)} if kind in make else {}


def _twice(s: int) -> Any:
    return _first_of_halves(np.arange(s), s, TOKENS)


def _first_of_halves(at: Any, s: int, tokens: int) -> Any:
    """Return whether positions are among the first tokens of either half of a sequence."""
    return (at < tokens) | ((at >= s // 2) & (at < s // 2 + tokens))


def _filled(s: int) -> Any:
    blocks = -(-s // SIDE)
    return np.random.default_rng(1).random((blocks, blocks)) < 0.1


def _cells(s: int) -> Any:
    g, cells, blocks = np.random.default_rng(2), np.zeros((s, s), bool), -(-s // SIDE)
    for row in range(blocks):
        for col in range(max(row - 1, 0), min(row + 2, blocks)):
            drawn = g.integers(0, SIDE, (2, CELLS)) + np.array([[row], [col]]) * SIDE
            cells[tuple(drawn[:, (drawn < s).all(0)])] = True
    return cells


def pattern(form: Form, s: int, arrays: Mapping[str, Any]) -> Any:
    """Return a mask in our words; arrays are NumPy's."""
    near = masks.sliding_window(s, window=form.reach)
    first = masks.global_tokens(s, min(form.tokens, s))
    make: dict[str, Callable[[], Any]] = {
        "causal": lambda: masks.causal(s),
        "sliding": lambda: near,
        "causal-sliding": lambda: masks.sliding_window(s, window=form.reach, causal=True),
        "longformer": lambda: near | first,
        "longformer-twice": lambda: near | masks.global_tokens(s, arrays[form.kind].nonzero()[0]),
        "bigbird-filled": lambda: (
            near | first | masks.blocks((s, s), *arrays[form.kind].nonzero(), block=SIDE)
        ),
        "bigbird-cells": lambda: near | first | masks.dense(arrays[form.kind]),
    }
    return make[form.kind]()


def rule(
    kind: str, reach: int, tokens: int, arrays: Mapping[str, Any]
) -> Callable[[Any, Any], Any]:
    """Return who sees whom, of positions: NumPy's and CuPy's arrays, and tensors.

    What can be computed is not looked up, which FlexAttention does slowly.
    """

    def near(q: Any, k: Any) -> Any:
        return abs(q - k) <= reach

    def longformer(q: Any, k: Any) -> Any:
        return near(q, k) | (q < tokens) | (k < tokens)

    def twice(at: Any) -> Any:
        return _first_of_halves(at, len(drawn), tokens)

    drawn: Any = arrays.get(kind)
    rules: dict[str, Callable[[Any, Any], Any]] = {
        "causal": lambda q, k: q >= k,
        "sliding": near,
        "causal-sliding": lambda q, k: (q >= k) & (q - k <= reach),
        "longformer": longformer,
        "longformer-twice": lambda q, k: near(q, k) | twice(q) | twice(k),
        "bigbird-filled": lambda q, k: longformer(q, k) | drawn[q // SIDE, k // SIDE],
        "bigbird-cells": lambda q, k: longformer(q, k) | drawn[q, k],
    }
    return rules[kind]


def dense(name: str, s: int) -> Any:
    """Return a mask by its rule, bool (s, s)."""
    form, at = FORMS[name], np.arange(s)
    keep = rule(form.kind, form.reach, form.tokens, draws(form.kind, s))
    return np.broadcast_to(keep(at[:, None], at[None]), (s, s))


@lru_cache(maxsize=2)
def lowered(name: str, s: int) -> masks.BsrMask:
    """Return a mask's tiles, found equal to its rule element by element."""
    form = FORMS[name]
    mask: masks.BsrMask = pattern(form, s, draws(form.kind, s)).tobsr()
    if not np.array_equal(mask.toarray(), dense(name, s)):
        raise AssertionError(f"{name}: our mask and its definition differ")
    return mask
