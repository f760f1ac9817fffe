"""The bits of a tile in the order in which tensor cores leave the scores in registers.

``mma.m16n8k16`` and ``wgmma.m64nNk16`` agree: a warp owns 16 rows of a tile and all its columns,
and lane ``4 * g + q`` of it holds rows ``g`` and ``g + 8``, columns ``8 * j + 2 * q`` and the next,
for every ``j``. The element at row ``16 * warp + 8 * r + g``, column ``8 * j + 2 * q + e`` of an
``m`` x ``n`` tile is bit ``r * n / 4 + 2 * j + e`` of that lane, least significant first, in 32-bit
words. With ``n = 128`` a lane has one word per row.

A lane then loads all bits of its scores at once, and tests each at a position known when the kernel
is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks.bitmap import Words, unpack_bits

__all__ = ["GROUP", "LIMIT", "accumulator_words", "check_tile", "unneeded_halves"]

GROUP = 8
"""Rows and columns of the inner tiles that larger tiles are made of."""

LIMIT = 256
"""The most rows or columns of a tile: N of one ``wgmma``."""

_WARP_ROWS = 16
_CHUNK = 1 << 22  # bits permuted at a time, a byte each


def check_tile(tile: Any) -> tuple[int, int]:
    """Return a tile's rows and columns as two Python ints.

    Raises
    ------
    ArgumentError
        Unless rows are a multiple of 16 and columns one of 8, from 1 to 256 each.
    """
    sizes = tuple(tile) if isinstance(tile, tuple | list) else ()
    if len(sizes) != 2 or not all(
        isinstance(size, int | np.integer) and 0 < size <= LIMIT and size % step == 0
        for size, step in zip(sizes, (_WARP_ROWS, GROUP), strict=True)
    ):
        expected = f"(rows, columns), multiples of {_WARP_ROWS} and {GROUP}, at most {LIMIT}"
        raise ArgumentError(mismatch("tile", tile, expected))
    return int(sizes[0]), int(sizes[1])


def accumulator_words(bitmaps: Words) -> NDArray[np.uint32]:
    """Permute bitmaps of 8x8 words into accumulator order.

    Parameters
    ----------
    bitmaps : uint64 array (count, n / 8, m / 8)
        Word ``[j, i]`` is the inner tile at row block ``i``, column block ``j``; its element
        ``(r, c)`` is bit ``r * 8 + c``.

    Returns
    -------
    uint32 array (count, m / 16, 32, words)
        The ``n / 2`` bits of each warp and lane, padded with zeros to whole words.

    Examples
    --------
    >>> bitmaps = np.zeros((1, 16, 8), np.uint64)  # 64 x 128
    >>> bitmaps[0, 1, 0] = 1 << 10  # element (1, 10): warp 0, lane 4 * 1 + 1, bit 2
    >>> words = accumulator_words(bitmaps)
    >>> words.shape, words[0, 0, 5]
    ((1, 4, 32, 2), array([4, 0], dtype=uint32))
    """
    count, across, down = bitmaps.shape
    bits = 4 * across
    words = -(-bits // 32)
    result = np.zeros((count, down // 2, 32, words), np.uint32)
    step = max(1, _CHUNK // (across * down * 64))
    for at in range(0, count, step):
        part = unpack_bits(np.ascontiguousarray(bitmaps[at : at + step]))
        # tile, j, warp, r | g, q, e  ->  tile, warp, g, q | r, j, e
        lanes = part.reshape(-1, across, down // 2, 2, 8, 4, 2).transpose(0, 2, 4, 5, 3, 1, 6)
        padded = np.zeros((len(part), down // 2, 32, words * 32), bool)
        padded[..., :bits] = lanes.reshape(len(part), down // 2, 32, bits)
        packed = np.packbits(padded, axis=-1, bitorder="little")
        result[at : at + step] = packed.view("<u4")
    return result


def unneeded_halves(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return which halves of tiles of 128 keys are empty for 64 rows each.

    Parameters
    ----------
    words : uint32 array (count, m / 16, 32, 2)
        Of `accumulator_words`; m a multiple of 64.

    Returns
    -------
    int64 array (count,)
        Bit ``2 * g + h`` is 1 if rows ``64 * g`` to ``64 * g + 63`` have no bit in half ``h``.

    Examples
    --------
    >>> tile = np.zeros((1, 16, 16), np.uint64)
    >>> tile[0, 8:, 0] = 1  # in the first of 128 rows, right half
    >>> unneeded_halves(accumulator_words(tile))
    array([13])
    """
    groups = words.shape[1] // 4
    kept = np.bitwise_or.reduce(words.reshape(len(words), groups, 4 * 32 * 2), axis=-1)
    both = np.stack([kept & 0xFFFF, kept >> 16], axis=-1)  # a word has half of a lane's columns
    empty: NDArray[np.int64] = (both == 0).reshape(len(words), 2 * groups) @ (
        1 << np.arange(2 * groups, dtype=np.int64)
    )
    return empty
