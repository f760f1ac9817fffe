"""The bit order of a 64x64 mask tile, stated here and mirrored by ``cuda/mask/bitmap.cuh`` alone.

A tile takes 64 words of 64 bits (STOF, arXiv 2506.06095, section 4.2.1). A word is one 8x8 inner
tile: element ``(r, c)`` of it is bit ``r * 8 + c``, least significant first. Words lie
column-major: the inner tile at row block ``i`` and column block ``j`` is word ``j * 8 + i``.

Masks are built in *row words*, where bit ``c`` of word ``r`` is element ``(r, c)`` of the tile: an
interval of keys is then two table look-ups. Both orders take 512 bytes and differ by a permutation
of bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LOW_BITS",
    "TILE",
    "Words",
    "pack",
    "pack_bits",
    "popcount",
    "row_popcounts",
    "row_words",
    "tile_words",
    "transpose_words",
    "unpack",
    "unpack_bits",
]

Words = NDArray[np.uint64]

TILE = 64
"""Rows and columns of a tile, and 64-bit words of its bitmap."""

_INNER = 8

LOW_BITS: Words = np.concatenate(
    [(np.uint64(1) << np.arange(64, dtype=np.uint64)) - np.uint64(1), [np.uint64(2**64 - 1)]]
)
"""``LOW_BITS[n]`` has the `n` least significant bits set, ``0 <= n <= 64``."""

_POPCOUNT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)


def _bytes(words: Words) -> NDArray[np.uint8]:
    """View words as their bytes, least significant first, in a new last axis."""
    little = np.ascontiguousarray(words, dtype="<u8")
    return little.view(np.uint8).reshape(*words.shape, 8)


def _words(octets: NDArray[np.uint8]) -> Words:
    """Undo `_bytes`."""
    return np.ascontiguousarray(octets).view("<u8")[..., 0].astype(np.uint64, copy=False)


def tile_words(rows: Words) -> Words:
    """Permute row words into the stored order.

    Parameters
    ----------
    rows : uint64 array (n, 64)
        Bit ``c`` of ``rows[t, r]`` is element ``(r, c)`` of tile ``t``.

    Returns
    -------
    uint64 array (n, 64)
        The 8x8 inner tile at row block ``i``, column block ``j`` is word ``j * 8 + i``.

    Examples
    --------
    >>> rows = np.zeros((1, 64), np.uint64)
    >>> rows[0, 9] = 1 << 17  # element (9, 17): inner tile (1, 2), bit 1 * 8 + 1
    >>> words = tile_words(rows)
    >>> np.flatnonzero(words[0]), int(words[0, 2 * 8 + 1]).bit_length() - 1
    (array([17]), 9)
    """
    octets = _bytes(rows).reshape(len(rows), _INNER, _INNER, _INNER)  # tile, i, r, j
    return _words(octets.transpose(0, 3, 1, 2)).reshape(len(rows), TILE)


def row_words(words: Words) -> Words:
    """Permute stored words ``(n, 64)`` back into row words; the inverse of `tile_words`."""
    octets = _bytes(words).reshape(len(words), _INNER, _INNER, _INNER)  # tile, j, i, r
    return _words(octets.transpose(0, 2, 3, 1)).reshape(len(words), TILE)


def transpose_words(words: Words) -> Words:
    """Return stored words ``(n, 64)`` of the transposed tiles.

    Examples
    --------
    >>> tile = np.tri(64, dtype=bool)[None]
    >>> bool((transpose_words(pack(tile)) == pack(tile.transpose(0, 2, 1))).all())
    True
    """
    turned: Words = words.reshape(len(words), _INNER, _INNER).transpose(0, 2, 1).copy()
    # Swap ever larger squares beside the diagonal of each 8x8 inner tile.
    for shift, chosen in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0xF0F0F0F0)):
        moved = (turned ^ (turned >> np.uint64(shift))) & np.uint64(chosen)
        turned ^= moved ^ (moved << np.uint64(shift))
    return turned.reshape(len(words), TILE)


def pack_bits(bits: NDArray[np.bool_]) -> Words:
    """Pack the last axis, 64 booleans, into words, the first into the least significant bit."""
    return _words(np.packbits(bits, axis=-1, bitorder="little"))


def unpack_bits(words: Words) -> NDArray[np.bool_]:
    """Unpack words into a new last axis of 64 booleans; the inverse of `pack_bits`."""
    return np.unpackbits(_bytes(words), axis=-1, bitorder="little").view(np.bool_)


def pack(tiles: NDArray[np.bool_]) -> Words:
    """Pack boolean tiles ``(n, 64, 64)`` into stored words ``(n, 64)``.

    Examples
    --------
    >>> tile = np.tri(64, dtype=bool)[None]
    >>> hex(pack(tile)[0, 0])  # the top-left inner tile: row r has bits 0..r
    '0xff7f3f1f0f070301'
    """
    return tile_words(pack_bits(tiles))


def unpack(words: Words) -> NDArray[np.bool_]:
    """Unpack stored words ``(n, 64)`` into boolean tiles ``(n, 64, 64)``; the inverse of `pack`."""
    return unpack_bits(row_words(words))


def popcount(words: Words) -> NDArray[np.int64]:
    """Count the set bits over the last axis.

    Examples
    --------
    >>> popcount(LOW_BITS[[[0, 3, 64]]])
    array([67])
    """
    counts: NDArray[np.int64] = _POPCOUNT[_bytes(words)].sum(axis=(-2, -1), dtype=np.int64)
    return counts


def row_popcounts(words: Words) -> NDArray[np.uint8]:
    """Count the set bits of each row of tiles, stored words ``(n, 64)``.

    Examples
    --------
    >>> tile = np.tri(64, dtype=bool)[None]
    >>> row_popcounts(pack(tile))[0, [0, 1, 62, 63]].tolist()
    [1, 2, 63, 64]
    """
    octets = _bytes(words).reshape(len(words), _INNER, TILE)  # tile, j, row
    counts: NDArray[np.uint8] = _POPCOUNT[octets].sum(axis=1, dtype=np.uint8)
    return counts
