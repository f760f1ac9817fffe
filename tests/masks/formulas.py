"""Random formulas, as trees and as text, and what they mean in Python's own integers and floats."""

from __future__ import annotations

import math
import random
from typing import Any

import ml_dtypes
import numpy as np

# ("number", 5), ("name", "i"), ("read", "u8", index), or (operator, operand, ...)
Tree = tuple[Any, ...]

DTYPES = {
    **{"flag": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16"},
    **{"i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64"},
    **{"f16": "float16", "bf": "bfloat16", "f32": "float32", "f64": "float64"},
}
REAL = ("f16", "bf", "f32", "f64")
NUMBERS = (0, 1, 2, 3, 5, 7, 63, 64, 100, 2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1)
REAL_NUMBERS = (0.0, 0.5, 1.0, 1e3, 1e300)
LEVEL = {
    **{"?:": 1, "||": 2, "&&": 3, "|": 4, "^": 5, "&": 6, "==": 7, "!=": 7},
    **{"<": 8, "<=": 8, ">": 8, ">=": 8, "<<": 9, ">>": 9, "+": 10, "-": 10},
    **{"*": 11, "/": 11, "%": 11},
}
BITWISE = ("%", "<<", ">>", "&", "|", "^")
BOTH = ("+", "-", "*", "/", "min", "max")
TRUTH = ("<", "<=", ">", ">=", "==", "!=", "&&", "||")


def sample(rng: random.Random) -> dict[str, Any]:
    """Return an array of every dtype, of other lengths, and two scalars."""
    generator = np.random.default_rng(rng.randrange(2**32))
    values: dict[str, Any] = {}
    for at, (name, dtype) in enumerate(DTYPES.items()):
        size = (0, 3, 40, 90)[(at + rng.randrange(4)) % 4]
        if name in REAL:
            known = np.array([0.0, 1.5, -2.0, np.nan, np.inf, -np.inf, 3e-8, 1e-40, 6e4])
            of = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            values[name] = generator.choice(known, size).astype(np.float32).astype(of)
        elif dtype == "bool":
            values[name] = generator.random(size) < 0.5
        else:
            info = np.iinfo(dtype)
            small = generator.integers(0 if info.min == 0 else -5, 60, size).astype(dtype)
            edge = np.array([info.min, info.max, info.max - 1], dtype)
            picked = np.where(generator.random(size) < 0.8, small, generator.choice(edge, size))
            values[name] = picked.astype(dtype)
    values["n"] = rng.choice((0, 1, 7, -3, 64, 2**31, -(2**63), 2**63 - 1))
    values["x"] = rng.choice((0.0, -1.5, 20.0, math.nan, math.inf))
    return values


def tree(rng: random.Random, depth: int, real: bool = False, reals: bool = True) -> Tree:
    """Return a random formula; a double if `real`, without any if not `reals`."""
    if depth == 0 or rng.random() < 0.1:
        return _leaf(rng, real)
    kind = rng.randrange(10)
    if kind == 0:
        arms = (tree(rng, depth - 1, real, reals), tree(rng, depth - 1, False, reals))
        condition = tree(rng, depth - 1, reals and rng.random() < 0.2, reals)
        return ("?:", condition, *rng.sample(arms, 2))
    if kind == 1:
        names = REAL if real else [name for name in DTYPES if name not in REAL]
        return ("read", rng.choice(names), tree(rng, min(depth - 1, 2), False, reals))
    if real or kind < 4:
        symbol = rng.choice((*BOTH, "abs", "-x", "+x"))
        first = tree(rng, depth - 1, real, reals)
        if symbol not in BOTH:
            return (symbol, first)
        return (symbol, *rng.sample((first, tree(rng, depth - 1, False, reals)), 2))
    if kind < 6:
        symbol = rng.choice((*BITWISE, "~"))
        args = [tree(rng, depth - 1, False, reals) for _ in range(1 if symbol == "~" else 2)]
        return (symbol, *args)
    symbol = rng.choice((*TRUTH, "!"))
    count = 1 if symbol == "!" else 2
    return (
        symbol,
        *(tree(rng, depth - 1, reals and rng.random() < 0.2, reals) for _ in range(count)),
    )


def _leaf(rng: random.Random, real: bool) -> Tree:
    if real:
        return rng.choice((("number", rng.choice(REAL_NUMBERS)), ("name", "x")))
    if rng.random() < 0.6:
        return ("name", rng.choice("ij"))
    return rng.choice(
        (("name", "n"), ("number", rng.choice(NUMBERS)), ("number", rng.randrange(9)))
    )


def text(rng: random.Random, node: Tree, floor: int = 0) -> str:
    """Write a formula with parentheses where C needs them, and sometimes elsewhere."""
    symbol, *args = node
    if symbol == "number":
        value = args[0]
        return hex(value) if isinstance(value, int) and rng.random() < 0.2 else repr(value)
    if symbol == "name":
        return str(args[0])
    if symbol == "read":
        return f"{args[0]}[{text(rng, args[1])}]"
    if symbol in ("min", "max", "abs"):
        return f"{symbol}({', '.join(text(rng, arg) for arg in args)})"
    space = " " * rng.randrange(2)
    if symbol == "?:":
        level, parts = 1, (text(rng, args[0], 2), text(rng, args[1]), text(rng, args[2], 1))
        made = f"{parts[0]}{space}?{space}{parts[1]}{space}:{space}{parts[2]}"
    elif len(args) == 1:
        level, made = 12, f"{symbol[0]}{space}{text(rng, args[0], 13)}"
    else:
        level = LEVEL[symbol]
        left = level + (level in (7, 8))  # comparisons do not chain
        right = text(rng, args[1], level + 1)
        space = " " if right[0] in "+-" else space  # C has `++` and `--`
        made = f"{text(rng, args[0], left)} {symbol}{space}{right}"
    return f"({made})" if level < floor or rng.random() < 0.1 else made


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def meaning(node: Tree, i: int, j: int, values: dict[str, Any]) -> int | float:
    """Return what a formula is for one element."""
    symbol, *args = node
    if symbol == "number":
        return args[0]
    if symbol == "name":
        return {"i": i, "j": j, **values}[args[0]]
    if symbol == "read":
        array, at = values[args[0]], meaning(args[1], i, j, values)
        if not 0 <= at < len(array):
            return 0.0 if args[0] in REAL else 0
        return float(array[at]) if args[0] in REAL else wrapped(int(array[at]))
    if symbol == "?:":
        condition, yes, no = (meaning(arg, i, j, values) for arg in args)
        chosen = yes if condition != 0 else no
        return float(chosen) if isinstance(yes, float) or isinstance(no, float) else chosen
    operands = [meaning(arg, i, j, values) for arg in args]
    if symbol in ("&&", "||", "!"):
        facts = [operand != 0 for operand in operands]
        return int({"&&": all(facts), "||": any(facts), "!": not facts[0]}[symbol])
    if any(isinstance(operand, float) for operand in operands):
        return _of_floats(symbol, *map(float, operands))
    return _of_integers(symbol, *operands)


def _shared(symbol: str, a: Any, b: Any) -> Any:
    if symbol in ("min", "max"):
        swap = b < a if symbol == "min" else a < b
        return b if swap else a
    facts = {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}
    return int(facts[symbol]) if symbol in facts else None


def _of_floats(symbol: str, a: float, b: float = 0.0) -> int | float:
    if symbol == "/":
        if b != 0:
            return a / b
        return (
            math.nan
            if a == 0 or math.isnan(a)
            else math.copysign(math.inf, a) * math.copysign(1, b)
        )
    simple = {"+": a + b, "-": a - b, "*": a * b, "-x": -a, "+x": a, "abs": abs(a)}
    return simple[symbol] if symbol in simple else _shared(symbol, a, b)


def _of_integers(symbol: str, a: int, b: int = 0) -> int:
    if symbol in ("/", "%"):
        if b == 0:
            return 0
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return wrapped(quotient) if symbol == "/" else a - quotient * b
    simple = {
        **{"+": a + b, "-": a - b, "*": a * b, "-x": -a, "+x": a, "abs": abs(a), "~": ~a},
        **{"&": a & b, "|": a | b, "^": a ^ b, "<<": a << (b & 63), ">>": a >> (b & 63)},
    }
    return wrapped(simple[symbol]) if symbol in simple else _shared(symbol, a, b)
