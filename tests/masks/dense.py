"""Definitions over all pairs of positions, which patterns are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stof_cupy.masks import Pattern
from stof_cupy.masks.runs import EMPTY, FULL

SIZES = (0, 1, 7, 63, 64, 65, 127, 129, 200, 1000)
SHAPES = (
    *((s, s) for s in (0, 1, 7, 63, 64, 65, 127, 129, 200)),
    *((1000, sk) for sk in (0, 1, 7, 63, 64, 65, 127, 129, 1000)),
    *((sq, 300) for sq in (0, 1, 64, 130)),
)
ALIGN = ("top-left", "bottom-right")
Predicate = Callable[[np.ndarray, np.ndarray], np.ndarray]


def dense(sq: int, sk: int, predicate: Predicate, align: str = "top-left") -> np.ndarray:
    """Ask `predicate` for all positions; those of queries are aligned with those of keys."""
    shift = sk - sq if align == "bottom-right" else 0
    q, k = np.arange(sq)[:, None] + shift, np.arange(sk)[None, :]
    return np.broadcast_to(predicate(q, k), (sq, sk)).astype(bool)


def aligned(sq: int, sk: int, align: str) -> dict[str, Any]:
    """Arguments of a pattern of this shape; a square one takes none."""
    return {"sk": sk, "align": align} if sq != sk else {}


def random_dense(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Elements that make empty, full and part tiles and blocks."""
    rng = np.random.default_rng(seed)
    kind = np.kron(rng.integers(0, 4, (5, 5)), np.ones((64, 64), int))[: shape[0], : shape[1]]
    noise = rng.random(shape) < 0.4
    stripes = np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % 64 < 9
    return np.choose(kind, (False, True, stripes, noise)).astype(bool)


def check(pattern: Pattern, expected: np.ndarray) -> None:
    """The lowered mask is exactly `expected` and canonical, and so is its complement."""
    for made, wanted in ((pattern, expected), (~pattern, ~expected)):
        mask = made.tobsr()
        mask.check_format()
        np.testing.assert_array_equal(mask.toarray(), wanted)
        assert mask.nnz == made.nnz == wanted.sum()
        assert mask.shape == made.shape == wanted.shape
    check_states(pattern, expected)


def check_states(pattern: Pattern, expected: np.ndarray) -> None:
    """A tile claimed to be empty or full before its elements are built is just that."""
    rows, cols = pattern.runs.grid
    claimed = pattern.runs.at(np.arange(rows * cols))
    for key in np.flatnonzero((claimed == EMPTY) | (claimed == FULL)):
        i, j = divmod(key, cols)
        tile = expected[i * 64 : i * 64 + 64, j * 64 : j * 64 + 64]
        assert tile.all() if claimed[key] == FULL else not tile.any()
