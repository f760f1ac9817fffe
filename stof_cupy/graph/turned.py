"""A product whose leading heads are turned by their positions, in one kernel or in two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np

from stof_cupy.graph import meaning
from stof_cupy.graph.frequencies import Frequencies, array_of
from stof_cupy.jit.device import DeviceFacts, facts
from stof_cupy.ops import gemm_choice, gemm_few_rows, gemm_model, gemm_sm90, rotary
from stof_cupy.ops._arrays import is_cupy, lasting
from stof_cupy.ops.attention_constants import Constants, speeds
from stof_cupy.ops.epilogue import Epilogue, Normed, Rotary
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.gemm_args import Problem, as_rows, validate
from stof_cupy.ops.gemm_sm90 import Layout
from stof_cupy.ops.gemm_vendor import Vendor

__all__ = ["in_one", "normed_by", "turn_of", "turned_gemm"]

Array: TypeAlias = Any


def turn_of(
    positions: Array,
    device: int | None,
    *,
    frequency: Frequencies,
    heads: int,
    head_dim: int,
    interleaved: bool,
    magnitude: float,
) -> Rotary:
    """Return the stage of an epilogue that attributes of ``turned_gemm`` describe."""
    steps = array_of(frequency, device)
    return Rotary(positions, steps, heads, head_dim, interleaved, magnitude)


def normed_by(statistics: Array | None, w: Array) -> Normed | None:
    """Return the stage of an epilogue that statistics (..., 2) of rows are for.

    The rows of `w` have no mean, so that those of the operand they multiply do not matter.
    """
    if statistics is None:
        return None
    return Normed(statistics.reshape(-1, 2), _zeros(len(w), w.device.id if is_cupy(w) else None))


@cache  # never dropped: captured runs read it
def _zeros(count: int, device: int | None) -> Array:
    host = np.zeros(count, np.float32)
    return host if device is None else lasting(host, device)


def turned_gemm(
    x: Array,
    w: Array,
    positions: Array,
    bias: Array | None,
    statistics: Array | None = None,
    *,
    multiply: Callable[..., Array] = gemm,
    out: Array | None = None,
    **attrs: Any,
) -> Array:
    """Compute ``x @ w.T + bias`` and turn the leading heads of its columns.

    Parameters
    ----------
    x : ndarray (batch, seq, K)
    w : ndarray (N, K)
    positions : ndarray of int (batch, seq)
    bias : ndarray (N,), optional
    statistics : float32 ndarray (batch, seq, 2), optional
        See `normed_by`.
    multiply : callable
        Called as `gemm`, which it is by default.
    out : ndarray (batch, seq, N), optional
    **attrs
        Of the operator, see `turn_of`.

    Examples
    --------
    >>> x, w = np.ones((1, 2, 1), np.float32), np.ones((3, 1), np.float32)
    >>> how = {"frequency": Frequencies([np.pi]), "interleaved": False, "magnitude": 1.0}
    >>> turned_gemm(x, w, np.array([[0, 1]]), None, heads=1, head_dim=2, **how).round(3)
    array([[[ 1.,  1.,  1.],
            [-1., -1.,  1.]]], dtype=float32)
    """
    turn = turn_of(positions, x.device.id if is_cupy(x) else None, **attrs)
    plain = Epilogue(bias, normed=normed_by(statistics, w))
    if not is_cupy(x) or _in_one(x, w, plain, turn):
        return multiply(x, w.T, epilogue=replace(plain, rotary=turn), out=out)
    y = multiply(x, w.T, epilogue=plain, out=out)
    turned = meaning.split_heads(y[..., : turn.heads * turn.head_dim], heads=turn.heads)
    how: dict[str, Any] = {"interleaved": turn.interleaved, "magnitude": turn.magnitude}
    rotary.rotary(turned, positions, turn.frequency, **how, out=turned)
    return y


def _in_one(x: Array, w: Array, plain: Epilogue, turn: Rotary) -> bool:
    """Whether one kernel is the faster way on CUDA."""
    positions = turn.positions
    # Another type or order would be converted for every product; the second kernel reads any.
    if turn.kind is None or positions.dtype != np.int32 or not positions.flags.c_contiguous:
        return False
    _, problem = validate(x, w.T, plain, None)
    about, rows = facts(x.device.id), as_rows(x)
    if gemm_few_rows.config_for(problem, rows, w, about.sm_count) is not None:
        return False
    found = gemm_sm90.layout(problem, rows, w)
    return in_one(problem, turn.kind, turn.heads * turn.head_dim, found, about)


@lru_cache(maxsize=4096)
def in_one(
    problem: Problem, kind: str | int, columns: int, found: Layout | None, about: DeviceFacts
) -> bool:
    """Whether a kernel that turns is faster than one that does not and a second one, by the model.

    Not where cuBLASLt was measured to be the fastest, which cannot turn, nor where there is nothing
    to compute.

    Parameters
    ----------
    problem : Problem
        Without the turn.
    kind : str or int
        Of the turn, see `EpilogueKind`.
    columns : int
        That are turned.
    found, about
        As of `gemm_choice.choices`.

    Examples
    --------
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> in_one(Problem("bfloat16", 8192, 3072, 2048), 64, 2560, Layout(), h100)
    True
    """
    if not min(problem.m, problem.n, problem.k):
        return False
    if isinstance(gemm_choice.choices(problem, found, about)[0], Vendor):
        return False
    turned = replace(problem, epilogue=replace(problem.epilogue, rotary=kind))
    one, two = (gemm_model.explain(each, found, about)[0].us for each in (turned, problem))
    rate, constants = speeds(about, Constants()).dram_bytes, gemm_model.Constants()
    # A second kernel reads the columns, and writes them again.
    moved = 4 * problem.m * columns / (rate * constants.dram) if rate else 0.0
    return one < two + constants.launch_us + moved
