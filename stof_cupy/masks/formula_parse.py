"""Text of a formula to its tree: the grammar, and every error that the text alone can have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from stof_cupy.errors import ArgumentError, DTypeError, mismatch

__all__ = [
    "FUNCTIONS",
    "IDENTIFIER",
    "RESERVED",
    "Algebra",
    "Name",
    "Node",
    "Number",
    "Op",
    "Read",
    "fold",
    "parse",
    "pointed",
]

MAX_LENGTH = 4096
MAX_DEPTH = 100
"""Levels of a tree, and of brackets: what walks it recurses, and so do the C++ compilers."""

FUNCTIONS = {"abs": 1, "min": 2, "max": 2}
RESERVED = frozenset({"i", "j", "true", "false", *FUNCTIONS})
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+"
)
_SYMBOL = re.compile(r"\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&^|~!?:()\[\],]")
_BINARY = {
    **{"||": 2, "&&": 3, "|": 4, "^": 5, "&": 6, "==": 7, "!=": 7},
    **dict.fromkeys(("<", "<=", ">", ">="), 8),
    **dict.fromkeys(("<<", ">>"), 9),
    **dict.fromkeys(("+", "-"), 10),
    **dict.fromkeys(("*", "/", "%"), 11),
}
_TERNARY, _UNARY = 1, 12
_COMPARISONS = (7, 8)
_WORDS = {"and": "&&", "or": "||", "not": "!"}


@dataclass(frozen=True)
class Number:
    """A literal; ``true`` and ``false`` are 1 and 0."""

    value: int | float
    at: int
    depth: int = 1


@dataclass(frozen=True)
class Name:
    """A position or a scalar."""

    name: str
    at: int
    depth: int = 1


@dataclass(frozen=True)
class Read:
    """An element of an array."""

    name: str
    index: Node
    at: int
    depth: int = 1


@dataclass(frozen=True)
class Op:
    """An operator or a function; the unary signs are ``"+x"`` and ``"-x"``."""

    symbol: str
    args: tuple[Node, ...]
    at: int
    depth: int = 1


Node = Number | Name | Read | Op
T = TypeVar("T")


class Algebra(Protocol[T]):
    """What the parts of a formula stand for in one reading of it."""

    def number(self, value: int | float) -> T:
        """Return what a literal is."""

    def name(self, name: str) -> T:
        """Return what a position or a scalar is."""

    def read(self, node: Read, index: T) -> T:
        """Return what an element of an array is."""

    def op(self, node: Op, args: tuple[T, ...]) -> T:
        """Return what an operator makes of its operands."""


def fold(node: Node, algebra: Algebra[T]) -> T:
    """Read a tree from its leaves up."""
    if isinstance(node, Number):
        return algebra.number(node.value)
    if isinstance(node, Name):
        return algebra.name(node.name)
    if isinstance(node, Read):
        return algebra.read(node, fold(node.index, algebra))
    return algebra.op(node, tuple(fold(arg, algebra) for arg in node.args))


def pointed(text: str, at: int, got: str, expected: str, hint: str = "") -> str:
    """Return the sentence of an error in a formula, and the line of it with a caret below."""
    start = text.rfind("\n", 0, at) + 1
    line = text[start:].split("\n", 1)[0]
    left = max(at - start - 60, 0)
    shown = "".join(c if c.isprintable() else " " for c in line[left : left + 90])
    said = mismatch("formula", f"{got} at position {at}", expected, hint)
    return f"{said}\n    {shown}\n    {' ' * (at - start - left)}^"


def parse(text: Any) -> tuple[Node, dict[str, bool]]:
    """Return the tree of a formula, and its names with whether each is indexed, sorted.

    Raises
    ------
    DTypeError
        If `text` is no str.
    ArgumentError
        If it is not a formula: the message shows where, and what was expected there.
    """
    if not isinstance(text, str):
        raise DTypeError(mismatch("formula", type(text).__name__, "a str such as 'i >= j'"))
    if len(text) > MAX_LENGTH:
        got = f"{len(text)} characters"
        raise ArgumentError(mismatch("formula", got, f"at most {MAX_LENGTH}", "use arrays"))
    parser = _Parser(text)
    root = parser.expression(0)
    if parser.token:
        parser.fail("an operator or the end")
    return root, dict(sorted(parser.names.items()))


class _Parser:
    """A Pratt parser: operators bind as strongly as C's."""

    def __init__(self, text: str) -> None:
        self.text, self.names = text, dict[str, bool]()
        self.token, self.at = "", 0
        self._level = self._end = 0
        self.advance()

    def advance(self) -> str:
        """Step to the next token, ``""`` after the last, and return the one before."""
        before = self.token
        space = _SPACE.match(self.text, self._end)
        self.at = space.end() if space else self._end
        self.is_number = self.is_name = False
        self.token = ""
        if self.at < len(self.text):
            self.token = self._scan()
        self._end = self.at + len(self.token) if self.token else len(self.text)
        return before

    def _scan(self) -> str:
        if found := IDENTIFIER.match(self.text, self.at):
            self.is_name = True
        elif found := _NUMBER.match(self.text, self.at):
            self.is_number = True
            tail = re.compile(r"[A-Za-z0-9_.]*").match(self.text, found.end())
            token = found.group()
            if (tail and tail.group()) or (token.isdigit() and len(token) > 1 and token[0] == "0"):
                token += tail.group() if tail else ""
                hint = "no suffixes, no octal numbers"
                self.fail("a decimal or hexadecimal number", hint, got=repr(token))
        elif not (found := _SYMBOL.match(self.text, self.at)):
            hint = "equality is `==`" if self.text[self.at] == "=" else ""
            self.fail("an operator, a name or a number", hint, got=repr(self.text[self.at]))
        return found.group()

    def fail(self, expected: str, hint: str = "", *, got: str = "", at: int = -1) -> NoReturn:
        """Raise the error at `at`, default the current token."""
        got = got or (repr(self.token) if self.token else "the end")
        if self.token in _WORDS:
            hint = f"C's {_WORDS[self.token]}"
        where = self.at if at < 0 else at
        raise ArgumentError(pointed(self.text, where, got, expected, hint))

    def expect(self, symbol: str) -> None:
        if self.token != symbol:
            self.fail(repr(symbol))
        self.advance()

    def node(self, symbol: str, args: tuple[Node, ...], at: int) -> Op:
        depth = 1 + max(arg.depth for arg in args)
        self.check_depth(depth, at)
        return Op(symbol, args, at, depth)

    def check_depth(self, depth: int, at: int) -> None:
        if depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH}", "use arrays", got=f"{depth} levels", at=at)

    def expression(self, floor: int) -> Node:
        """Parse operators that bind at least as strongly as `floor`, and their operands."""
        self._level += 1
        self.check_depth(self._level, self.at)
        left, last = self.operand(), 0
        while True:
            at, power = self.at, _BINARY.get(self.token, 0)
            if self.token == "?" and floor <= _TERNARY:
                self.advance()
                chosen = self.expression(0)
                self.expect(":")
                left = self.node("?:", (left, chosen, self.expression(_TERNARY)), at)
            elif power and power >= floor:
                if power == last and power in _COMPARISONS:
                    hint = "a < b < c would compare the 0 or 1 of a < b with c"
                    self.fail("`&&` between comparisons, or parentheses", hint)
                symbol, last = self.advance(), power
                left = self.node(symbol, (left, self.expression(power + 1)), at)
            else:
                self._level -= 1
                return left

    def operand(self) -> Node:
        """Parse what may stand before or after a binary operator."""
        at = self.at
        if self.is_number:
            return self._number()
        if self.is_name and self.token not in _WORDS:
            return self._named(self.advance(), at)
        if self.token in ("+", "-", "!", "~"):
            symbol = self.advance()
            symbol += "x" if symbol in "+-" else ""
            return self.node(symbol, (self.expression(_UNARY),), at)
        if self.token == "(":
            self.advance()
            inner = self.expression(0)
            self.expect(")")
            return inner
        self.fail("a name, a number, '(' or one of - + ! ~")

    def _number(self) -> Number:
        token, at = self.token, self.at
        value: int | float
        if token[:2] in ("0x", "0X"):
            value = int(token, 16)
        else:
            value = int(token) if token.isdigit() else float(token)
        if value == float("inf") or (isinstance(value, int) and value >= 2**63):
            self.fail("an integer below 2**63 or a finite double")
        self.advance()
        return Number(value, at)

    def _named(self, name: str, at: int) -> Node:
        if name in FUNCTIONS:
            self.expect("(")
            args = [self.expression(0)]
            for _ in range(FUNCTIONS[name] - 1):
                self.expect(",")
                args.append(self.expression(0))
            self.expect(")")
            return self.node(name, tuple(args), at)
        if self.token == "(":
            known = ", ".join(FUNCTIONS)
            self.fail(f"one of the functions {known}", got=f"function {name!r}", at=at)
        indexed = self.token == "["
        if name in RESERVED:
            if indexed:
                self.fail("the name of an array before '['", got=repr(name), at=at)
            is_word = name in ("true", "false")
            return Number(int(name == "true"), at) if is_word else Name(name, at)
        if self.names.setdefault(name, indexed) != indexed:
            got = f"{name!r}, with an index and without"
            self.fail("an array that is always indexed, or a scalar that never is", got=got, at=at)
        if not indexed:
            return Name(name, at)
        self.advance()
        index = self.expression(0)
        self.expect("]")
        self.check_depth(index.depth + 1, at)
        return Read(name, index, at, index.depth + 1)
