"""What the names of a formula stand for: dtypes of arrays, scalars, and what they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy.dtypes import dtype_name, is_cupy
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch
from stof_cupy.masks.formula_parse import IDENTIFIER, RESERVED, Op, Read, pointed

__all__ = ["DTYPES", "HIGHEST", "LOWEST", "Kind", "Stored", "Types", "kinds_of", "plain"]

LOWEST, HIGHEST = -(2**63), 2**63 - 1

Kind = Any
"""A NumPy dtype for an array, ``"int"`` or ``"float"`` for a scalar."""


@dataclass(frozen=True)
class Stored:
    """How an element of an array is read: its C++ type, and the values it has as an int64.

    `low` and `high` are None for floats, which are read as doubles.
    """

    cuda: str
    low: int | None = None
    high: int | None = None

    @property
    def real(self) -> bool:
        """Whether it is read as a double."""
        return self.low is None


DTYPES = {
    "bool": Stored("bool", 0, 1),
    "int8": Stored("signed char", -(2**7), 2**7 - 1),
    "uint8": Stored("unsigned char", 0, 2**8 - 1),
    "int16": Stored("short", -(2**15), 2**15 - 1),
    "uint16": Stored("unsigned short", 0, 2**16 - 1),
    "int32": Stored("int", -(2**31), 2**31 - 1),
    "uint32": Stored("unsigned int", 0, 2**32 - 1),
    "int64": Stored("long long", LOWEST, HIGHEST),
    "uint64": Stored("unsigned long long", LOWEST, HIGHEST),
    "float16": Stored("stof::f16"),
    "bfloat16": Stored("stof::bf16"),
    "float32": Stored("float"),
    "float64": Stored("double"),
}


def kinds_of(text: str, names: Mapping[str, bool], values: Mapping[str, Any]) -> dict[str, Kind]:
    """Return the kind of each value, if they are what a formula with these names needs.

    Raises
    ------
    ArgumentError
        If a name is no identifier or has a meaning already, is used and not given or given and not
        used; if a scalar is indexed, an array is not, or an integer does not fit int64.
    ShapeError
        If an array is not 1-D.
    DTypeError
        If a value is neither an array of one of `DTYPES` nor a number.
    """
    for name in values:
        if not isinstance(name, str) or not IDENTIFIER.fullmatch(name) or name in RESERVED:
            expected = f"an identifier other than {', '.join(sorted(RESERVED))}"
            raise ArgumentError(mismatch("arrays", f"name {name!r}", expected))
    unknown = [name for name in names if name not in values]
    unused = [name for name in values if name not in names]
    if unknown or unused:
        got, hint = ", ".join(values) or "nothing", f"the formula is {text!r}"
        raise ArgumentError(mismatch("arrays", got, ", ".join(names) or "nothing", hint))
    return {name: _kind(name, values[name], indexed) for name, indexed in names.items()}


def _kind(name: str, value: Any, indexed: bool) -> Kind:
    label = f"arrays[{name!r}]"
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeError(mismatch(label, "a masked array", "a plain one", "its mask would be lost"))
    if isinstance(value, np.ndarray) or is_cupy(value):
        if not indexed:
            got, hint = f"an array {value.shape}", f"elements are {name}[i], {name}[j]"
            raise ArgumentError(mismatch(label, got, "a number, as it has no index", hint))
        if value.ndim != 1:
            raise ShapeError(mismatch(label, value.shape, "(n,)", "positions are 1-D"))
        if dtype_name(value.dtype) not in DTYPES or not value.dtype.isnative:
            expected = f"one of {', '.join(DTYPES)}, native byte order"
            raise DTypeError(mismatch(label, f"dtype {value.dtype!r}", expected))
        return np.dtype(value.dtype)
    kind = _scalar_kind(value)
    if kind is None:
        expected = "a 1-D NumPy or CuPy array, or a number"
        raise DTypeError(mismatch(label, type(value).__name__, expected))
    if indexed:
        raise ArgumentError(mismatch(label, repr(value), "a 1-D array, as it has an index"))
    if kind == "int" and not LOWEST <= int(value) <= HIGHEST:
        raise ArgumentError(mismatch(label, value, "an integer from -2**63 to 2**63 - 1"))
    return kind


def plain(value: Any) -> int | float:
    """Return a scalar, which `kinds_of` has checked, as Python's own number."""
    return float(value) if _scalar_kind(value) == "float" else int(value)


def _scalar_kind(value: Any) -> str | None:
    stored = DTYPES.get(dtype_name(value.dtype)) if isinstance(value, np.generic) else None
    if isinstance(value, float) or (stored is not None and stored.real):
        return "float"
    return "int" if isinstance(value, int) or stored is not None else None


class Types:
    """The reading of a formula that finds operands of a wrong type: True is a double.

    Raises
    ------
    DTypeError
        If a float is an index, or an operand of an operator on integers.
    """

    _INTEGERS = frozenset({"%", "<<", ">>", "&", "|", "^", "~"})
    _TRUTH = frozenset({"<", "<=", ">", ">=", "==", "!=", "&&", "||", "!"})

    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        self._text, self._kinds = text, kinds

    def number(self, value: int | float) -> bool:
        """Return whether a literal has a point or an exponent."""
        return isinstance(value, float)

    def name(self, name: str) -> bool:
        """Return whether a scalar is a float; positions are not."""
        return bool(self._kinds.get(name) == "float")

    def read(self, node: Read, index: bool) -> bool:
        """Return whether an array holds floats."""
        if index:
            raise DTypeError(pointed(self._text, node.at, "a float index", "an integer"))
        return DTYPES[dtype_name(self._kinds[node.name])].real

    def op(self, node: Op, args: tuple[bool, ...]) -> bool:
        """Return whether an operator gives a double."""
        if node.symbol in self._INTEGERS and any(args):
            got = f"a float operand of {node.symbol!r}"
            raise DTypeError(pointed(self._text, node.at, got, "integers"))
        if node.symbol == "?:":
            return any(args[1:])
        return node.symbol not in self._TRUTH and any(args)
