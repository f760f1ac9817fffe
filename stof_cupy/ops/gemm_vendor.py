"""Products by cuBLASLt, where it is installed: one more candidate beside our own kernels.

It is reached through ``nvmath.bindings`` (the extra ``vendor``), because CuPy refuses its cuBLAS
while a stream is captured. Where that is missing, nothing else changes.

cuBLASLt knows matrices that are contiguous along their columns, so it is asked for the transposed
product: its first operand is B, its result has our columns as rows. Its epilogue is
``activation(alpha * product + beta * C + bias)``, and its GELU is the approximation by tanh.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.errors import mismatch
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops._arrays import Array, pointer
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_operand import Matrix, matrix

__all__ = ["RANKS", "Vendor", "fault", "prepare", "version"]

RANKS = 3
"""How many of the algorithms that cuBLASLt suggests are candidates."""

_TYPES = {"float16": 2, "bfloat16": 14}  # cudaDataType
_FLOAT32, _COMPUTE_FLOAT32 = 0, 68
_IN_FLOAT32 = 2  # the one way to add up pieces of K that rounds nothing between
_ACTIVATIONS = {None: 0, "relu": 2, "gelu_tanh": 32}
_BIAS, _NOTHING = 4, 1
_BYTES = 2  # of an element
_WORKSPACE = 32 << 20  # what cuBLAS itself takes on Hopper
_RESULT = np.dtype(
    [("algo", "u8", 8), ("workspace", "u8"), ("state", "i4"), ("waves", "f4"), ("rest", "i4", 4)]
)
"""An algorithm that cuBLASLt suggests (``cublasLtMatmulHeuristicResult_t``)."""


@dataclass(frozen=True)
class Vendor:
    """cuBLASLt; `rank` is which of the algorithms it suggests, the first being its best guess."""

    rank: int = 0


@cache
def binding() -> Any | None:
    """Return ``nvmath.bindings.cublasLt``, or None where that or the library is missing."""
    try:
        from nvmath.bindings import cublasLt

        cublasLt.get_version()
    except Exception:  # a library that is not there is an error of nvmath's own
        return None
    return cublasLt


def version() -> str:
    """Return the version of cuBLASLt, or an empty string where products never run on it.

    Examples
    --------
    >>> version() == "" or version().count(".") == 2
    True
    """
    found = binding()
    if found is None:
        return ""
    number = int(found.get_version())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def fault(problem: Problem) -> str | None:
    """Return why cuBLASLt computes no such product, or None.

    Examples
    --------
    >>> fault(Problem("float16", 8, 8, 8, EpilogueKind(activation="gelu")))
    "activation: got 'gelu', expected None, 'relu' or 'gelu_tanh'"
    """
    kind = problem.epilogue
    if problem.dtype not in _TYPES:
        return mismatch("dtype", problem.dtype, " or ".join(_TYPES))
    if min(problem.m, problem.n, problem.k) == 0:
        return mismatch("(M, N, K)", (problem.m, problem.n, problem.k), "no empty axis")
    if kind.gated or not kind.rows_alone:
        return mismatch("epilogue", kind.name, "one that changes elements")
    if kind.activation not in _ACTIVATIONS:
        expected = "None, 'relu' or 'gelu_tanh'"
        return mismatch("activation", repr(kind.activation), expected)
    if kind.residual and kind.activation is not None:
        return mismatch("residual", "one after an activation", "no activation")
    return None


class _Stored(NamedTuple):
    """A matrix as cuBLASLt takes it: contiguous columns, `step` elements from one to the next."""

    rows: int
    cols: int
    step: int
    turned: bool  # whether that is its transpose
    alignment: int


def _stored(x: Matrix) -> _Stored | None:
    """Return how a matrix lies, or None if neither axis is contiguous."""
    alignment = min(x.address & -x.address, 256)
    row = x.row if x.rows > 1 else max(x.cols * _BYTES, x.row)
    col = x.col if x.cols > 1 else max(x.rows * _BYTES, x.col)
    if (x.col == _BYTES or x.cols == 1) and row >= x.cols * _BYTES:
        return _Stored(x.cols, x.rows, row // _BYTES, True, alignment)
    if (x.row == _BYTES or x.rows == 1) and col >= x.rows * _BYTES:
        return _Stored(x.rows, x.cols, col // _BYTES, False, alignment)
    return None


class _Key(NamedTuple):
    """All that a plan depends on."""

    device: int
    dtype: str
    kind: EpilogueKind
    rank: int
    b: _Stored
    a: _Stored
    c: _Stored
    added: _Stored


class _Plan:
    """A product with its algorithm; `ran` once a launch has loaded what it needs."""

    def __init__(self, lt: Any, key: _Key) -> None:
        kind, names = key.kind, lt.MatmulDescAttribute
        code = _ACTIVATIONS[kind.activation] | (_BIAS if kind.bias else 0) or _NOTHING
        self.description = lt.matmul_desc_create(_COMPUTE_FLOAT32, _FLOAT32)
        self.tell(lt, names.TRANSA, np.int32(key.b.turned))
        self.tell(lt, names.TRANSB, np.int32(not key.a.turned))
        self.tell(lt, names.EPILOGUE, np.uint32(code))
        self.layouts = tuple(
            lt.matrix_layout_create(_TYPES[key.dtype], x.rows, x.cols, x.step)
            for x in (key.b, key.a, key.added, key.c)  # its A, B, C and D
        )
        self.algo, self.workspace, self.ran = np.zeros(8, np.uint64), 0, False
        weakref.finalize(self, _destroy, lt, self.description, self.layouts).atexit = False

    def tell(self, lt: Any, name: Any, value: np.generic) -> None:
        """Set an attribute of the product."""
        stored = np.array([value])
        lt.matmul_desc_set_attribute(self.description, name, stored.ctypes.data, stored.nbytes)

    def run(
        self,
        lt: Any,
        handle: int,
        a: Array,
        b: Array,
        c: Array,
        added: Array,
        bias: Array | None,
        factors: tuple[float, float],
    ) -> None:
        """Launch; `factors` are of the product and of what is added."""
        import cupy

        # Where a stream is captured, it is the allocator that keeps this for the graph.
        workspace = cupy.empty(self.workspace, np.uint8) if self.workspace else None
        alpha, beta = np.array(factors, np.float32)[:, None]
        of_b, of_a, of_added, of_c = self.layouts
        with _lock:
            if bias is not None:
                self.tell(lt, lt.MatmulDescAttribute.BIAS_POINTER, np.uint64(pointer(bias)))
            lt.matmul(
                *(handle, self.description),
                *(alpha.ctypes.data, pointer(b), of_b, pointer(a), of_a),
                *(beta.ctypes.data, pointer(added), of_added, pointer(c), of_c),
                *(self.algo.ctypes.data, pointer(workspace), self.workspace),
                cupy.cuda.get_current_stream().ptr,
            )
        self.ran = True


_lock = threading.Lock()
"""Of everything cuBLASLt is told before a launch: a description holds the bias's address."""


def prepare(
    choice: Vendor,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    scale: float = 1.0,
    stages: None = None,
) -> Callable[[], None] | None:
    """Return a launch on the current device and CuPy's current stream; None if there is none now.

    While a stream is captured there is one only of what has run before: libraries load themselves
    at first use, which a capture does not allow.

    Parameters
    ----------
    a, b, c : cupy.ndarray
        ``(M, K)``, ``(N, K)`` and the result's rows, all matrices; `c` has a unit column stride.
    bias, residual : cupy.ndarray, optional
        Contiguous; with a unit column stride.
    """
    lt, added = binding(), c if residual is None else residual
    if lt is None or fault(problem) is not None or (bias is not None and pointer(bias) % 16):
        return None
    of_b, of_a, of_c, of_added = (_stored(matrix(x)) for x in (b, a, c, added))
    if of_b is None or of_a is None or of_c is None or of_added is None:
        return None
    handle = _handle(c.device.id)
    if handle is None or not (of_c.turned and of_added.turned):
        return None
    which = c.device.id, problem.dtype, problem.epilogue, choice.rank
    plan = _plan(handle, _Key(*which, of_b, of_a, of_c, of_added))
    if plan is None or (_capturing() and not plan.ran):
        return None
    return lambda: plan.run(lt, handle, a, b, c, added, bias, (scale, residual is not None))


@lru_cache(maxsize=4096)
def _plan(handle: int, key: _Key) -> _Plan | None:
    """Ask cuBLASLt for its algorithms; None if it has not as many."""
    lt = binding()
    if lt is None:
        return None
    plan = _Plan(lt, key)
    results, count = np.zeros(key.rank + 1, _RESULT), np.zeros(1, np.int32)
    preference = _preference(lt, key)
    try:
        lt.matmul_algo_get_heuristic(
            *(handle, plan.description, *plan.layouts, preference, len(results)),
            *(results.ctypes.data, count.ctypes.data),
        )
    except lt.cuBLASLtError:
        return None
    finally:
        lt.matmul_preference_destroy(preference)
    found = results[key.rank]
    if count[0] <= key.rank or found["state"] != 0:
        return None
    plan.algo[:], plan.workspace = found["algo"], int(found["workspace"])
    return plan


_handles: dict[int, int] = {}


def _handle(device: int) -> int | None:
    """Return cuBLASLt's handle on the current device; None if a capture is no time to make it."""
    lt = binding()
    with _lock:
        if device not in _handles and lt is not None:
            if _capturing():
                return None
            _handles[device] = int(lt.create())
        return _handles.get(device)


def _capturing() -> bool:
    import cupy

    return bool(cupy.cuda.get_current_stream().is_capturing())


def _destroy(lt: Any, description: int, layouts: tuple[int, ...]) -> None:
    for layout in layouts:
        lt.matrix_layout_destroy(layout)
    lt.matmul_desc_destroy(description)


def _preference(lt: Any, key: _Key) -> int:
    """Return what an algorithm may assume and use."""
    names = lt.MatmulPreferenceAttribute
    preference = int(lt.matmul_preference_create())
    for name, value in (
        (names.MAX_WORKSPACE_BYTES, np.uint64(_WORKSPACE)),
        (names.REDUCTION_SCHEME_MASK, np.uint32(_IN_FLOAT32)),
        (names.MIN_ALIGNMENT_A_BYTES, np.uint32(key.b.alignment)),
        (names.MIN_ALIGNMENT_B_BYTES, np.uint32(key.a.alignment)),
        (names.MIN_ALIGNMENT_C_BYTES, np.uint32(key.added.alignment)),
        (names.MIN_ALIGNMENT_D_BYTES, np.uint32(key.c.alignment)),
    ):
        stored = np.array([value])
        lt.matmul_preference_set_attribute(preference, name, stored.ctypes.data, stored.nbytes)
    return preference
