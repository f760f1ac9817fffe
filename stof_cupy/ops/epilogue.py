"""What a GEMM may do to its result before it is stored, and how that is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, DTypeError, mismatch
from stof_cupy.jit import epilogues
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops._arrays import FLOAT32_MAX, real

__all__ = ["ACTIVATIONS", "SLAB", "TURNED_HEAD_DIMS", "Epilogue", "Normed", "Rotary"]

ACTIVATIONS = tuple(epilogues.ACTIVATIONS)
"""GELU with the exact distribution function, and with its tanh approximation; ReLU; SiLU."""

TURNED_HEAD_DIMS = (32, 64, 128, 256)
"""Head dims of which halves are turned in the kernel of the product; others are in a second one."""

SLAB = 64
"""Columns that have statistics of their own."""


def _single(name: str, value: Any) -> float:
    """Return a number of any type as a float, or raise ArgumentError."""
    expected = "a number that float32 can hold"
    number = real(name, value, expected)
    if not abs(number) <= FLOAT32_MAX:
        raise ArgumentError(mismatch(name, value, expected))
    return number


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(mismatch(name, repr(value), "True or False"))


@dataclass(frozen=True, eq=False)
class Normed:
    """A LayerNorm or RMSNorm of A's rows that is applied to the product instead.

    With the norm's weights multiplied into B, and its shift into the bias, what is left of
    ``layer_norm(a) @ b`` is ``(a @ b - mean * sums) / deviation``
    (:func:`stof_cupy.ops.gemm_fold.fold_norm`).

    Attributes
    ----------
    statistics : float32 ndarray (rows, 2)
        Mean of each row of A, and the inverse of its deviation
        (:func:`stof_cupy.ops.gemm_fold.row_statistics`).
    sums : float32 ndarray (columns of B,)
        The sum of each column of B, as it is rounded.
    """

    statistics: Any
    sums: Any


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embedding of the leading heads that the columns are.

    Attributes
    ----------
    positions : ndarray of int
        One for each row: the shape of A without its last axis.
    frequency : float32 ndarray (half,)
        Radians a position; elements of a head from ``2 * half`` on are left as they are.
    heads, head_dim : int
        So many heads are turned: queries and keys, say, but not values.
    interleaved : bool
        Whether a pair is ``(2i, 2i + 1)``, or ``(i, i + half)``.
    magnitude : float
        Factor of what is turned.
    """

    positions: Any
    frequency: Any
    heads: int
    head_dim: int
    interleaved: bool = False
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise ArgumentError(mismatch(name, repr(value), "an integer"))
            object.__setattr__(self, name, int(value))  # products of NumPy's small ones wrap
        _check_flag("interleaved", self.interleaved)
        object.__setattr__(self, "magnitude", _single("magnitude", self.magnitude))

    @property
    def kind(self) -> str | int | None:
        """Which kernel turns with the product: see `EpilogueKind`; None if none does."""
        if self.interleaved:
            return "neighbours"
        # Of what is no array too, which is refused later.
        whole = 2 * np.size(self.frequency) == self.head_dim
        whole = whole and self.head_dim in TURNED_HEAD_DIMS
        return self.head_dim if whole else None


@dataclass(frozen=True, eq=False)
class Epilogue:
    """``activation(turned(scale * normed(a @ b) + bias)) + residual``; what is None is left out.

    Parameters
    ----------
    bias : ndarray, optional
        Shape ``(N,)``, the dtype of the product; N are the columns of `b`.
    activation : {None, "gelu", "gelu_tanh", "relu", "silu"}
        Applied after the bias.
    residual : ndarray, optional
        The shape of the result, in rows; the dtype of the product.
    gated : bool
        The result has half the columns: the activation of the first N / 2, times the others. With
        "silu" that is SwiGLU, with "gelu" GeGLU (Shazeer, arXiv 2002.05202).
    scale : float, optional
        Multiplies the product.
    normed : Normed, optional
        A norm of A's rows that was folded into `b`.
    rotary : Rotary, optional
        Turns leading columns after the bias.
    heads : int, optional
        The result's columns are as many heads, and it is ``(batch, heads, seq, head_dim)``, as
        attention takes queries, keys and values: slices of it.
    statistics : float32 ndarray, optional
        ``(rows, ceil(N / 64), 2)``, contiguous, where mean and sum of squared distances of each 64
        columns of the result go, for a norm of its rows.

    Raises
    ------
    ArgumentError
        If `activation` is not one of the above, or None of a gated one, `statistics` or `rotary`
        are of a gated one, `gated` is no flag, or `scale` or `heads` no number of its kind.
    DTypeError
        If `normed` is no `Normed`, or `rotary` no `Rotary`.

    Examples
    --------
    >>> Epilogue(activation="gelu").activation
    'gelu'
    """

    bias: Any = None
    activation: str | None = None
    residual: Any = None
    gated: bool = False
    scale: float | None = None
    normed: Normed | None = None
    rotary: Rotary | None = None
    heads: int | None = None
    statistics: Any = None

    def __post_init__(self) -> None:
        named = isinstance(self.activation, str) and self.activation in ACTIVATIONS
        if self.activation is not None and not named:
            expected = "None, " + " or ".join(map(repr, ACTIVATIONS))
            raise ArgumentError(mismatch("activation", repr(self.activation), expected))
        _check_flag("gated", self.gated)
        if self.gated and self.activation is None:
            raise ArgumentError(mismatch("activation", None, "one, because it is gated"))
        for name in ("rotary", "statistics") if self.gated else ():
            if getattr(self, name) is not None:
                raise ArgumentError(mismatch(name, "one of a gated product", None))
        for name, kind in (("normed", Normed), ("rotary", Rotary)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                got, expected = type(value).__name__, f"a {kind.__name__}"
                raise DTypeError(mismatch(name, got, expected))
        if self.scale is not None:
            object.__setattr__(self, "scale", _single("scale", self.scale))
        heads = self.heads
        whole = isinstance(heads, int | np.integer) and not isinstance(heads, bool)
        if heads is not None and not whole:
            raise ArgumentError(mismatch("heads", repr(heads), "an integer"))
        if heads is not None:
            object.__setattr__(self, "heads", int(heads))

    @property
    def kind(self) -> EpilogueKind:
        """Which stages a kernel needs for it."""
        return EpilogueKind(
            scale=self.scale is not None,
            bias=self.bias is not None,
            activation=self.activation,
            gated=self.gated,
            residual=self.residual is not None,
            normed=self.normed is not None,
            rotary=None if self.rotary is None else self.rotary.kind,
            statistics=self.statistics is not None,
            heads=self.heads is not None,
        )

    @property
    def turned_after(self) -> bool:
        """Whether it takes a second kernel to turn what `rotary` says."""
        return self.rotary is not None and self.rotary.kind is None
