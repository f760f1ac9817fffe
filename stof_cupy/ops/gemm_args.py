"""The arguments of a GEMM: checked, and described for those who choose and launch a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stof_cupy.errors import DTypeError, ShapeError, UnsupportedError, mismatch
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.ops._arrays import (
    Array,
    backend,
    check_dtype,
    check_no_overlap,
    check_out,
    check_shape,
    device_dtype,
)
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_stages import arrays_of, check_stages, result_shape

__all__ = ["Problem", "as_rows", "strides", "validate"]

_AHEAD = 2**14
"""Of K: kernels of few rows count in 32 bits, and ask so far ahead at most."""


@dataclass(frozen=True)
class Problem:
    """What is to be computed; sizes in elements.

    Attributes
    ----------
    dtype : str
    m, n, k : int
        Rows and columns of the output, and what is summed over.
    epilogue : EpilogueKind
        If it is gated, B has twice the columns of the output.
    """

    dtype: str
    m: int
    n: int
    k: int
    epilogue: EpilogueKind = PLAIN

    @property
    def columns(self) -> int:
        """Columns of B."""
        return self.n * self.epilogue.halves


def validate(a: Array, b: Array, epilogue: Epilogue, out: Array | None) -> tuple[str, Problem]:
    """Check every argument of `gemm`; return ``"numpy"`` or ``"cuda"``, and the problem.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError, UnsupportedError
        See :func:`stof_cupy.gemm`.
    """
    if not isinstance(epilogue, Epilogue):
        raise DTypeError(mismatch("epilogue", type(epilogue).__name__, "an Epilogue"))
    bias, residual = epilogue.bias, epilogue.residual
    others = arrays_of(epilogue)
    where = backend(a=a, b=b, bias=bias, residual=residual, out=out, **others)
    check_dtype("a", a)
    check_dtype("b", b, a, "a")
    if a.ndim < 2:
        raise ShapeError(mismatch("a", tuple(a.shape), "(..., M, K)"))
    k = a.shape[-1]
    check_shape("b", b, (k, "N"))
    kind = epilogue.kind
    if b.shape[1] % kind.halves:
        raise ShapeError(mismatch("b", tuple(b.shape), f"({k}, N) with an even N, to be gated"))
    n = b.shape[1] // kind.halves
    shape = result_shape(a, n, epilogue)
    check_stages(epilogue, a, b.shape[1], n)
    if bias is not None:
        check_dtype("bias", bias, a, "a")
        check_shape("bias", bias, (b.shape[1],))
    if residual is not None:
        check_dtype("residual", residual, a, "a")
        check_shape("residual", residual, (*a.shape[:-1], n))
    check_out(out, shape, a)
    operands = {"a": a, "b": b, "bias": bias, "residual": residual, **others}
    check_no_overlap(out, residual, **operands)
    told = operands.pop("statistics", None)
    check_no_overlap(told, None, "statistics", **operands)
    m = math.prod(a.shape[:-1])
    if where == "cuda" and max(m + 256, b.shape[1] + 256, k + _AHEAD) > 2**31:
        sizes, expected = (m, b.shape[1], k), f"at most 2^31 - 256, and K 2^31 - {_AHEAD}"
        raise UnsupportedError(mismatch("(M, N, K)", sizes, expected))
    dtype = device_dtype("a", a) if where == "cuda" else a.dtype.name
    return where, Problem(dtype, m, n, k, kind)


def as_rows(x: Array) -> Array:
    """Return `x` as a matrix; a copy only where its leading axes do not collapse."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def strides(x: Array) -> tuple[int, int]:
    """Return the strides of a matrix in elements; an axis of length one counts as contiguous."""
    row, col = (s // x.itemsize for s in x.strides)
    return row, 1 if x.shape[1] == 1 else col
