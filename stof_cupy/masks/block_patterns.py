"""Attention patterns made of square blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, MaskError, mismatch
from stof_cupy.masks.check import at_least, check_positions, check_shape, integers
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Blocks, Intervals
from stof_cupy.masks.patterns import global_tokens
from stof_cupy.masks.tiles import Int64s

__all__ = ["bigbird", "blocks"]


def bigbird(
    s: int,
    *,
    window_blocks: int = 3,
    global_blocks: int = 2,
    random_blocks: int = 3,
    block: int = 64,
    seed: int = 0,
) -> Pattern:
    """Window, global and random blocks (BigBird, arXiv 2007.14062).

    Parameters
    ----------
    s : int
        Queries and keys.
    window_blocks : int
        Blocks a query block sees around itself, itself included; odd, or 0 for none.
    global_blocks : int
        Blocks at the start that see every key and are seen by every query.
    random_blocks : int
        Distinct key blocks each query block draws from all of them; they may coincide with window
        and global blocks.
    block : int
        Rows and columns of a block.
    seed : int
        Of ``numpy.random.default_rng``; the same on every machine.

    Raises
    ------
    ArgumentError
        If a count or `seed` is negative, `window_blocks` even, or `block` less than 1.

    Examples
    --------
    >>> bigbird(1024, random_blocks=0).tobsr().ntiles
    100
    """
    shape, seed = check_positions((s, s)), at_least(0, "seed", seed)
    around = at_least(0, "window_blocks", window_blocks)
    if around and around % 2 == 0:
        raise ArgumentError(
            mismatch(
                "window_blocks",
                around,
                "an odd number, or 0",
                "the query's own block is the middle",
            )
        )
    first, drawn = (
        at_least(0, "global_blocks", global_blocks),
        at_least(0, "random_blocks", random_blocks),
    )
    size = min(at_least(1, "block", block), max(shape[0], 1))
    around = min(around, 2 * shape[0] + 1)
    own = np.arange(shape[0]) // size
    start, stop = own - around // 2, own + (around + 1) // 2
    near = Intervals(shape, "window blocks", start * size, np.minimum(stop * size, shape[1]))
    pattern = near | global_tokens(s, min(first * size, shape[0]))
    if drawn and shape[0]:
        rows, cols = _draw_blocks(-(-shape[0] // size), drawn, seed)
        pattern = pattern | Blocks(shape, "random blocks", rows, cols, size)
    label = f"window_blocks={around}, global_blocks={first}, random_blocks={drawn}"
    return pattern._named(f"bigbird({label}, block={size}, seed={seed})")


def _draw_blocks(count: int, drawn: int, seed: int) -> tuple[Int64s, Int64s]:
    """Draw for each of `count` rows `drawn` distinct columns, uniformly and without a square."""
    rng = np.random.default_rng(seed)
    drawn = min(drawn, count)
    cols = np.zeros((count, 0), np.int64)
    for done in range(drawn):
        # Rank among the columns not drawn yet; stepping over the drawn ones, ascending, makes it a
        # column.
        column = rng.integers(0, count - done, count)
        for earlier in cols.T:
            column += column >= earlier
        cols = np.sort(np.column_stack([cols, column]), axis=1)
    return np.repeat(np.arange(count), drawn), cols.ravel()


def blocks(
    shape: tuple[int, int],
    rows: Sequence[int] | NDArray[np.integer],
    cols: Sequence[int] | NDArray[np.integer],
    *,
    block: int = 64,
) -> Pattern:
    """Keep listed square blocks whole.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``; the last blocks may stick out.
    rows, cols : integer arrays (n,)
        Block coordinates in units of `block`.
    block : int
        Rows and columns of a block; 64 and its multiples need no bitmaps.

    Raises
    ------
    ArgumentError
        If `block` is less than 1, or a block lies outside of `shape`.
    MaskError
        If `rows` and `cols` have different lengths.
    DTypeError
        If they are not integers.

    Examples
    --------
    >>> blocks((128, 256), [0, 1], [3, 0]).tobsr()
    <BsrMask (128, 256): density 0.25, 2 of 8 tiles (2 full, 0 part, 0 bitmaps)>
    """
    sizes = check_shape(shape)
    size = min(at_least(1, "block", block), max(*sizes, 1))
    listed = [integers("rows", rows), integers("cols", cols)]
    if len(listed[0]) != len(listed[1]):
        raise MaskError(
            mismatch("cols", f"{len(listed[1])} blocks", f"{len(listed[0])}, one for each of rows")
        )
    for name, axis, extent in zip(("rows", "cols"), listed, sizes, strict=True):
        count = -(-extent // size)
        if ((axis < 0) | (axis >= count)).any():
            hint = f"{extent} in blocks of {size}"
            raise ArgumentError(mismatch(name, axis, f"blocks from 0 to {count - 1}", hint))
    return Blocks(sizes, f"blocks(<{len(listed[0])} of {size}>)", listed[0], listed[1], size)
