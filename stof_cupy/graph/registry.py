"""Every operator of the graph, in one table: class, inputs, attributes, shape rule and meaning.

A new operator is one entry of :data:`OPS` (the builder method of `Graph` comes from it) and one in
the executor's table of calls. The classes are those of the paper (STOF, arXiv 2506.06095, section
4.3), compute-intensive and memory-intensive; a ``view`` moves no data and a ``leaf`` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stof_cupy.graph import meaning, meaning_decoder, shapes, shapes_decoder
from stof_cupy.graph.frequencies import Frequencies
from stof_cupy.graph.shapes import Shape

__all__ = ["DTYPES", "OPS", "REQUIRED", "Attr", "OpDef", "Port"]

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


def _one_of(*choices: str | None) -> tuple[str, Callable[[Any], Any]]:
    def convert(value: Any) -> Any:
        if value not in choices:
            raise ValueError(value)
        return value

    return " or ".join(map(repr, choices)), convert


def _positive_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(value)
    return int(value)


def _positive_float(value: Any) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(value)
    return float(value)


def _positive_or_none(value: Any) -> float | None:
    return None if value is None else _positive_float(value)


def _finite_or_none(value: Any) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(value)
    return None if value is None else float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _port(word: str, optional: bool) -> Port:
    name, _, dtype = word.partition(":")
    return Port(name, dtype or "float", optional)


def _ports(required: str, optional: str = "") -> tuple[Port, ...]:
    """Read ``"ids:int table"`` as ports; no colon means float."""
    return (
        *(_port(word, False) for word in required.split()),
        *(_port(word, True) for word in optional.split()),
    )


_TABLE = (
    OpDef(
        "gemm", "CI", _ports("x w", "bias residual"),
        (Attr("activation", *_one_of(None, "gelu", "gelu_tanh"), default=None),),
        shapes.gemm, meaning.gemm,
        "``activation(x @ w.T + bias) + residual``; w is stored (N, K).",
    ),
    OpDef(
        "attention", "CI", _ports("q k v", "mask:mask lengths:lengths relative_bias"),
        (
            Attr("scale", "a finite number, or None: 1 / sqrt(head_dim)", _finite_or_none, None),
            Attr("softcap", "a positive number, or None", _positive_or_none, None),
            Attr("bidirectional", "True or False", _flag, default=True),
            Attr("max_distance", "an int of at least 1", _positive_int, default=128),
        ),
        shapes.attention, meaning.attention,
        "``softmax(scale * q @ k.T) @ v`` over the kept elements; a row that keeps none is 0. With "
        "a softcap, scores are ``softcap * tanh(scores / softcap)``; relative_bias is T5's, see "
        "`stof_cupy.ops.relative_bias.RelativeBias`, which the last two attributes belong to.",
    ),
    OpDef(
        "layer_norm", "MI", _ports("x weight bias"),
        (Attr("eps", "a positive number", _positive_float),),
        shapes.layer_norm, meaning.layer_norm,
        "Normalise the last axis to mean 0 and variance 1, then ``* weight + bias``.",
    ),
    OpDef(
        "add", "MI", _ports("x y"), (),
        shapes.add, meaning.add,
        "``x + y``; y broadcasts over the leading axes of x.",
    ),
    OpDef(
        "gelu", "MI", _ports("x"),
        (Attr("approximate", *_one_of("none", "tanh"), default="none"),),
        shapes.elementwise, meaning.gelu,
        "The Gaussian error linear unit, by erf or by its tanh approximation.",
    ),
    OpDef(
        "embedding", "MI",
        _ports("ids:int table", "position_table token_types:int type_table"), (),
        shapes.embedding, meaning.embedding,
        "``table[ids] + position_table[arange(seq)] + type_table[token_types]``.",
    ),
    OpDef(
        "rms_norm", "MI", _ports("x weight"),
        (Attr("eps", "a positive number", _positive_float),),
        shapes_decoder.rms_norm, meaning_decoder.rms_norm,
        "Divide the last axis by the root of its mean square, then ``* weight``.",
    ),
    OpDef(
        "mul", "MI", _ports("x y"), (),
        shapes.add, meaning_decoder.mul,
        "``x * y``; y broadcasts over the leading axes of x.",
    ),
    OpDef(
        "gated", "MI", _ports("x y"),
        (Attr("activation", *_one_of("silu", "gelu", "gelu_tanh", "relu"), default="silu"),),
        shapes_decoder.pair, meaning_decoder.gated,
        "``activation(x) * y``.",
    ),
    OpDef(
        "silu", "MI", _ports("x"), (),
        shapes.elementwise, meaning_decoder.silu,
        "``x / (1 + exp(-x))``.",
    ),
    OpDef(
        "relu", "MI", _ports("x"), (),
        shapes.elementwise, meaning_decoder.relu,
        "``max(x, 0)``.",
    ),
    OpDef(
        "softcap", "MI", _ports("x cap"), (),
        shapes_decoder.softcap, meaning_decoder.softcap,
        "``cap * tanh(x / cap)``.",
    ),
    OpDef(
        "rotary", "MI", _ports("x positions:int"),
        (
            Attr("frequency", "finite numbers, one a pair", Frequencies),
            Attr("interleaved", "True or False", _flag, default=False),
            Attr("magnitude", "a positive number", _positive_float, default=1.0),
        ),
        shapes_decoder.rotary, meaning_decoder.rotary,
        "Turn pairs of elements of each head by ``position * frequency``: (i, i + half) or, "
        "interleaved, (2i, 2i + 1).",
    ),
    OpDef(
        "kv_cache", "MI", _ports("x positions:int", "cache:cache"), (),
        shapes_decoder.kv_cache, meaning_decoder.kv_cache,
        "The cache after x has been written into it at its positions; without one, x. A run writes "
        "into the array it is given.",
    ),
    OpDef(
        "take_rows", "MI", _ports("x rows:int"), (),
        shapes_decoder.take_rows, meaning_decoder.take_rows,
        "The tokens of x numbered ``rows``, counted across the batch.",
    ),
    OpDef(
        "split_heads", "view", _ports("x"),
        (Attr("heads", "an int of at least 1", _positive_int),),
        shapes.split_heads, meaning.split_heads,
        "View (batch, seq, heads * head_dim) as (batch, heads, seq, head_dim).",
    ),
    OpDef(
        "merge_heads", "view", _ports("x"), (),
        shapes.merge_heads, meaning.merge_heads,
        "View (batch, heads, seq, head_dim) as (batch, seq, heads * head_dim).",
    ),
)  # fmt: skip

OPS: Mapping[str, OpDef] = MappingProxyType({op.name: op for op in _TABLE})
"""All computed operators by name; the leaves, ``input`` and ``constant``, are not among them."""
