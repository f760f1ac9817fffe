"""Attention patterns made of square blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, MaskError, mismatch
from stof_cupy.masks.band import Band
from stof_cupy.masks.check import at_least, check_positions, check_shape, integers
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Blocks
from stof_cupy.masks.sparse_patterns import global_tokens
from stof_cupy.masks.tiles import Int64s

__all__ = ["bigbird", "bigbird_hf", "blocks"]


def bigbird(
    s: int,
    *,
    window_blocks: int = 3,
    global_blocks: int = 2,
    random_blocks: int = 3,
    block: int = 64,
    seed: int = 0,
) -> Pattern:
    """Window, global and random blocks, as in the paper (BigBird, arXiv 2007.14062, section 2).

    The defaults are the paper's base model (its internal transformer construction).

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
    near = Band(shape, "window blocks", size=size, before=around // 2, after=(around + 1) // 2 - 1)
    pattern = near | global_tokens(s, first * size)
    if drawn and shape[0]:
        count = -(-shape[0] // size)
        rows, cols = _draw_blocks(np.zeros((count, 0), np.int64), count, drawn, seed)
        pattern = pattern | Blocks(shape, "random blocks", rows, cols, (size, size))
    label = f"window_blocks={around}, global_blocks={first}, random_blocks={drawn}"
    return pattern._named(f"bigbird({label}, block={size}, seed={seed})")


def bigbird_hf(s: int, *, random_blocks: int = 3, block: int = 64, seed: int = 0) -> Pattern:
    """BigBird as Hugging Face's ``block_sparse`` attention has it.

    The first and the last block are global, and each query block between them sees itself, its two
    neighbours and random blocks that are none of these. Random blocks are drawn here by a generator
    of our own; transformers draws in training mode alone: in evaluation it takes the first block
    for each of them, which is ``random_blocks=0`` but for the weight of that block. It uses full
    attention up to ``(5 + 2 * random_blocks) * block`` tokens; this function does not.

    Parameters
    ----------
    s : int
        Queries and keys; a shorter last block is a block too.
    random_blocks : int
        Distinct blocks each query block draws, fewer where there are no more to draw.
    block : int
        Rows and columns of a block.
    seed : int
        Of ``numpy.random.default_rng``; the same on every machine.

    Raises
    ------
    ArgumentError
        If `random_blocks` is negative or `block` less than 1.

    Examples
    --------
    >>> bigbird_hf(1024).tobsr().ntiles  # 2 rows of 16; 2 of 4 + 3; 12 of 5 + 3
    142
    """
    shape = check_positions((s, s))
    drawn = at_least(0, "random_blocks", random_blocks)
    size = min(at_least(1, "block", block), max(shape[0], 1))
    count = -(-shape[0] // size)
    near = Band(shape, "window blocks", size=size, before=1, after=1)
    end = (count - 1) * size
    inner = Band(
        shape, "inner blocks", query_start=size, query_stop=end, key_start=size, key_stop=end
    )
    pattern = near | ~inner
    if drawn and count > 2:
        middle = np.arange(1, count - 1)
        first, last = np.zeros_like(middle), np.full_like(middle, count - 1)
        taken = np.column_stack([first, middle - 1, middle, middle + 1, last])
        taken[:, 1:][taken[:, 1:] == taken[:, :-1]] = count  # a neighbour that is global
        rows, cols = _draw_blocks(np.sort(taken, axis=1), count, drawn, seed)
        pattern = pattern | Blocks(shape, "random blocks", rows + 1, cols, (size, size))
    return pattern._named(f"bigbird_hf(random_blocks={drawn}, block={size}, seed={seed})")


def _draw_blocks(taken: Int64s, count: int, drawn: int, seed: int) -> tuple[Int64s, Int64s]:
    """Draw columns that are not taken for each row, uniformly and without a square.

    Parameters
    ----------
    taken : int64 array (rows, n)
        Columns each row may not draw, ascending; `count` stands for none.
    count, drawn : int
        Columns there are, and distinct ones to draw in each row, or all that are left.
    seed : int
        Of the generator.

    Returns
    -------
    rows, cols : int64 arrays (m,)
    """
    rng = np.random.default_rng(seed)
    free = count - (taken < count).sum(axis=1)
    columns = np.zeros((len(taken), 0), np.int64)
    for done in range(min(drawn, count)):
        # Rank among the columns that are left; stepping over the others, ascending, makes it a
        # column.
        column = rng.integers(0, np.maximum(free - done, 1))
        for other in taken.T:
            column += column >= other
        column[free <= done] = count
        columns = np.column_stack([columns, column])
        taken = np.sort(np.column_stack([taken, column]), axis=1)
    rows = np.repeat(np.arange(len(columns)), columns.shape[1])
    listed = columns.ravel() < count
    return rows[listed], columns.ravel()[listed]


def blocks(
    shape: tuple[int, int],
    rows: Sequence[int] | NDArray[np.integer],
    cols: Sequence[int] | NDArray[np.integer],
    *,
    block: int | tuple[int, int] = 64,
) -> Pattern:
    """Keep listed blocks whole.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``; the last blocks may stick out.
    rows, cols : integer arrays (n,)
        Block coordinates in units of `block`; a boolean layout's are ``*layout.nonzero()``.
    block : int or tuple of int
        Rows and columns of a block; 64 and its multiples need no bitmaps.

    Raises
    ------
    ArgumentError
        If `block` is less than 1, or a block lies outside of `shape`.
    MaskError, ShapeError
        If `rows` and `cols` have different lengths, or are not 1-D.
    DTypeError
        If they are not integers.

    Examples
    --------
    >>> blocks((128, 256), [0, 1], [3, 0]).tobsr()
    <BsrMask (128, 256): density 0.25; tiles: 2 full, 0 part, 6 empty; 0 bitmaps, 28 bytes>
    >>> layout = np.array([[True, False], [True, True]])
    >>> blocks((256, 128), *layout.nonzero(), block=(128, 64)).tobsr().ntiles
    6
    """
    sizes = check_shape(shape)
    both = block if isinstance(block, tuple) else (block, block)
    if len(both) != 2:
        raise ArgumentError(mismatch("block", repr(block), "an integer, or (rows, columns)"))
    height, width = (
        min(at_least(1, "block", size), max(extent, 1))
        for size, extent in zip(both, sizes, strict=True)
    )
    listed = [integers("rows", rows), integers("cols", cols)]
    if len(listed[0]) != len(listed[1]):
        raise MaskError(
            mismatch("cols", f"{len(listed[1])} blocks", f"{len(listed[0])}, one for each of rows")
        )
    for name, axis, extent, size in zip(
        ("rows", "cols"), listed, sizes, (height, width), strict=True
    ):
        count = -(-extent // size)
        if ((axis < 0) | (axis >= count)).any():
            hint = f"{extent} in blocks of {size}"
            raise ArgumentError(mismatch(name, axis, f"blocks from 0 to {count - 1}", hint))
    shown = height if height == width else f"{height}x{width}"
    label = f"blocks(<{len(listed[0])} of {shown}>)"
    return Blocks(sizes, label, listed[0], listed[1], (height, width))
