"""What an operator is: its ports, its attributes, and how their values are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stof_cupy.graph.shapes import Shape

__all__ = [
    "DTYPES",
    "REQUIRED",
    "Attr",
    "OpDef",
    "Port",
    "count",
    "finite",
    "finite_or_none",
    "flag",
    "one_of",
    "ports",
    "positive_float",
    "positive_int",
    "positive_or_none",
]

DTYPES = ("float", "int", "mask", "lengths", "cache")
"""What a node's value can be; ``float`` is whatever type the graph is run in.

A ``cache`` is a float input that a run may leave out, and that it writes to.
"""

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()
"""Default of an attribute that has none."""


@dataclass(frozen=True)
class Port:
    """One input of an operator: its name, the dtype it takes, and whether it may be absent."""

    name: str
    dtype: str = "float"
    optional: bool = False


@dataclass(frozen=True)
class Attr:
    """One attribute of an operator.

    Attributes
    ----------
    name : str
    expected : str
        Which values are right, for the error message.
    convert : callable
        Returns the value in its one hashable form, or raises ValueError or TypeError.
    default : object
        :data:`REQUIRED` when there is none.
    """

    name: str
    expected: str
    convert: Callable[[Any], Any]
    default: Any = REQUIRED


@dataclass(frozen=True)
class OpDef:
    """One operator.

    Attributes
    ----------
    name : str
    kind : {"CI", "MI", "view", "leaf"}
    ports : tuple of Port
        Inputs in order; optional ones last.
    attrs : tuple of Attr
    infer : callable
        ``(shapes by port name, attrs) -> shape``; raises GraphError.
    meaning : callable
        The definition, in dense NumPy: takes the inputs by position and the attrs by keyword.
    summary : str
        First line of the builder method's docstring.
    dtype : str
        Of the result, one of :data:`DTYPES`.
    """

    name: str
    kind: Literal["CI", "MI", "view", "leaf"]
    ports: tuple[Port, ...]
    attrs: tuple[Attr, ...]
    infer: Callable[[Mapping[str, Shape | None], Mapping[str, Any]], Shape]
    meaning: Callable[..., NDArray[Any]]
    summary: str
    dtype: str = "float"


def one_of(*choices: str | None) -> tuple[str, Callable[[Any], Any]]:
    """Return what is expected, in words, and a converter that takes these alone."""

    def convert(value: Any) -> Any:
        if value not in choices:
            raise ValueError(value)
        return value

    return " or ".join(map(repr, choices)), convert


def positive_int(value: Any) -> int:
    """Return an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(value)
    return int(value)


def count(value: Any) -> int:
    """Return an int of at least 0."""
    if isinstance(value, bool):
        raise ValueError(value)
    return positive_int(value + 1) - 1


def positive_float(value: Any) -> float:
    """Return a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(value)
    return float(value)


def positive_or_none(value: Any) -> float | None:
    """Return a finite number above 0, or None."""
    return None if value is None else positive_float(value)


def finite(value: Any) -> float:
    """Return a finite number."""
    if not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def finite_or_none(value: Any) -> float | None:
    """Return a finite number, or None."""
    return None if value is None else finite(value)


def flag(value: Any) -> bool:
    """Return a bool."""
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _port(word: str, optional: bool) -> Port:
    name, _, dtype = word.partition(":")
    return Port(name, dtype or "float", optional)


def ports(required: str, optional: str = "") -> tuple[Port, ...]:
    """Read ``"ids:int table"`` as ports; no colon means float."""
    return (
        *(_port(word, False) for word in required.split()),
        *(_port(word, True) for word in optional.split()),
    )
