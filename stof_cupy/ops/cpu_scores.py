"""The NumPy attention's score modifications, made for the tiles that are visited and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.ops.attention_args import Scores, masking
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["ScoreTiles"]

Array = NDArray[Any]
Term = Callable[[slice, slice, slice], Array]
"""Of query heads, query rows and keys: what to add to their scores."""


class ScoreTiles:
    """Makes scores from products of keys with queries that were multiplied by `factor`.

    Parameters
    ----------
    scores : Scores
        Complete, of NumPy arrays.
    seq_q, seq_k : int
    dtype : dtype
        What scores are computed in.

    Attributes
    ----------
    factor : float
        The scale, over the softcap if there is one.
    """

    def __init__(self, scores: Scores, seq_q: int, seq_k: int, dtype: np.dtype[Any]) -> None:
        self._scores, self._dtype = scores, dtype
        self.factor = scores.scale / (scores.softcap or 1.0)
        self._positions = scores.positions or (
            np.arange(seq_k - seq_q, seq_k, dtype=np.int64),
            np.arange(seq_k, dtype=np.int64),
        )
        self._bias = None if isinstance(scores.bias, RelativeBias) else scores.bias
        self._masking = 0.0 if self._bias is None else masking(self._bias.dtype)
        self._terms: list[Term] = []
        if scores.alibi is not None:
            self._terms.append(self._slopes(scores.alibi.astype(dtype)))
        if isinstance(scores.bias, RelativeBias):
            self._terms.append(self._buckets(scores.bias, seq_q + seq_k))

    def apply(
        self,
        block: Array,
        batch: int,
        heads: slice,
        rows: slice,
        runs: Iterable[tuple[slice, slice]],
    ) -> None:
        """Turn products ``(heads, rows, columns)`` into scores, in place; -inf where masked."""
        if self._scores.softcap is not None:
            np.tanh(block, out=block)
            block *= self._dtype.type(self._scores.softcap)
        for keys, columns in runs:
            part = block[:, :, columns]
            for term in self._terms:
                part += term(heads, rows, keys)
            if self._bias is not None:
                given = self._bias[batch, heads, rows, keys].astype(self._dtype, copy=False)
                part += given
                np.copyto(part, -np.inf, where=given <= self._masking)

    def sinks(self, heads: slice) -> Array | None:
        """Return the sinks ``(heads, 1, 1)`` of some heads."""
        sinks = self._scores.sinks
        return None if sinks is None else sinks[heads, None, None].astype(self._dtype)

    def _slopes(self, slopes: Array) -> Term:
        def term(heads: slice, rows: slice, keys: slice) -> Array:
            away = np.abs(self._distance(rows, keys)).astype(self._dtype)
            added: Array = away * -slopes[heads, None, None]
            return added

        return term

    def _buckets(self, bias: RelativeBias, reach: int) -> Term:
        reach = min(reach, bias.max_distance)
        table = np.ascontiguousarray(bias.by_distance(reach), self._dtype)

        def term(heads: slice, rows: slice, keys: slice) -> Array:
            added: Array = table[heads][
                :, np.clip(self._distance(rows, keys), -reach, reach) + reach
            ]
            return added

        return term

    def _distance(self, rows: slice, keys: slice) -> NDArray[np.int64]:
        """Return how far each key is after each query."""
        queries, at = self._positions
        distance: NDArray[np.int64] = at[keys] - queries[rows, None]
        return distance
