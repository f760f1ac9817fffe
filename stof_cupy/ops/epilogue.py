"""What a GEMM may do to its result before it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.jit import epilogues
from stof_cupy.jit.epilogues import EpilogueKind

__all__ = ["ACTIVATIONS", "Epilogue"]

ACTIVATIONS = tuple(epilogues.ACTIVATIONS)
"""GELU with the exact distribution function, and with its tanh approximation; ReLU; SiLU."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """``activation(scale * a @ b + bias) + residual``; what is None is left out.

    Parameters
    ----------
    bias : ndarray, optional
        Shape ``(N,)``, the dtype of the product; N are the columns of `b`.
    activation : {None, "gelu", "gelu_tanh", "relu", "silu"}
        Applied after the bias.
    residual : ndarray, optional
        The shape of the result, the dtype of the product.
    gated : bool
        The result has half the columns: the activation of the first N / 2, times the others. With
        "silu" that is SwiGLU, with "gelu" GeGLU (Shazeer, arXiv 2002.05202).
    scale : float, optional
        Multiplies the product.

    Raises
    ------
    ArgumentError
        If `activation` is not one of the above, or None of a gated one.

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

    def __post_init__(self) -> None:
        if self.activation is not None and self.activation not in ACTIVATIONS:
            expected = "None, " + " or ".join(map(repr, ACTIVATIONS))
            raise ArgumentError(mismatch("activation", repr(self.activation), expected))
        if self.gated and self.activation is None:
            raise ArgumentError(mismatch("activation", None, "one, because it is gated"))

    @property
    def kind(self) -> EpilogueKind:
        """Which stages a kernel needs for it."""
        return EpilogueKind(
            scale=self.scale is not None,
            bias=self.bias is not None,
            activation=self.activation,
            gated=self.gated,
            residual=self.residual is not None,
        )
