"""Formulas: masks written as a line of C, with one meaning on NumPy and on the GPU.

The text is parsed here and nowhere else, so it cannot carry any other code to a compiler, and what
is wrong with it is said before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import DeviceError, mismatch
from stof_cupy.masks.formula_boxes import Spans, States
from stof_cupy.masks.formula_cuda import Cuda, Term
from stof_cupy.masks.formula_kinds import Kind, Types, kinds_of
from stof_cupy.masks.formula_numpy import Values
from stof_cupy.masks.formula_numpy import truth as nonzero
from stof_cupy.masks.formula_parse import Node, fold, parse
from stof_cupy.masks.formula_span import span, truth
from stof_cupy.masks.tiles import Int64s

__all__ = ["Formula"]


@dataclass(frozen=True, eq=False)
class Formula:
    """An expression of positions, arrays and scalars; see `stof_cupy.masks.predicate`.

    Attributes
    ----------
    text : str
        As it was given.
    names : dict of str to bool
        The arrays and scalars it names, sorted, and whether each is indexed.

    Examples
    --------
    >>> formula = Formula.parse("i >= j && doc[i] == doc[j]")
    >>> formula.names
    {'doc': True}
    >>> i, j, doc = np.arange(3)[:, None], np.arange(3), np.array([7, 8, 7])
    >>> formula.evaluate(i, j, {"doc": doc}).astype(int)
    array([[1, 0, 0],
           [0, 1, 0],
           [1, 0, 1]])
    """

    text: str
    names: dict[str, bool]
    _root: Node

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Read a formula.

        Raises
        ------
        DTypeError
            If `text` is no str.
        ArgumentError
            If it is no formula, longer than 4096 characters or deeper than 100 levels; the message
            shows where, and what was expected there.

        Examples
        --------
        >>> Formula.parse("i - j < = 5")
        Traceback (most recent call last):
        stof_cupy.errors.ArgumentError: formula: got '=' at position 8, expected an operator, a name
        or a number; equality is `==`
            i - j < = 5
                    ^
        """
        root, names = parse(text)
        return cls(text, names, root)

    def kinds(self, values: Mapping[str, Any]) -> dict[str, Kind]:
        """Return what the values are, in the order of `names`, after all checks of them.

        Parameters
        ----------
        values : mapping
            1-D NumPy or CuPy arrays and Python or NumPy numbers by name.

        Returns
        -------
        dict
            The NumPy dtype of an array; ``"int"`` or ``"float"`` for a scalar.

        Raises
        ------
        ArgumentError
            If a name is no identifier or has a meaning already, is used and not given or given and
            not used; if a scalar is indexed, an array is not, or an integer does not fit int64.
        ShapeError
            If an array is not 1-D.
        DTypeError
            If a value is neither such an array nor a number, or is a float where the formula needs
            an integer.
        """
        kinds = kinds_of(self.text, self.names, values)
        fold(self._root, Types(self.text, kinds))
        return kinds

    def evaluate(self, i: Int64s, j: Int64s, values: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Compute the formula on NumPy.

        Parameters
        ----------
        i, j : int64 arrays
            Query and key positions; their shapes broadcast.
        values : mapping
            1-D NumPy arrays and numbers by name.

        Returns
        -------
        bool array
            Of the common shape of `i` and `j`; maybe read-only.

        Raises
        ------
        ArgumentError, ShapeError, DTypeError
            As `kinds`.
        DeviceError
            If an array lies on a GPU.
        """
        self.kinds(values)
        for name, value in values.items():
            if is_cupy(value):
                raise DeviceError(mismatch(f"arrays[{name!r}]", "a CuPy array", "a NumPy array"))
        with np.errstate(all="ignore"):
            result = nonzero(fold(self._root, Values(np.asarray(i), np.asarray(j), values)))
        return np.broadcast_to(result, np.broadcast_shapes(np.shape(i), np.shape(j)))

    def states(
        self,
        rows: tuple[Int64s, Int64s],
        cols: tuple[Int64s, Int64s],
        values: Mapping[str, Any],
    ) -> tuple[States, NDArray[np.bool_]]:
        """Tell what boxes of positions hold, without looking into arrays.

        Parameters
        ----------
        rows, cols : pair of int64 arrays (n,)
            First and last query, first and last key of each box.
        values : mapping
            As in `evaluate`; of arrays, only dtypes are looked at.

        Returns
        -------
        states : uint8 array (n,)
            0 if no element of the box is True, 2 if all are, 1 if that is not known.
        final : bool array (n,)
            Whether parts of the box would not be told any better.

        Examples
        --------
        >>> formula = Formula.parse("i >= j")
        >>> first, last = np.array([0, 64, 64]), np.array([63, 127, 127])
        >>> formula.states((first, last), (np.array([64, 64, 0]), np.array([99, 99, 63])), {})[0]
        array([0, 1, 2], dtype=uint8)
        """
        spans = Spans(span(*rows), span(*cols), self.kinds(values), values)
        with np.errstate(all="ignore"):
            made = truth(fold(self._root, spans))
        shape = np.shape(rows[0])
        states = np.broadcast_to((made.low + made.high).astype(np.uint8), shape)
        return states, np.broadcast_to(made.settled | made.opaque, shape)

    def cuda(self, kinds: Mapping[str, Kind], shape: tuple[int, int]) -> str:
        """Return the value as a C++ expression, for code in namespace ``stof::mask``.

        Integers are ``int`` where they cannot overflow, else ``long long``, and wrap as on NumPy.
        What it calls is in ``cuda/mask/formula.cuh``, apart from ``at<T>(p[k], index)``, an element
        of an array or 0, and ``scalar<T>(p[k])``; ``k`` counts `names`.

        Parameters
        ----------
        kinds : mapping
            From `kinds`.
        shape : tuple of int
            ``(queries, keys)``; ``i`` and ``j`` are ints inside of the tiles that cover it.

        Returns
        -------
        str
            An expression of type ``bool`` in ``i``, ``j`` and ``p``.

        Examples
        --------
        >>> Formula.parse("i % 7 == kind[j]").cuda({"kind": np.dtype("int64")}, (100, 100))
        '(i64((i % 7)) == at<long long>(p[0], j))'
        """
        return self._term(kinds, shape).to("bool")

    def cuda_state(self, kinds: Mapping[str, Kind], shape: tuple[int, int]) -> str:
        """Return the state of a box as a C++ expression, for code in namespace ``stof::mask``.

        Parameters
        ----------
        kinds, shape
            As for `cuda`.

        Returns
        -------
        str
            An expression of type ``int`` in ``i0``, ``i1``, ``j0``, ``j1``, ints, the first and
            last position on each side, and ``p``: the first result of `states`.

        Examples
        --------
        >>> Formula.parse("i >= j").cuda_state({}, (100, 100))
        'state(ge(Span{i0, i1}, Span{j0, j1}))'
        """
        return Cuda.state(self._term(kinds, shape))

    def _term(self, kinds: Mapping[str, Kind], shape: tuple[int, int]) -> Term:
        # In the order of the names, which numbers the parameters, whatever order `kinds` has.
        with np.errstate(all="ignore"):
            return fold(self._root, Cuda({name: kinds[name] for name in self.names}, shape))

    def __repr__(self) -> str:
        return f"Formula({self.text!r})"
