"""Two terms of scores as one, for kernels that have registers for no more beside their products."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from stof_cupy.ops._arrays import Array
from stof_cupy.ops.attention_args import Problem, Scores, masking
from stof_cupy.ops.attention_fields import without_repeats
from stof_cupy.ops.relative_bias import BEYOND, RelativeBias

__all__ = ["folded", "folded_bytes"]


class _AtDistances(RelativeBias):
    """A bias with a bucket for each distance that occurs, and for those that kernels may read.

    `table` is ``(2 * (max_distance + BEYOND) + 1, heads)``. For kernels: what a base without such
    buckets does beside `for_kernels` makes no sense of it.
    """

    def __init__(self, table: Array) -> None:
        self.table, self.bidirectional, self.max_distance = table, True, len(table) // 2 - BEYOND

    def for_kernels(self, reach: int) -> tuple[int, Array]:
        return self.max_distance, self.table.T


def folded_bytes(scores: Scores, problem: Problem) -> int:
    """Return how large the array is that `folded` makes of ALiBi and an array of biases.

    Of a relative bias it makes another one; a bias without ALiBi is not folded: 0.
    """
    if scores.alibi is None or scores.bias is None or isinstance(scores.bias, RelativeBias):
        return 0
    return 4 * math.prod(_shape(without_repeats(scores.bias), problem))


def folded(scores: Scores, problem: Problem, xp: Any) -> Scores:
    """Return scores whose bias has ALiBi in it: a relative one, or an array of float32.

    Examples
    --------
    >>> problem = Problem("float16", 1, 2, 2, 1, 3, 192, 192)
    >>> bias = np.broadcast_to(np.zeros((1, 1, 1, 3), np.float32), (1, 2, 1, 3))
    >>> folded(Scores(alibi=np.float32([1, 2]), bias=bias), problem, np).bias[0, :, 0].tolist()
    [[-2.0, -1.0, 0.0], [-4.0, -2.0, 0.0]]
    """
    slopes = -xp.asarray(scores.alibi)[:, None]
    if isinstance(scores.bias, RelativeBias):
        reach = problem.seq_q + problem.seq_k
        most = min(reach, scores.bias.max_distance)
        away = xp.arange(-reach - BEYOND, reach + BEYOND + 1)
        table = scores.bias.by_distance(most)[:, xp.clip(away, -most, most) + most]
        total = table.astype(np.float32) + slopes * abs(away).astype(np.float32)
        return replace(scores, alibi=None, bias=_AtDistances(total.T))
    bias: Any = without_repeats(scores.bias)
    if scores.positions is None:  # nothing is uploaded: it may be captured for a CUDA graph
        queries, keys = xp.arange(problem.seq_q), xp.arange(problem.seq_k)
        queries += problem.seq_k - problem.seq_q
    else:
        queries, keys = (xp.asarray(each) for each in scores.positions)
    away = abs(keys - queries[:, None]).astype(np.float32)
    total = xp.empty(_shape(bias, problem), np.float32)
    for each in total:
        xp.multiply(slopes[:, :, None], away, out=each)
    masked = bias <= masking(bias.dtype)
    with np.errstate(over="ignore"):  # below the lowest of float32: masked too
        total += xp.where(masked, np.float32(-np.inf), bias.astype(np.float32))
    shape = (problem.batch, problem.heads, problem.seq_q, problem.seq_k)
    return replace(scores, alibi=None, bias=xp.broadcast_to(total, shape))


def _shape(bias: Array, problem: Problem) -> tuple[int, int, int, int]:
    """Return that of a sum of ALiBi and a bias without repeated axes."""
    return bias.shape[0], problem.heads, problem.seq_q, problem.seq_k
