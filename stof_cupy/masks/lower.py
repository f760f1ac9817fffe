"""An expression built on the CPU: its tiles, and no others."""

from __future__ import annotations

import numpy as np

from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import tile_words
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.tiles import FULL, BitmapTable, Tiles, assemble, check_count, edge_rows

__all__ = ["lower"]

_CHUNK = 2048  # tiles whose bits are built at a time: 1 MiB of words


def lower(pattern: Pattern) -> Tiles:
    """Build the tiles of an expression.

    Raises
    ------
    UnsupportedError
        If it lists more than 2**28 tiles.
    """
    check_count(repr(pattern), pattern.runs.count())
    keys, states = pattern.runs.visited()
    ids = np.full(len(keys), FULL, np.int32)
    table = BitmapTable()
    part = np.flatnonzero(states == runs.PART)
    for at in range(0, len(part), _CHUNK):
        chosen = part[at : at + _CHUNK]
        words = pattern.row_words(keys[chosen]) & edge_rows(pattern.shape, keys[chosen])
        ids[chosen] = table.add(tile_words(words))
    return assemble(pattern.shape, keys, ids, table.words())
