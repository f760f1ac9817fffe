"""Formulas on NumPy: every element is what Python's own numbers say, every error says where."""

from __future__ import annotations

import pickle
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.masks.formula import Formula
from tests.masks import formulas

TOP = 2**63 - 1


def used(formula: Formula, values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in formula.names}


def one(text: str, i: int = 0, j: int = 0, **values: Any) -> bool:
    made = Formula.parse(text).evaluate(np.array([i]), np.array([j]), values)
    assert made.shape == (1,) and made.dtype == np.bool_
    return bool(made[0])


@given(st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_random_formulas(rng: random.Random) -> None:
    values = formulas.sample(rng)
    tree = formulas.tree(rng, rng.randrange(1, 6), rng.random() < 0.2)
    formula = Formula.parse(formulas.text(rng, tree))
    i = np.array(sorted(rng.sample(range(100), 6)))[:, None]
    j = np.array(sorted(rng.sample(range(100), 7)))
    made = formula.evaluate(i, j, used(formula, values))
    expected = [
        [formulas.meaning(tree, a, b, values) != 0 for b in j.tolist()] for a in i[:, 0].tolist()
    ]
    np.testing.assert_array_equal(made, expected, err_msg=formula.text)


@pytest.mark.parametrize(
    "text, value",
    [
        ("2 + 3 * 4", 14),
        ("20 - 5 - 3", 12),
        ("100 / 5 / 2", 10),
        ("7 % 4 * 2", 6),
        ("1 << 2 + 1", 8),
        ("1 | 6 & 3 ^ 1", 3),
        ("5 & 3 == 3", 1),
        ("1 < 2 == 1", 1),
        ("0 && 0 || 1", 1),
        ("1 || 0 && 0", 1),
        ("0 ? 1 : 0 ? 2 : 3", 3),
        ("1 ? 0 ? 4 : 5 : 6", 5),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7 / -2", -3),
        ("7 % -2", 1),
        ("7 / 0", 0),
        ("7 % 0", 0),
        ("-2 >> 1", -1),
        ("1 << 65", 2),
        ("1 << -63", 2),
        ("!0 + !5", 1),
        ("~0", -1),
        ("- -3", 3),
        ("-!0", -1),
        ("0xFf", 255),
        ("true + false", 1),
        ("abs(-3) + min(4, 2) + max(4, 2)", 9),
        (f"{TOP} + 1", -(2**63)),
        (f"(-{TOP} - 1) / -1", -(2**63)),
        (f"(-{TOP} - 1) % -1", 0),
        (f"abs(-{TOP} - 1)", -(2**63)),
        ("5\n+\t5", 10),
        (" 5 ", 5),
    ],
)
def test_value(text: str, value: int) -> None:
    assert one(f"({text}) == n", n=value), text
    assert not one(f"({text}) != n", n=value), text


@pytest.mark.parametrize(
    "text, value",
    [
        ("1.5 + 1", 2.5),
        ("5 / 2.", 2.5),
        (".5e1", 5.0),
        ("1e2", 100.0),
        ("1 ? 1 : 0.5", 1.0),
        ("abs(-0.5)", 0.5),
        ("1.0 / 0", np.inf),
        ("min(0.5, 1)", 0.5),
        ("true * 0.25", 0.25),
    ],
)
def test_float_value(text: str, value: float) -> None:
    assert one(f"{text} == n", n=value), text


def test_nan() -> None:
    for text in ("x < 1", "x >= 1", "x == x", "!x", "min(0.0, x) != 0"):
        assert not one(text, x=np.nan), text
    for text in ("x != x", "x", "x && 1", "min(x, 1) != 1"):
        assert one(text, x=np.nan), text


def test_out_of_bounds_is_zero() -> None:
    a = np.array([5, 6])
    for index in ("2", "-1", "i", "1 << 40"):
        assert one(f"a[{index}] == 0", i=2, a=a)
        assert one(f"a[{index}] == 0", i=2, a=a[:0])
        assert one(f"a[{index}] == 0", i=2, a=a.astype(float))
    assert one("a[a[0] - 4] == 6", a=a)


def test_dtypes() -> None:
    for dtype in formulas.DTYPES.values():
        of = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        a = np.array([0, 1], of)
        assert one("a[1] == 1 && a[0] != a[1]", a=a) and not one("a[0]", a=a)
    assert one("a[0] == -1", a=np.array([2**64 - 1], np.uint64))
    assert one("a[0] == 4294967295", a=np.array([2**32 - 1], np.uint32))
    for scalar in (3, 3.0, np.int8(3), np.uint64(3), np.float16(3), ml_dtypes.bfloat16(3)):
        assert one("n == 3", n=scalar)
    assert one("n", n=True) and one("n", n=np.bool_(True)) and not one("n", n=np.bool_(False))


def test_strided_arrays() -> None:
    a = np.arange(10)[::-2]
    assert one("a[0] == 9 && a[4] == 1", a=a)


def test_shape_of_the_result() -> None:
    i, j = np.arange(3)[:, None], np.arange(4)
    for text in ("1", "i", "j < 2", "i == j"):
        assert Formula.parse(text).evaluate(i, j, {}).shape == (3, 4)


def test_names() -> None:
    formula = Formula.parse("w + doc[i + n] < doc[j] && alpha[doc[0]]")
    assert formula.names == {"alpha": True, "doc": True, "n": False, "w": False}
    assert list(formula.names) == sorted(formula.names)
    assert repr(Formula.parse("i<j")) == "Formula('i<j')"


def test_pickle() -> None:
    formula = pickle.loads(pickle.dumps(Formula.parse("i >= j && w")))
    assert formula.text == "i >= j && w" and formula.names == {"w": False}
    assert formula.evaluate(np.array([2]), np.array([1]), {"w": 1}).all()


def test_kinds() -> None:
    formula = Formula.parse("n * x > a[i]")
    assert formula.kinds({"x": 1.5, "a": np.zeros(3, np.int16), "n": 2}) == {
        "a": np.dtype("int16"),
        "n": "int",
        "x": "float",
    }


@pytest.mark.parametrize(
    "text, at, match",
    [
        ("", 0, "got the end at position 0, expected a name, a number"),
        ("i +", 3, "got the end"),
        ("i j", 2, "got 'j' at position 2, expected an operator or the end"),
        ("(i", 2, r"got the end at position 2, expected '\)'"),
        ("i)", 1, r"got '\)'"),
        ("i = j", 2, "got '='.*equality is `==`"),
        ("i ; j", 2, "got ';'"),
        ("i é", 2, "expected an operator, a name or a number"),
        ("i // 2", 3, "got '/'"),
        ("i ** 2", 3, r"got '\*'"),
        ("i++", 1, r"got '\+\+'"),
        ("--i", 0, "got '--'"),
        ("i && and", 5, "got 'and'.*C's &&"),
        ("i and j", 2, "got 'and'.*C's &&"),
        ("not i", 0, "got 'not'.*C's !"),
        ("010", 0, "got '010'.*no octal"),
        ("1u", 0, "got '1u'.*no suffixes"),
        ("1.2.3", 0, r"got '1.2.3'"),
        ("0x", 0, "got '0x'"),
        ("i + 5x", 4, "got '5x'"),
        ("9223372036854775808", 0, r"below 2\*\*63"),
        ("0x8000000000000000", 0, r"below 2\*\*63"),
        ("1e999", 0, "finite double"),
        ("0 <= i < 5", 7, "got '<' at position 7.*`&&` between comparisons"),
        ("i == j == 1", 7, "`&&` between"),
        ("i ? j", 5, "got the end at position 5, expected ':'"),
        ("foo(i)", 0, "got function 'foo'.*abs, min, max"),
        ("abs i", 4, r"expected '\('"),
        ("min(i)", 5, "expected ','"),
        ("max(i, j, 1)", 8, r"got ','.*expected '\)'"),
        ("i[3]", 0, "got 'i'.*the name of an array"),
        ("doc[i", 5, "expected ']'"),
        ("doc[i] == doc", 10, "got 'doc', with an index and without"),
        ("doc.x", 3, "got '.'"),
        ('"i"', 0, "got '\"'"),
        ("i; system(1)", 1, "got ';'"),
        ("i\n >\n j k", 8, "got 'k'"),
        ("(" * 101 + "i" + ")" * 101, 100, "got 101 levels.*at most 100"),
        ("-" + " -" * 120 + "i", None, "levels"),
        ("+".join("i" * 200), None, "levels"),
        ("a[" * 101 + "i" + "]" * 101, None, "levels"),
        ("i?" * 150 + "i" + ":i" * 150, None, "levels"),
        ("i?i:" * 150 + "i", None, "levels"),
        ("i" + " " * 5000, None, "got 5001 characters, expected at most 4096"),
    ],
)
def test_what_is_no_formula(text: str, at: int | None, match: str) -> None:
    with pytest.raises(ArgumentError, match=match) as raised:
        Formula.parse(text)
    if at is not None:
        line, caret = str(raised.value).split("\n")[-2:]
        column = at - text.rfind("\n", 0, at) - 1
        assert caret.strip() == "^"
        left = column - (len(caret) - 5)  # what a long line is cut by
        assert line[4:] == text.split("\n")[text.count("\n", 0, at)][left : left + 90]


@given(st.text("ij0159.xXe+-*/%<>=!&|^~?:()[], \nandmi", max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_formula_or_an_argument_error(text: str) -> None:
    try:
        formula = Formula.parse(text)
    except ArgumentError:
        return
    assert all(isinstance(indexed, bool) for indexed in formula.names.values())


def test_deepest_formulas_evaluate() -> None:
    for text in ("+".join("i" * 100), "(" * 99 + "i" + ")" * 99, "~" * 99 + "i"):
        assert one(text, i=1)
        assert "i" in Formula.parse(text).cuda({}, (64, 64))


@pytest.mark.parametrize("text", [None, 5, b"i"])
def test_text_that_is_no_str(text: Any) -> None:
    with pytest.raises(DTypeError, match="formula: got"):
        Formula.parse(text)


@pytest.mark.parametrize(
    "error, match, text, values",
    [
        (ArgumentError, "got nothing, expected w", "i < w", {}),
        (ArgumentError, "got w, v, expected w", "i < w", {"w": 1, "v": 2}),
        (ArgumentError, "got v, expected nothing", "i < 1", {"v": 2}),
        (ArgumentError, "name 'a b'", "i", {"a b": 1}),
        (ArgumentError, "name 'é'", "i", {"é": 1}),
        (ArgumentError, "name 5", "i", {5: 1}),
        (ArgumentError, "name 'i'", "i", {"i": 1}),
        (ArgumentError, "name 'min'", "i", {"min": 1}),
        (ArgumentError, "name 'true'", "i", {"true": 1}),
        (ArgumentError, r"arrays\['a'\]: got 3, expected a 1-D array", "a[i]", {"a": 3}),
        (ArgumentError, r"got an array \(2,\).*a\[i\]", "a < i", {"a": np.zeros(2)}),
        (ArgumentError, r"an integer from -2\*\*63", "w", {"w": 2**63}),
        (ArgumentError, r"an integer from -2\*\*63", "w", {"w": np.uint64(2**63)}),
        (ShapeError, r"got \(2, 2\)", "a[i]", {"a": np.zeros((2, 2))}),
        (ShapeError, r"got \(\)", "a[i]", {"a": np.zeros(())}),
        (DTypeError, "complex128", "a[i]", {"a": np.zeros(2, complex)}),
        (DTypeError, "dtype", "a[i]", {"a": np.zeros(2, object)}),
        (DTypeError, "dtype", "a[i]", {"a": np.zeros(2, np.longdouble)}),
        (DTypeError, "native byte order", "a[i]", {"a": np.zeros(2, ">i4")}),
        (DTypeError, "a masked array", "a[i]", {"a": np.ma.zeros(2)}),
        (DTypeError, "got list", "a[i]", {"a": [1, 2]}),
        (DTypeError, "got str", "w", {"w": "1"}),
        (DTypeError, "got complex", "w", {"w": 1j}),
        (DTypeError, "got datetime64", "w", {"w": np.datetime64(1, "s")}),
        (DTypeError, "a float operand of '%' at position 2", "i % 2.0", {}),
        (DTypeError, "a float operand of '%' at position 2", "i % w", {"w": 2.0}),
        (DTypeError, "a float operand of '<<'", "a[i] << 1", {"a": np.zeros(2, np.float16)}),
        (DTypeError, "a float operand of '>>'", "1 >> (i ? 1 : 0.5)", {}),
        (DTypeError, "a float operand of '&'", "i & 1.5", {}),
        (DTypeError, r"a float operand of '\|'", "abs(0.5) | i", {}),
        (DTypeError, r"a float operand of '\^'", "-1.5 ^ i", {}),
        (DTypeError, "a float operand of '~'", "~1.5", {}),
        (DTypeError, "a float index at position 0", "a[1.0]", {"a": np.zeros(2)}),
    ],
)
def test_what_values_do_not_fit(
    error: type[Exception], match: str, text: str, values: dict[str, Any]
) -> None:
    formula = Formula.parse(text)
    with pytest.raises(error, match=match):
        formula.kinds(values)
    with pytest.raises(error, match=match):
        formula.evaluate(np.arange(2), np.arange(2), values)
