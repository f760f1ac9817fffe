"""A mask from a function of positions, or a formula of them, asked tile by tile."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    MaskError,
    ShapeError,
    mismatch,
)
from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import TILE, Words, pack_bits
from stof_cupy.masks.bsr import as_leaf, as_mask, leads
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.coerce import require_shape
from stof_cupy.masks.device.leaf import refuse_cpu
from stof_cupy.masks.expression import Leaf, Pattern
from stof_cupy.masks.formula import Formula
from stof_cupy.masks.formula_boxes import classify
from stof_cupy.masks.leaves import Stored
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import Int64s, grid

__all__ = ["FormulaPredicate", "predicate"]

_CHUNK = 64  # tiles asked for at a time: 2 MiB of int64 for a result of full shape
_SHOWN = 60  # characters of a formula in a repr


def predicate(
    shape: tuple[int, int],
    function: Callable[[Any, Any], Any] | str,
    *,
    arrays: Mapping[str, Any] | None = None,
    within: Any = None,
) -> Pattern:
    """Query ``i`` sees key ``j`` if a function or a formula says so.

    A function is asked for whole tiles of 64x64 elements, and never twice: nothing of the size of
    the mask is made. Without `within` every tile is asked for, work that grows with the square of
    the sequence; with it, or with ``predicate(...) & pattern``, only those that the pattern lists.

    A formula is a line of text. It works on NumPy and inside of the kernel that builds masks on the
    GPU, and it is asked only where comparisons of positions alone do not settle it: of
    ``"i >= j && doc[i] == doc[j]"``, the lower triangle.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    function : callable or str
        A function takes int64 arrays ``(n, 64, 1)`` of query and ``(n, 1, 64)`` of key positions,
        all inside of the shape, and returns booleans of their common shape ``(n, 64, 64)``, or of
        one that broadcasts to it. It has to depend on the positions alone.

        A formula is an expression of C, see the notes.
    arrays : mapping, optional
        What the names in a formula stand for: 1-D NumPy or CuPy arrays (bool, integers, float16,
        bfloat16, float32, float64), and numbers. Arrays are kept by reference, and read when the
        mask is built. Numbers that change belong here too: one written into the formula makes a
        kernel of its own, which is compiled when it is first needed.
    within : Pattern, BsrMask, DeviceMask, or anything `as_mask` takes, optional
        Where to ask; everything outside of it is False.

    Raises
    ------
    DTypeError
        If `function` is neither callable nor a str, `within` is no mask, a value is neither a 1-D
        array nor a number, or a formula takes ``%``, a shift, a bitwise operator or an index of a
        float.
    ArgumentError
        If a formula cannot be read; if `arrays` lacks a name or has one too many, an indexed number
        or an array without an index; if it is given with a function.
    ShapeError
        If `within` has another shape, or an array is not 1-D; later, if the function returns a
        wrong one.
    MaskError
        Later, if the function returns something that is not boolean.
    DeviceError
        If `function` is a function and `within` is for the GPU alone; later, if CuPy arrays are
        asked for without ``.to("cuda")``.
    UnsupportedError
        Later, if more than 2**28 tiles are listed.

    Notes
    -----
    Formulas have

    * ``i`` and ``j``, the positions of the query and of the key; integers, also hexadecimal;
      floats; ``true`` and ``false``; scalars by name; elements of arrays, ``name[index]``, which
      are 0 out of bounds
    * ``+ - * / %``, ``<< >> & | ^ ~``, ``< <= > >= == !=``, ``&& || !``, ``?:``, parentheses,
      ``abs(a)``, ``min(a, b)``, ``max(a, b)``, with the precedence of C; ``a < b < c`` is an error

    Integers are 64-bit and wrap, on both backends; uint64 is read as int64. ``/`` and ``%`` round
    towards zero and are 0 for a divisor of 0. Shift counts are taken modulo 64. An operator with a
    float computes in double, and NaN compares as IEEE 754 says. What is not 0 is True. A formula
    that is about floats or contents of arrays alone settles no tile: give `within` for long
    sequences.

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
    >>> formula = predicate((5, 5), "i >= j && doc[i] == doc[j]", arrays={"doc": doc})
    >>> formula.tobsr().equals(same.tobsr())
    True
    """
    size = check_shape(shape)
    if not callable(function) and not isinstance(function, str):
        hint = "arrays are masks by themselves: masks.as_mask"
        expected = "a function of (q, k) or a formula"
        raise DTypeError(mismatch("function", type(function).__name__, expected, hint))
    if not isinstance(arrays, Mapping | None):
        raise DTypeError(mismatch("arrays", type(arrays).__name__, "a dict of arrays by name"))
    if not isinstance(function, str) and arrays is not None:
        hint = "a function has arrays of its own"
        raise ArgumentError(mismatch("arrays", f"{len(arrays)} with a function", "None", hint))
    values = {} if arrays is None else dict(arrays)
    bound: Pattern | None = None
    if within is not None:
        bound = _bound(within)
        require_shape(bound.shape, size, "within")
    leaf: Pattern
    if isinstance(function, str):
        leaf = FormulaPredicate(size, Formula.parse(function), values, bound)
    else:
        if bound is not None and bound.needs_cuda:
            hint = "a function runs on the CPU, a formula on both"
            raise DeviceError(mismatch("within", "a mask of a GPU", "one of the CPU", hint))
        leaf = _Predicate(size, function, bound)
    if bound is None:
        return leaf
    return (leaf & bound)._named(f"{leaf._label[:-1]}, within={bound._label})")


def _bound(within: Any) -> Pattern:
    """Return what bounds a predicate as a pattern."""
    if isinstance(within, Pattern):
        return within
    return as_leaf(within) if leads(within) else Stored(as_mask(within, name="within")._tiles)


class _Asked(Leaf):
    """A leaf whose part tiles are computed from the positions in them."""

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        words = np.empty((len(rows), TILE), np.uint64)
        inner = np.arange(TILE, dtype=np.int64)
        for at in range(0, len(rows), _CHUNK):
            row, col = rows[at : at + _CHUNK, None], cols[at : at + _CHUNK, None]
            # Positions out of bounds are moved to the last one: functions look arrays up with them.
            q = np.minimum(row * TILE + inner, self.shape[0] - 1)[:, :, None]
            k = np.minimum(col * TILE + inner, self.shape[1] - 1)[:, None, :]
            words[at : at + _CHUNK] = pack_bits(self._ask(q, k))
        return words

    @abstractmethod
    def _ask(self, q: Int64s, k: Int64s) -> Any:
        """Return a bool array of the common shape of `q` and `k`."""


class _Predicate(_Asked):
    """The function on the tiles that `within` lists, False on the others."""

    def __init__(
        self, shape: tuple[int, int], function: Callable[[Any, Any], Any], within: Pattern | None
    ) -> None:
        super().__init__(
            shape, f"predicate({getattr(function, '__name__', type(function).__name__)})"
        )
        self._function, self._within = function, within

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        if self._within is None:
            return Runs.from_row((rows, cols), np.full(cols, runs.PART, np.uint8))
        bound = self._within.runs
        return Runs.of(bound.grid, bound.starts, np.minimum(bound.states, np.uint8(runs.PART)))

    def _ask(self, q: Int64s, k: Int64s) -> Any:
        kept = np.asarray(self._function(q, k))
        shape = np.broadcast_shapes(q.shape, k.shape)
        if kept.dtype != np.bool_:
            hint = "True = may attend"
            raise MaskError(mismatch(f"{self._label} result", f"dtype {kept.dtype}", "bool", hint))
        try:
            return np.broadcast_to(kept, shape)
        except ValueError as bad:
            expected = f"a shape that broadcasts to {shape}"
            raise ShapeError(mismatch(f"{self._label} result", kept.shape, expected)) from bad


class FormulaPredicate(_Asked):
    """A formula on the tiles that `within` lists, False on the others.

    Attributes
    ----------
    formula : Formula
    values : dict
        Arrays and scalars by name, as they were given.
    kinds : dict
        What they are, see `Formula.kinds`.
    within : Pattern or None
        The mask is this leaf and `within`.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError
        As `Formula.kinds`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        formula: Formula,
        values: dict[str, Any],
        within: Pattern | None,
    ) -> None:
        text = " ".join(formula.text.split())
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        super().__init__(shape, f"predicate({shown!r})")
        self.kinds = formula.kinds(values)
        self.formula, self.values, self.within = formula, values, within
        self.needs_cuda = any(is_cupy(value) for value in values.values())

    def _classify(self) -> Runs:
        if self.needs_cuda:
            refuse_cpu(repr(self))
        return classify(self.shape, self._states, None if self.within is None else self.within.runs)

    def _states(self, i0: Int64s, i1: Int64s, j0: Int64s, j1: Int64s) -> Any:
        return self.formula.states((i0, i1), (j0, j1), self.values)

    def _ask(self, q: Int64s, k: Int64s) -> Any:
        return self.formula.evaluate(q, k, self.values)
