"""Formulas as C++: compiled for the host they give the same elements and states as on NumPy.

The expressions are those that the GPU runs, with the same header; only ``at`` and ``scalar`` are
the test's own. Undefined behaviour, such as a 32-bit overflow, is reported by the sanitizer.
"""

from __future__ import annotations

import ctypes
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import MissingDependencyError
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import FLAGS
from stof_cupy.jit.source import cuda_root
from stof_cupy.masks.formula import Formula
from tests.masks import formulas

SHAPES = ((130, 200), (2**31 - 1, 2**31 - 1), (100_000, 70_000))
BOXES = 40
POINTS = 400
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++")

HOST = r"""
#include <cmath>
#include <cstring>
#include <type_traits>
#define __device__
#define __forceinline__ inline
#include "mask/formula.cuh"

struct Param { const void* data; long long size; };

namespace stof::mask {
template <typename T> T value(T x) { return x; }
template <typename T> double real(T x) { return x; }
inline double real(bf16 x) {
  const u32 bits = static_cast<u32>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline double real(f16 x) {
  const int exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
  double y = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  if (exponent == 31) y = mantissa ? NAN : INFINITY;
  return x.bits >> 15 ? -y : y;
}
template <typename T> auto at(const Param& p, long long index) {
  const bool inside = index >= 0 && index < p.size;
  const T* data = static_cast<const T*>(p.data);
  if constexpr (!std::is_integral_v<T>) return inside ? real(data[index]) : 0.0;
  else if constexpr (sizeof(T) < 4 || std::is_same_v<T, int>) return inside ? int(data[index]) : 0;
  else return inside ? static_cast<long long>(data[index]) : 0LL;
}
template <typename T> T scalar(const Param& p) { return *static_cast<const T*>(p.data); }
"""

ONE = """
extern "C" void value{k}(const int* is, const int* js, int n, const Param* p, unsigned char* out) {{
  for (int m = 0; m < n; ++m) {{
    const int i = is[m], j = js[m];
    static_assert(std::is_same_v<decltype({value}), bool>);
    out[m] = {value};
  }}
}}
extern "C" void state{k}(const int* b, int n, const Param* p, unsigned char* out) {{
  for (int m = 0; m < n; ++m) {{
    const int i0 = b[m * 4], i1 = b[m * 4 + 1], j0 = b[m * 4 + 2], j1 = b[m * 4 + 3];
    static_assert(std::is_same_v<decltype({state}), int>);
    out[m] = {state};
  }}
}}
"""

# The text itself, by a compiler of C++: numbers and names are objects whose operators are ours.
DIRECT = r"""
using namespace stof;
using namespace stof::mask;
struct V {
  long long v;
  explicit operator bool() const { return v != 0; }
};
#define OP(symbol, result) inline V operator symbol(V a, V b) { return {result}; }
OP(+, add(a.v, b.v)) OP(-, sub(a.v, b.v)) OP(*, mul(a.v, b.v)) OP(/, quot(a.v, b.v))
OP(%, rem(a.v, b.v)) OP(<<, shl(a.v, b.v)) OP(>>, shr(a.v, b.v)) OP(&, a.v & b.v)
OP(|, a.v | b.v) OP(^, a.v ^ b.v) OP(<, a.v < b.v) OP(<=, a.v <= b.v) OP(>, a.v > b.v)
OP(>=, a.v >= b.v) OP(==, a.v == b.v) OP(!=, a.v != b.v) OP(&&, a.v && b.v) OP(||, a.v || b.v)
inline V operator+(V a) { return a; }
inline V operator-(V a) { return {neg(a.v)}; }
inline V operator!(V a) { return {!a.v}; }
inline V operator~(V a) { return {~a.v}; }
inline V min(V a, V b) { return {b.v < a.v ? b.v : a.v}; }
inline V max(V a, V b) { return {a.v < b.v ? b.v : a.v}; }
inline V abs(V a) { return {magnitude(a.v)}; }
"""
DIRECT_ONE = """
extern "C" void direct{k}(const int* is, const int* js, int size, unsigned char* out) {{
  for (int m = 0; m < size; ++m) {{
    const V i{{is[m]}}, j{{js[m]}}, n{{{n}}};
    out[m] = bool({text});
  }}
}}
"""


def build(source: str, folder: Path) -> ctypes.CDLL:
    """Compile for the host; the sanitizer reports to stderr and goes on."""
    file, library = folder / "host.cpp", folder / "host.so"
    file.write_text(source)
    flags = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fsanitize=undefined", "-shared"]
    command = [str(COMPILER), *flags, "-fPIC", f"-I{cuda_root()}", str(file), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Case:
    """A formula with its values, and what to ask of it."""

    def __init__(self, formula: Formula, values: dict[str, Any], shape: tuple[int, int]) -> None:
        self.formula, self.shape = formula, shape
        self.values = {name: values[name] for name in formula.names}
        self.kinds = formula.kinds(self.values)
        self._kept: list[np.ndarray] = []

    def source(self, number: int) -> str:
        value = self.formula.cuda(self.kinds, self.shape)
        state = self.formula.cuda_state(self.kinds, self.shape)
        return ONE.format(k=number, value=value, state=state)

    def params(self) -> np.ndarray:
        """The array of Param: where the data of each name is, and how much."""
        params = np.zeros((len(self.values), 2), np.int64)
        for row, (name, value) in enumerate(self.values.items()):
            scalars = {"int": np.int64, "float": np.float64}
            kind = self.kinds[name]
            array = np.array([value], scalars[kind]) if isinstance(kind, str) else value
            self._kept.append(array)
            params[row] = array.ctypes.data, len(array)
        return params

    def points(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Positions near both ends of the shape, and in between."""
        sides = []
        for size in self.shape:
            near = np.concatenate([np.arange(min(100, size)), size - 1 - np.arange(min(100, size))])
            picked = np.where(rng.random(POINTS) < 0.8, rng.choice(near, POINTS), 0)
            anywhere = rng.integers(0, size, POINTS)
            sides.append(np.where(picked > 0, picked, anywhere).astype(np.int32))
        return sides[0], sides[1]

    def boxes(self, rng: np.random.Generator) -> np.ndarray:
        """Boxes ``(i0, i1, j0, j1)`` of at most 16 positions a side."""
        i, j = (side[:BOXES].astype(np.int64) for side in self.points(rng))
        high, wide = rng.integers(0, 16, (2, BOXES))
        ends = np.minimum(i + high, self.shape[0] - 1), np.minimum(j + wide, self.shape[1] - 1)
        return np.stack([i, ends[0], j, ends[1]], axis=1).astype(np.int32)


def compare(cases: Sequence[Case], library: ctypes.CDLL) -> np.ndarray:
    """Check values and states of all cases; return how often each state was claimed."""
    rng = np.random.default_rng(5)
    claimed = np.zeros(3, int)
    for number, case in enumerate(cases):
        params, (i, j) = case.params(), case.points(rng)
        got = np.zeros(POINTS, np.uint8)
        getattr(library, f"value{number}")(
            pointer(i), pointer(j), POINTS, pointer(params), pointer(got)
        )
        wide = i.astype(np.int64), j.astype(np.int64)
        expected = case.formula.evaluate(*wide, case.values)
        np.testing.assert_array_equal(got, expected, err_msg=case.formula.text)

        boxes = case.boxes(rng)
        states = np.zeros(BOXES, np.uint8)
        getattr(library, f"state{number}")(pointer(boxes), BOXES, pointer(params), pointer(states))
        i0, i1, j0, j1 = boxes.astype(np.int64).T
        known, final = case.formula.states((i0, i1), (j0, j1), case.values)
        np.testing.assert_array_equal(states, known, err_msg=case.formula.text)
        assert final[known != 1].all()
        check_boxes(case, boxes, states)
        claimed += np.bincount(states, minlength=3)
    return claimed


def check_boxes(case: Case, boxes: np.ndarray, states: np.ndarray) -> None:
    """A state that claims something is what all elements of the box are."""
    for (i0, i1, j0, j1), state in zip(boxes.astype(np.int64).tolist(), states, strict=True):
        if state != 1:
            rows, cols = np.arange(i0, i1 + 1)[:, None], np.arange(j0, j1 + 1)
            inside = case.formula.evaluate(rows, cols, case.values)
            assert inside.all() if state == 2 else not inside.any(), case.formula.text


def random_cases(count: int) -> list[Case]:
    rng = random.Random(11)
    cases = []
    for number in range(count):
        tree = formulas.tree(rng, 1 + number % 5, reals=number % 3 == 0)
        formula = Formula.parse(formulas.text(rng, tree))
        cases.append(Case(formula, formulas.sample(rng), SHAPES[number % len(SHAPES)]))
    return cases


@needs_compiler
def test_values_and_states(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cases = random_cases(240)
    sources = [case.source(number) for number, case in enumerate(cases)]
    library = build(HOST + "\n".join(sources) + "}", tmp_path)
    claimed = compare(cases, library)
    assert claimed.min() > 500  # of each state, so that neither check above is idle
    assert capfd.readouterr().err == ""


EDGES = (
    *("i + 1 > j", "i * j % 7 == 3", "i << 31 > j", "i << n > 0", "j >> n & 1", "-(i << 32) < j"),
    *(
        "abs(i32[j]) > 5",
        "-i32[j] > 5",
        "i32[i] / -1 < 9",
        "i32[i] % i32[j]",
        "i32[i] / i32[j] > 0",
    ),
    *(
        "i64[i] % i64[j] == -1",
        "i64[i] / i64[j] > 2",
        "n / -1 > 0",
        "n % -1",
        "abs(n) > 0",
        "-n > 0",
    ),
    *("~i32[j] < i", "i8[i] & i8[j]", "u8[i] | i16[j] ^ u16[i]", "u32[i] + u32[j] > 1 << 32"),
    *("u64[i] > 0", "i64[j] * 3 + i > 0", "n + n > 0", "n - i * n < 0", "2147483647 + i > j"),
    *("-2147483648 == i32[i]", "i32[i] - i32[j] > 0", "i32[i] * i32[j] > 0", "i == 2147483646"),
    *("f32[i] * f32[j] + x > 0.1 * i", "f16[i] < bf[j]", "min(f64[i], x) == max(x, f64[j])"),
    *("f64[i] / f64[j] > n", "i ? f64[i] : j", "flag[i] + flag[j] == 2", "-flag[i]", "!f32[i]"),
    *("abs(i - j) % 64 < 9", "min(i, n) / 64 == max(j, 1) / 64", "(i ^ j) < 64", "(i & 63) == 0"),
    *("n << 5 > j", "i64[i] << 3 > j", "u32[j] << 31 > 5", "(i * 4096 << 31) > j", "n * 5 < n - j"),
    *("(n | 1) > (n & ~1)", "(i64[i] ^ n) < 9", "n >> 40 > j", "(n ? n : i) % 5", "-(n % 9) > -j"),
    *("abs(n % 1000) < j", "max(n, 1) / min(n, -1) < 0", "n / (j - 5)", "i / (n % 3 - 1) > 2"),
    *("i == j ? flag[i] : i > j", "true", "false", "0.5", "n", "x", "i64[n]", "i64[i64[i]]"),
)


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
def test_edges(shape: tuple[int, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(3)
    cases = [Case(Formula.parse(text), formulas.sample(rng), shape) for text in EDGES]
    sources = [case.source(number) for number, case in enumerate(cases)]
    library = build(HOST + "\n".join(sources) + "}", tmp_path)
    for value in (-(2**63), 2**63 - 1, -1, 0, 65, 2**31):
        for case in cases:
            case.values.update({"n": value} if "n" in case.values else {})
        compare(cases, library)
    assert capfd.readouterr().err == ""


@needs_compiler
def test_text_means_what_it_means_in_c(tmp_path: Path) -> None:
    rng = random.Random(23)
    made = []
    while len(made) < 150:
        text = formulas.text(rng, formulas.tree(rng, 2 + len(made) % 4, reals=False))
        if "[" not in text:
            made.append(text)
    source = HOST + "}" + DIRECT
    for number, text in enumerate(made):
        wrapped = re.sub(r"\b(0x[0-9a-f]+|[0-9]+)\b", r"V{\1LL}", text)
        source += DIRECT_ONE.format(k=number, n=number % 70 - 9, text=wrapped)
    library = build(source, tmp_path)
    i, j = (side.ravel().astype(np.int32) for side in np.mgrid[0:70:7, 0:70:7])
    for number, text in enumerate(made):
        formula = Formula.parse(text)
        got = np.zeros(len(i), np.uint8)
        getattr(library, f"direct{number}")(pointer(i), pointer(j), len(i), pointer(got))
        values = {"n": number % 70 - 9} if "n" in formula.names else {}
        expected = formula.evaluate(i.astype(np.int64), j.astype(np.int64), values)
        np.testing.assert_array_equal(got, expected, err_msg=text)


@pytest.mark.parametrize(
    "text, shape, value",
    [
        ("i >= j", (100, 100), "(i >= j)"),
        ("i * j > 5", (100, 100), "((i * j) > 5)"),
        ("i * j > 5", (2**20, 2**20), "(mul(i64(i), i64(j)) > i64(5))"),
        ("i + j", (2**30, 2**30), "((i + j) != 0)"),
        ("i + j", (2**31 - 1, 5), "(add(i64(i), i64(j)) != 0)"),
        ("i * j % 7", (2**20, 2**20), "(int((mul(i64(i), i64(j)) % i64(7))) != 0)"),
        ("i - j < w", (9, 9), "(i64((i - j)) < scalar<long long>(p[1]))"),
        ("i == j / 64", (9, 9), "(i == (j / 64))"),
        ("doc[i] == doc[j]", (9, 9), "(at<int>(p[0], i) == at<int>(p[0], j))"),
        ("doc[i > j]", (9, 9), "(at<int>(p[0], int((i > j))) != 0)"),
        ("0.5 * i + 1", (9, 9), "((mul(0.5, double(i)) + double(1)) != 0)"),
    ],
)
def test_text(text: str, shape: tuple[int, int], value: str) -> None:
    formula = Formula.parse(text)
    kinds = {"w": "int", "doc": np.dtype(np.int32)}
    if "w" in formula.names:
        formula = Formula.parse(f"{text} || doc[0]")  # the second name
        value = f"({value} || (at<int>(p[0], 0) != 0))"
    assert formula.cuda(kinds, shape) == value


def test_scalars_are_not_in_the_text() -> None:
    formula = Formula.parse("i - j < w && x > 0.5")
    made = {
        (formula.cuda(kinds, (9, 9)), formula.cuda_state(kinds, (9, 9)))
        for kinds in (formula.kinds({"w": w, "x": x}) for w, x in ((1, 2.5), (np.int8(7), 0.0)))
    }
    assert len(made) == 1


def test_what_no_box_changes_is_a_constant() -> None:
    kinds = {"doc": np.dtype(np.int32), "x": "float"}
    for text, state in (
        ("doc[i] == doc[j]", "state(Span{0LL, 1LL})"),
        ("i > 0.5", "state(Span{0LL, 1LL})"),
        ("x", "state(Span{0LL, 1LL})"),
        ("1", "state(Span{1LL, 1LL})"),
        ("i >= j && x", "state(both(ge(Span{i0, i1}, Span{j0, j1}), kMaybe))"),
    ):
        assert Formula.parse(text).cuda_state(kinds, (9, 9)) == state


KERNEL = """
#include <mask/formula.cuh>
namespace stof::mask {
struct Param { const void* data; long long size; };
template <class T> __device__ T scalar(const Param& p) { return *(const T*)p.data; }
template <class T> struct Read { using Type = int; };
template <> struct Read<u32> { using Type = i64; };
template <> struct Read<i64> { using Type = i64; };
template <> struct Read<u64> { using Type = i64; };
template <> struct Read<float> { using Type = double; };
template <> struct Read<double> { using Type = double; };
template <> struct Read<f16> { using Type = double; };
template <> struct Read<bf16> { using Type = double; };
template <class T> __device__ T raw(T x) { return x; }
__device__ double raw(float x) { return widen(x); }
__device__ u16 raw(f16 x) { return x.bits; }  // compiled alone, so any number will do
__device__ u16 raw(bf16 x) { return x.bits; }
template <class T> __device__ typename Read<T>::Type at(const Param& p, i64 index) {
  using Type = typename Read<T>::Type;
  return index >= 0 && index < p.size ? Type(raw(((const T*)p.data)[index])) : Type(0);
}
"""


@pytest.mark.parametrize("arch", ["80", "90a", "120"])
def test_nvrtc_compiles_it(arch: str) -> None:
    try:
        library = nvrtc.load()
    except MissingDependencyError as missing:
        pytest.skip(str(missing))
    if int(arch.rstrip("a")) not in library.archs:
        pytest.skip(f"{library} does not know sm_{arch}")
    deep = ("+".join("i" * 100), "-~" * 48 + "i", "(" * 99 + "j" + ")" * 99)
    source = KERNEL
    for number, text in enumerate((*EDGES, *deep)):
        case = Case(Formula.parse(text), formulas.sample(random.Random(1)), (100_000, 70_000))
        arguments = "int* out, const Param* p, int i, int j, int i0, int i1, int j0, int j1"
        value = case.formula.cuda(case.kinds, case.shape)
        state = case.formula.cuda_state(case.kinds, case.shape)
        body = f"*out = ({value}) + {state};"
        source += f'extern "C" __global__ void f{number}({arguments}) {{ {body} }}\n'
    source += "}\n"
    image, log = library.compile(source, "f.cu", (f"-arch=sm_{arch}", *FLAGS, f"-I{cuda_root()}"))
    assert image.startswith(b"\x7fELF") and "warning" not in log and "error" not in log
