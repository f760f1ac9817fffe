"""cuBLASLt as a candidate: what it is told, by a stand-in that computes; and itself on a GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops import gemm_vendor, reference
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import operands_of, prepared
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_vendor import Vendor
from stof_cupy.testing import poison
from tests.ops.test_gemm_sm90 import Case, upload

KINDS = (
    EpilogueKind(),
    EpilogueKind(bias=True),
    EpilogueKind(activation="relu"),
    EpilogueKind(scale=True, bias=True, activation="gelu_tanh"),
    EpilogueKind(scale=True, bias=True, residual=True),
)
ATTRIBUTES = SimpleNamespace(TRANSA=3, TRANSB=4, EPILOGUE=7, BIAS_POINTER=8)
PREFERENCES = SimpleNamespace(
    **{"MAX_WORKSPACE_BYTES": 1, "REDUCTION_SCHEME_MASK": 3},
    **{f"MIN_ALIGNMENT_{name}_BYTES": 5 + i for i, name in enumerate("ABCD")},
)
TYPES = {2: "float16", 14: "bfloat16"}


class Error(Exception):
    """Of the stand-in."""


class Lt:
    """``nvmath.bindings.cublasLt`` as its manual says, in NumPy."""

    MatmulDescAttribute = ATTRIBUTES
    MatmulPreferenceAttribute = PREFERENCES
    cuBLASLtError = Error  # noqa: N815  # its name

    def __init__(self, algorithms: int = 2) -> None:
        self.algorithms = algorithms
        self.things: dict[int, Any] = {}
        self.used: list[int] = []

    def _new(self, thing: Any) -> int:
        number = 1000 + len(self.used) + len(self.things)
        while number in self.things:
            number += 1
        self.things[number] = thing
        return number

    def get_version(self) -> int:
        return 130402

    def create(self) -> int:
        return self._new("handle")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, scale) == (68, 0)
        return self._new({3: b"\0" * 4, 4: b"\0" * 4, 7: b"\1\0\0\0"})

    def matmul_desc_set_attribute(self, thing: int, name: int, at: int, size: int) -> None:
        assert size == {3: 4, 4: 4, 7: 4, 8: 8}[name]
        self.things[thing][name] = ctypes.string_at(at, size)

    def matrix_layout_create(self, kind: int, rows: int, cols: int, step: int) -> int:
        assert step >= rows > 0
        return self._new((TYPES[kind], rows, cols, step))

    def matmul_preference_create(self) -> int:
        return self._new({})

    def matmul_preference_set_attribute(self, thing: int, name: int, at: int, size: int) -> None:
        assert size == (8 if name == 1 else 4)
        self.things[thing][name] = int.from_bytes(ctypes.string_at(at, size), "little")

    def _destroy(self, thing: int) -> None:
        del self.things[thing]

    matmul_preference_destroy = matmul_desc_destroy = matrix_layout_destroy = _destroy

    def matmul_algo_get_heuristic(self, handle: int, *rest: int) -> None:
        c, d, preference, wanted, results, count = rest[3:]
        assert self.things[handle] == "handle" and self.things[c][1:3] == self.things[d][1:3]
        self.told = self.things[preference]
        if self.algorithms == 0:
            raise Error
        found = min(wanted, self.algorithms)
        for i in range(found):
            made = np.zeros(1, gemm_vendor._RESULT)
            made["algo"], made["workspace"] = i + 1, 64 * i
            ctypes.memmove(results + i * made.nbytes, made.ctypes.data, made.nbytes)
        ctypes.memmove(count, np.array([found], np.int32).ctypes.data, 4)

    def _at(self, address: int, layout: int) -> Any:
        name, rows, cols, step = self.things[layout]
        size = step * (cols - 1) + rows
        flat = np.ctypeslib.as_array((ctypes.c_uint16 * size).from_address(address))
        return np.lib.stride_tricks.as_strided(
            flat.view(as_dtype(name)), (rows, cols), (2, 2 * step)
        )

    def matmul(self, handle: int, description: int, *rest: int) -> None:
        alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algo, workspace, size, stream = rest
        told = self.things[description]
        code, turned = (int.from_bytes(told[name], "little") for name in (7, 3))
        left, right = (self._at(*x).astype(np.float64) for x in ((a, of_a), (b, of_b)))
        left = left.T if turned else left
        right = right.T if int.from_bytes(told[4], "little") else right
        factors = [
            np.ctypeslib.as_array((ctypes.c_float * 1).from_address(x))[0] for x in (alpha, beta)
        ]
        out = factors[0] * (left @ right)
        if factors[1]:
            out += factors[1] * self._at(c, of_c).astype(np.float64)
        if code & 4:
            where = int.from_bytes(told[8], "little")
            bias = np.ctypeslib.as_array((ctypes.c_uint16 * len(out)).from_address(where))
            out += bias.view(as_dtype(self.things[of_d][0])).astype(np.float64)[:, None]
        if code & 2:
            out = np.maximum(out, 0)
        if code & 32:
            out = reference.gelu(out, approximate="tanh")
        assert code & ~(1 | 2 | 4 | 32) == 0 and stream == 77
        assert (workspace != 0) == (size != 0)
        to = self._at(d, of_d)
        to[...] = out.astype(to.dtype)
        self.used.append(ctypes.c_uint64.from_address(algo).value)


class OnDevice(np.ndarray):
    """An array of a GPU that is none."""

    device = SimpleNamespace(id=0)


def _here(x: Any) -> Any:
    return None if x is None else x.view(OnDevice)


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lt]:
    """Put the stand-in in cuBLASLt's place, and a CuPy that has a stream in CuPy's."""
    made = Lt()
    stream = SimpleNamespace(ptr=77, is_capturing=lambda: stream.capturing, capturing=False)
    cuda = SimpleNamespace(get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, empty=np.empty))
    made.stream = stream
    monkeypatch.setattr(gemm_vendor, "binding", lambda: made)
    monkeypatch.setattr(gemm_vendor, "_handles", {})
    gemm_vendor._plan.cache_clear()
    yield made
    gemm_vendor._plan.cache_clear()


def run(case: Case, rank: int = 0) -> Any:
    a, b, bias, residual, out = map(_here, (case.a, case.b, case.bias, case.residual, case.out))
    how = {"bias": bias, "residual": residual, "scale": case.scale}
    call = gemm_vendor.prepare(Vendor(rank), case.problem, a, b, out, **how)
    if call is not None:
        call()
    return call


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name or "plain")
@pytest.mark.parametrize("layout", ["kk", "km", "mk", "mm"])
def test_what_it_is_told_is_the_product(lt: Lt, layout: str, kind: EpilogueKind) -> None:
    for seed, size in enumerate(((17, 100, 33), (1, 72, 40), (70, 1, 8), (3, 5, 1))):
        case = Case.draw(seed, Problem("bfloat16", *size, kind), layout, padded_out=seed == 1)
        if case.bias is not None:
            case.bias = _aligned(case.bias)
        assert run(case) is not None
        case.compare(case.out)
    assert lt.used == [1] * 4


def _aligned(x: Any, by: int = 0) -> Any:
    """Return a copy at a multiple of 256 bytes, and `by` further."""
    room = np.zeros(x.nbytes + 512 + by, np.uint8)
    start = -room.ctypes.data % 256 + by
    copy = room[start : start + x.nbytes].view(x.dtype)
    copy[:] = x
    return copy


def test_other_algorithms_and_their_memory(lt: Lt) -> None:
    case = Case.draw(1, Problem("float16", 8, 16, 64))
    assert run(case, 1) is not None and run(case, 2) is None
    case.compare(case.out)
    assert lt.used == [2]
    lt.algorithms = 0
    case = Case.draw(1, Problem("float16", 8, 16, 72))
    assert run(case) is None


def test_what_an_algorithm_may_assume(lt: Lt) -> None:
    case = Case.draw(1, Problem("float16", 8, 24, 64))
    flat = _aligned(np.zeros(24 * 64, np.float16), 16)
    case.b = flat.reshape(24, 64)
    assert run(case) is not None
    assert lt.told[1] == 32 << 20 and lt.told[3] == 2
    assert lt.told[5] == 16 and all(lt.told[name] % 2 == 0 for name in (6, 7, 8))


def test_the_result_in_place_of_what_is_added(lt: Lt) -> None:
    case = Case.draw(4, Problem("bfloat16", 40, 24, 72, EpilogueKind(residual=True)))
    given, case.out = case.residual, case.residual.copy()
    case.residual = case.out
    assert run(case) is not None
    case.residual = given
    case.compare(case.out)


def test_another_bias_at_another_call(lt: Lt) -> None:
    for seed in (1, 2):
        case = Case.draw(seed, Problem("float16", 8, 16, 64, EpilogueKind(bias=True)))
        case.bias = _aligned(case.bias)
        assert run(case) is not None
        case.compare(case.out)


def test_while_a_stream_is_captured(lt: Lt) -> None:
    """Only what has run before, and no handle is made."""
    case = Case.draw(1, Problem("float16", 8, 16, 64))
    lt.stream.capturing = True
    assert run(case) is None and not gemm_vendor._handles
    lt.stream.capturing = False
    assert run(case) is not None
    lt.stream.capturing = True
    assert run(case) is not None
    other = Case.draw(1, Problem("float16", 9, 16, 64))
    assert run(other) is None


def test_what_it_cannot_take(lt: Lt) -> None:
    case = Case.draw(1, Problem("float16", 8, 16, 64, EpilogueKind(bias=True)))
    case.bias = _aligned(case.bias, 2)
    assert run(case) is None
    for name in ("a", "b"):
        case = Case.draw(1, Problem("float16", 8, 16, 64))
        wide = np.zeros((2 * getattr(case, name).shape[0], 128), np.float16)
        setattr(case, name, wide[::2, ::2])
        assert run(case) is None
        setattr(case, name, wide[::-2, :64])
        assert run(case) is None
    case = Case.draw(1, Problem("float16", 8, 16, 64))
    case.out = np.zeros((16, 8), np.float16).T
    assert run(case) is None


@pytest.mark.parametrize(
    ("problem", "named"),
    [
        (Problem("float32", 8, 8, 8), "dtype"),
        (Problem("float16", 8, 8, 0), "empty"),
        (Problem("float16", 8, 8, 8, EpilogueKind(activation="silu")), "activation"),
        (Problem("float16", 8, 8, 8, EpilogueKind(activation="gelu")), "activation"),
        (Problem("float16", 8, 8, 8, EpilogueKind(activation="relu", gated=True)), "gate"),
        (Problem("float16", 8, 8, 8, EpilogueKind(heads=True)), "heads"),
        (Problem("float16", 8, 8, 8, EpilogueKind(activation="relu", residual=True)), "residual"),
    ],
)
def test_what_it_has_no_epilogue_for(problem: Problem, named: str) -> None:
    wrong = gemm_vendor.fault(problem)
    assert wrong is not None and named in wrong


def test_plans_that_nobody_needs_are_given_back(lt: Lt) -> None:
    case = Case.draw(1, Problem("float16", 8, 16, 64))
    assert run(case) is not None
    gemm_vendor._plan.cache_clear()
    assert list(lt.things.values()) == ["handle"]


def test_without_it_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath", None)
    gemm_vendor.binding.cache_clear()
    try:
        assert gemm_vendor.binding() is None and gemm_vendor.version() == ""
    finally:
        gemm_vendor.binding.cache_clear()


def test_versions(lt: Lt) -> None:
    assert gemm_vendor.version() == "13.4.2"


# ---------------------------------------------------------------- itself, on a GPU


@pytest.fixture(scope="module")
def cublaslt() -> Any:
    """Return CuPy, if cuBLASLt can be reached."""
    cupy = pytest.importorskip("cupy")
    if gemm_vendor.binding() is None:
        pytest.skip("no cuBLASLt by nvmath.bindings")
    return cupy


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name or "plain")
def test_products(cublaslt: Any, kind: EpilogueKind, dtype: str) -> None:

    sizes = ((17, 104, 72), (1, 72, 40), (300, 200, 1000), (33, 75, 101))
    for seed, size in enumerate(sizes):
        for layout in ("kk", "km", "mk", "mm"):
            case = Case.draw(seed, Problem(dtype, *size, kind), layout)
            arrays = (case.a, case.b, case.bias, case.residual)
            a, b, bias, residual = (upload(cublaslt, x) for x in arrays)
            stages = {"scale": case.scale if kind.scale else None, "activation": kind.activation}
            operands = operands_of(Epilogue(bias=bias, residual=residual, **stages))
            for rank in range(gemm_vendor.RANKS):
                out = poison(size[:2], case.a.dtype, cublaslt)
                call = prepared(Vendor(rank), case.problem, a, b, out, operands)
                if call is None:
                    assert rank > 0, "not even one algorithm"
                    continue
                call()
                case.compare(out)


@pytest.mark.gpu
def test_captured_products(cublaslt: Any) -> None:

    case = Case.draw(3, Problem("bfloat16", 16, 264, 512, KINDS[1]))
    a, b, bias = (upload(cublaslt, x) for x in (case.a, case.b, case.bias))
    out = cublaslt.empty((16, 264), case.a.dtype)
    call = prepared(Vendor(), case.problem, a, b, out, operands_of(Epilogue(bias=bias)))
    assert call is not None
    call()
    want = out.copy()
    stream = cublaslt.cuda.Stream(non_blocking=True)
    cublaslt.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        call()
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(0)
            graph.launch(stream)
            stream.synchronize()
            assert cublaslt.array_equal(out.view("u2"), want.view("u2"))
