"""Formulas as C++: the same values, computed in 32 bits wherever that cannot overflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stof_cupy.dtypes import dtype_name
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.formula_boxes import Spans
from stof_cupy.masks.formula_kinds import DTYPES, HIGHEST, LOWEST, Kind
from stof_cupy.masks.formula_parse import Op, Read
from stof_cupy.masks.formula_span import Span, combined, span, truth
from stof_cupy.masks.tiles import grid

__all__ = ["Cuda", "Term"]

# The helpers of cuda/mask/formula.cuh: on values, of the same name on spans.
_HELPERS = {
    **{"+": "add", "-": "sub", "*": "mul", "/": "quot", "%": "rem", "<<": "shl", ">>": "shr"},
    **{"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"},
    **{"&": "bit_and", "|": "bit_or", "^": "bit_xor", "~": "inv", "-x": "neg", "+x": "same"},
    **{"&&": "both", "||": "either", "!": "none", "?:": "choose"},
    **{"abs": "magnitude", "min": "least", "max": "most"},
}
_COMPARISONS = frozenset({"<", "<=", "==", "!=", ">", ">="})


@dataclass(frozen=True)
class Term:
    """A part of a formula in C++.

    Attributes
    ----------
    text : str
        Its value.
    type : {"bool", "int", "i64", "double"}
        Of the value.
    span : Span
        What the value can be.
    box : str
        Its span over a box; of a double, nothing that is used.
    varies : bool
        Whether that depends on the box or on scalars.
    """

    text: str
    type: str
    span: Span
    box: str
    varies: bool

    def to(self, type_: str) -> str:
        """Return the value as another type."""
        if type_ == self.type:
            return self.text
        if type_ == "bool":
            return f"({self.text} != 0)"
        return f"{type_}({self.text})"


def _fits(a: Span) -> bool:
    return bool(a.low >= -(2**31) and a.high < 2**31) and not a.real


def _constant(a: Span) -> str:
    low = "kLowest" if a.low == LOWEST else f"{a.low}LL"
    high = "kHighest" if a.high == HIGHEST else f"{a.high}LL"
    return f"Span{{{low}, {high}}}"


class Cuda:
    """The reading of a formula that writes it in C++.

    Parameters
    ----------
    kinds : mapping
        Kind of each array and scalar; their order is that of the parameters ``p``.
    shape : tuple of int
        ``(queries, keys)``: what positions can be, those of the last tiles included.
    """

    def __init__(self, kinds: Mapping[str, Kind], shape: tuple[int, int]) -> None:
        rows, cols = (span(0, max(tiles * TILE - 1, 0)) for tiles in grid(shape))
        self._kinds, self._spans = kinds, Spans(rows, cols, kinds)
        self._number = {name: number for number, name in enumerate(kinds)}

    def number(self, value: int | float) -> Term:
        """Return a literal."""
        a = self._spans.number(value)
        if isinstance(value, float):
            return Term(repr(value), "double", a, "", False)
        text, type_ = (f"{value}", "int") if _fits(a) else (f"{value}LL", "i64")
        return Term(text, type_, a, _constant(a), False)

    def name(self, name: str) -> Term:
        """Return a position or a scalar."""
        a = self._spans.name(name)
        if name in ("i", "j"):
            return Term(name, "int", a, f"Span{{{name}0, {name}1}}", True)
        if a.real:
            return Term(f"scalar<double>(p[{self._number[name]}])", "double", a, "", False)
        text = f"scalar<long long>(p[{self._number[name]}])"
        return Term(text, "i64", a, f"point({text})", True)

    def read(self, node: Read, index: Term) -> Term:
        """Return an element."""
        a = self._spans.read(node, index.span)
        stored = DTYPES[dtype_name(self._kinds[node.name])]
        of = "int" if index.type == "bool" else index.type
        text = f"at<{stored.cuda}>(p[{self._number[node.name]}], {index.to(of)})"
        return Term(text, _type(a), a, _constant(a), False)

    def op(self, node: Op, args: tuple[Term, ...]) -> Term:
        """Return an operator with its operands."""
        symbol = node.symbol
        a = combined(symbol, tuple(arg.span for arg in args))
        text, type_ = _value(symbol, args, a)
        if type_ == "i64" and _fits(a):
            text, type_ = f"int({text})", "int"
        logic = symbol in ("&&", "||", "!", "?:")
        varies = any(arg.varies for arg in args) and not a.real
        if not varies or (not logic and any(arg.span.real for arg in args)):
            return Term(text, type_, a, _constant(a), False)
        boxes = ["kMaybe" if arg.span.real else arg.box for arg in args]
        return Term(text, type_, a, f"{_HELPERS[symbol]}({', '.join(boxes)})", True)

    @staticmethod
    def state(root: Term) -> str:
        """Return the state of a box as C++."""
        return f"state({root.box if root.varies else _constant(truth(root.span))})"


def _type(a: Span) -> str:
    return "double" if a.real else "int" if _fits(a) else "i64"


def _value(symbol: str, args: tuple[Term, ...], a: Span) -> tuple[str, str]:
    """Return the text and type of an operator whose results lie in `a`."""
    if symbol == "!":
        return (
            f"(!{args[0].text})" if args[0].type == "bool" else f"({args[0].text} == 0)"
        ), "bool"
    if symbol in ("&&", "||"):
        # Of bools that have no side effects; without a branch, loads move out of loops.
        return f"({args[0].to('bool')} {symbol[0]} {args[1].to('bool')})", "bool"
    if symbol == "?:":
        type_ = _common(*args[1:])
        yes, no = (arg.to(type_) for arg in args[1:])
        return f"({args[0].to('bool')} ? {yes} : {no})", type_
    if symbol in _COMPARISONS:
        type_ = _common(*args)
        return f"({args[0].to(type_)} {symbol} {args[1].to(type_)})", "bool"
    if symbol in ("<<", ">>"):
        return _shift(symbol, args, a)
    type_ = _common(*args)
    if type_ == "int" and not _fits(a):
        type_ = "i64"
    return _arithmetic(symbol, [arg.to(type_) for arg in args], type_, args[-1].span), type_


def _common(*args: Term) -> str:
    """Return the type that operands are converted to, as in C."""
    for type_ in ("double", "i64"):
        if any(arg.type == type_ for arg in args):
            return type_
    return "int"


def _arithmetic(symbol: str, texts: list[str], type_: str, last: Span) -> str:
    """Return an operator on operands of one type; only an i64 can be too small for the result."""
    if symbol == "+x":
        return texts[0]
    if symbol in ("&", "|", "^"):
        return f"({texts[0]} {symbol} {texts[1]})"
    if symbol == "~" or (symbol == "-x" and type_ != "i64"):
        return f"({symbol[0]}{texts[0]})"
    plain = (
        (symbol in ("+", "-") and type_ != "i64")
        or (symbol == "*" and type_ == "int")  # a product of doubles must not become part of an FMA
        or (symbol == "/" and type_ == "double")
        or (symbol in ("/", "%") and bool(last.low > 0))
    )
    if plain:
        return f"({texts[0]} {symbol} {texts[1]})"
    return f"{_HELPERS[symbol]}({', '.join(texts)})"


def _shift(symbol: str, args: tuple[Term, ...], a: Span) -> tuple[str, str]:
    value, count = args
    narrow = value.type != "i64"
    inside = bool(count.span.low >= 0 and count.span.high <= 31)
    if narrow and inside and symbol == ">>":
        return f"({value.to('int')} >> {count.to('int')})", "int"
    type_ = "int" if narrow and (symbol == ">>" or (inside and _fits(a))) else "i64"
    return f"{_HELPERS[symbol]}({value.to(type_)}, {count.to('i64')})", type_
