"""From logits to the next token: the best one, or one drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, mismatch

__all__ = ["Sampler"]


@dataclass
class Sampler:
    """How tokens are chosen.

    Parameters
    ----------
    temperature : float
        0: the token of the highest logit, the first of equals. Above: drawn from the softmax of
        ``logits / temperature``.
    top_p : float
        Only the fewest most probable tokens that together have this probability are drawn from.
    seed : int
        Of the draws.

    Raises
    ------
    ArgumentError
        If a number is out of its range.

    Examples
    --------
    >>> Sampler()(np.array([[0.0, 2.0, 1.0]])).tolist()
    [1]
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, Real) or not 0 <= self.temperature < float("inf"):
            raise ArgumentError(
                mismatch("temperature", repr(self.temperature), "0 or more, finite")
            )
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise ArgumentError(mismatch("top_p", repr(self.top_p), "more than 0, at most 1"))
        if not isinstance(self.seed, Integral) or self.seed < 0:
            raise ArgumentError(mismatch("seed", repr(self.seed), "an integer, 0 or more"))
        self._random = np.random.default_rng(self.seed)

    def __call__(self, logits: Any) -> NDArray[np.int64]:
        """Return a token for each row of NumPy or CuPy logits (rows, vocab)."""
        if self.temperature == 0:
            best: Any = logits.astype(np.float32).argmax(axis=-1)  # CuPy's has no bfloat16
            return np.asarray(best if isinstance(best, np.ndarray) else best.get(), np.int64)
        host = logits if isinstance(logits, np.ndarray) else logits.get()
        return np.array([self._draw(row.astype(np.float64)) for row in host], np.int64)

    def _draw(self, logits: NDArray[np.float64]) -> int:
        with np.errstate(over="ignore"):  # of hardly any temperature: -inf is what is meant
            weights = np.exp((logits - logits.max()) / self.temperature)
        weights /= weights.sum()
        order = np.argsort(-weights, kind="stable")
        total = np.cumsum(weights[order])
        # The token that reaches top_p is the last one in.
        kept = int(np.searchsorted(total, self.top_p * total[-1])) + 1
        at = np.searchsorted(total[:kept], self._random.random() * total[min(kept, len(total)) - 1])
        return int(order[min(int(at), kept - 1)])
