"""A mask from a function of positions, asked tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stof_cupy.errors import DTypeError, MaskError, ShapeError, mismatch
from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import TILE, Words, pack_bits
from stof_cupy.masks.bsr import as_mask
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.coerce import require_shape
from stof_cupy.masks.expression import Leaf, Pattern
from stof_cupy.masks.leaves import Stored
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import Int64s, grid

__all__ = ["predicate"]

_CHUNK = 64  # tiles handed to the function at a time: 2 MiB of int64 for a result of full shape


def predicate(
    shape: tuple[int, int], function: Callable[[Any, Any], Any], *, within: Any = None
) -> Pattern:
    """Query ``q`` sees key ``k`` if ``function(q, k)``.

    The function is asked for whole tiles of 64x64 elements, and never twice: nothing of the size of
    the mask is made. Without `within` every tile is asked for, work that grows with the square of
    the sequence; with it, or with ``predicate(...) & pattern``, only those that the pattern lists.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    function : callable
        Takes int64 arrays ``(n, 64, 1)`` of query and ``(n, 1, 64)`` of key positions, all inside
        of the shape, and returns booleans of their common shape ``(n, 64, 64)``, or of one that
        broadcasts to it. It has to depend on the positions alone.
    within : Pattern, BsrMask, or anything `as_mask` takes, optional
        Where to ask; everything outside of it is False.

    Raises
    ------
    DTypeError
        If `function` cannot be called or `within` is no mask.
    ShapeError
        If `within` has another shape; later, if the function returns a wrong one.
    MaskError
        Later, if the function returns something that is not boolean.

    Examples
    --------
    Causal, and keys of the query's own document, which are not side by side:

    >>> doc = np.array([0, 1, 0, 1, 1])
    >>> same = predicate((5, 5), lambda q, k: (k <= q) & (doc[q] == doc[k]))
    >>> same.toarray().astype(int)
    array([[1, 0, 0, 0, 0],
           [0, 1, 0, 0, 0],
           [1, 0, 1, 0, 0],
           [0, 1, 0, 1, 0],
           [0, 1, 0, 1, 1]])
    """
    size = check_shape(shape)
    if not callable(function):
        hint = "arrays are masks by themselves: masks.as_mask"
        raise DTypeError(
            mismatch("function", type(function).__name__, "a function of (q, k)", hint)
        )
    if within is None:
        return _Predicate(size, function, None)
    bound = within if isinstance(within, Pattern) else Stored(as_mask(within, name="within")._tiles)
    require_shape(bound.shape, size, "within")
    pattern = _Predicate(size, function, bound) & bound
    return pattern._named(f"{_label(function)[:-1]}, within={bound._label})")


def _label(function: Callable[..., Any]) -> str:
    return f"predicate({getattr(function, '__name__', type(function).__name__)})"


class _Predicate(Leaf):
    """The function on the tiles that `within` lists, False on the others."""

    def __init__(
        self, shape: tuple[int, int], function: Callable[[Any, Any], Any], within: Pattern | None
    ) -> None:
        super().__init__(shape, _label(function))
        self._function, self._within = function, within

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        if self._within is None:
            return Runs.from_row((rows, cols), np.full(cols, runs.PART, np.uint8))
        bound = self._within.runs
        return Runs.of(bound.grid, bound.starts, np.minimum(bound.states, np.uint8(runs.PART)))

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        words = np.empty((len(rows), TILE), np.uint64)
        for at in range(0, len(rows), _CHUNK):
            chunk = slice(at, at + _CHUNK)
            words[chunk] = pack_bits(self._ask(rows[chunk], cols[chunk]))
        return words

    def _ask(self, rows: Int64s, cols: Int64s) -> Any:
        inner = np.arange(TILE, dtype=np.int64)
        # Positions out of bounds are moved to the last one: functions look arrays up with them.
        q = np.minimum(rows[:, None] * TILE + inner, self.shape[0] - 1)[:, :, None]
        k = np.minimum(cols[:, None] * TILE + inner, self.shape[1] - 1)[:, None, :]
        kept = np.asarray(self._function(q, k))
        shape = (len(rows), TILE, TILE)
        if kept.dtype != np.bool_:
            hint = "True = may attend"
            raise MaskError(mismatch(f"{self._label} result", f"dtype {kept.dtype}", "bool", hint))
        try:
            return np.broadcast_to(kept, shape)
        except ValueError as bad:
            expected = f"a shape that broadcasts to {shape}"
            raise ShapeError(mismatch(f"{self._label} result", kept.shape, expected)) from bad
