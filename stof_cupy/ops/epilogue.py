"""What a GEMM may do to its result before it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stof_cupy.errors import ArgumentError, mismatch

__all__ = ["ACTIVATIONS", "Epilogue"]

ACTIVATIONS = ("gelu", "gelu_tanh")
"""GELU with the exact distribution function, and with its tanh approximation."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """``activation(a @ b + bias) + residual``; what is None is left out.

    Parameters
    ----------
    bias : ndarray, optional
        Shape ``(N,)``, the dtype of the product.
    activation : {None, "gelu", "gelu_tanh"}
        Applied after the bias.
    residual : ndarray, optional
        Shape ``(..., M, N)``, the dtype of the product.

    Raises
    ------
    ArgumentError
        If `activation` is not one of the above.

    Examples
    --------
    >>> Epilogue(activation="gelu").activation
    'gelu'
    """

    bias: Any = None
    activation: str | None = None
    residual: Any = None

    def __post_init__(self) -> None:
        if self.activation is not None and self.activation not in ACTIVATIONS:
            expected = "None, " + " or ".join(map(repr, ACTIVATIONS))
            raise ArgumentError(mismatch("activation", repr(self.activation), expected))
