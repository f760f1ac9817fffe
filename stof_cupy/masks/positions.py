"""Where the queries of a mask that is not square stand among its keys."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks.check import check_positions
from stof_cupy.masks.tiles import Int64s

__all__ = ["Align", "Positions"]

Align: TypeAlias = Literal["top-left", "bottom-right"]


class Positions:
    """Positions of queries among the keys.

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    align : {"top-left", "bottom-right"}, optional
        Whether the first or the last query and key stand together; to be named if ``sq != sk``.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    offset : int
        Position of query 0; negative before the first key.
    label : str
        How a pattern's label ends: ``", align='top-left'"``, or nothing if it is square.

    Raises
    ------
    ArgumentError
        If `align` is neither, or left out with ``sq != sk``.
    """

    def __init__(self, sq: int, sk: int | None, align: Align | None) -> None:
        queries, keys = self.shape = check_positions((sq, sq if sk is None else sk))
        known = isinstance(align, str) and align in ("top-left", "bottom-right")
        if not known and (align is not None or queries != keys):
            hint = f"the mask has {queries} queries and {keys} keys"
            raise ArgumentError(
                mismatch("align", repr(align), "'top-left' or 'bottom-right'", hint)
            )
        self.offset = keys - queries if align == "bottom-right" else 0
        self.label = "" if queries == keys else f", align={align!r}"

    def differences(self) -> Int64s:
        """Return ``k - q`` of every diagonal, ascending: ``(queries + keys - 1,)``."""
        queries, keys = self.shape
        return np.arange(1 - queries, max(keys, 1 - queries), dtype=np.int64) - self.offset
