"""All ways to compute a product with our own kernels: the model's, and those of few rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from stof_cupy.jit.decoder_kernels import FEW_ROWS
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops import gemm_few_rows, gemm_model, gemm_streamed
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_model import Constants
from stof_cupy.ops.gemm_sm90 import Layout

__all__ = ["Choice", "Way", "predict", "ways"]

Few: TypeAlias = gemm_few_rows.Config | gemm_streamed.Config
"""A kernel for few rows."""

Choice: TypeAlias = gemm_model.Choice | Few
"""One of our kernels, and how a product is cut for it."""

_ROUND_CLK = {True: 900.0, False: 1800.0}
"""Clocks of a warp's round of loads, of few rows or of sixteen, which are loaded as well."""

_STREAMED_CLK = 400.0
"""Clocks of a CTA for 512 of K that stream through shared memory."""


class Way(NamedTuple):
    """A kernel, and the microseconds that it is predicted to take."""

    choice: Choice
    us: float


def ways(problem: Problem, found: Layout | None, facts: DeviceFacts) -> tuple[Way, ...]:
    """Return all ways, the fastest first.

    Examples
    --------
    >>> l4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
    >>> ways(Problem("float16", 1, 4096, 4096), Layout(), l4)[0].choice
    Config(rows=1, slices=4)
    """
    c = Constants()
    few = [Way(each, predict(each, problem, facts, c)) for each in _of_few(problem, found, facts)]
    others = [Way(each.choice, each.us) for each in gemm_model.explain(problem, found, facts)]
    return tuple(sorted(few + others, key=lambda each: each.us))


def _of_few(problem: Problem, found: Layout | None, facts: DeviceFacts) -> Iterator[Few]:
    if found != Layout():
        return
    few = (gemm_few_rows.of_few, gemm_few_rows.of_sixteen)
    configs = (
        gemm_streamed.config_for(problem, facts),
        *(of(problem, facts.sm_count) for of in few),
    )
    yield from (config for config in configs if config is not None)


def predict(choice: Choice, p: Problem, facts: DeviceFacts, c: Constants) -> float:
    """Return the microseconds that a way takes, by the model."""
    if not isinstance(choice, Few):
        return gemm_model.predict(choice, p, facts, c).us
    moved = 2 * ((p.m + p.columns) * p.k + p.m * p.n * (2 if p.epilogue.residual else 1))
    streamed = moved / gemm_model.bandwidth(facts, c)
    if isinstance(choice, gemm_streamed.Config):
        waves = -(-choice.blocks(p) // facts.sm_count)
        clk = waves * -(-p.k // 512) * _STREAMED_CLK
    else:
        waves = -(-choice.warps(p) // (facts.sm_count * gemm_few_rows.BUSY))
        clk = waves * -(-p.k // (choice.slices * choice.step)) * _ROUND_CLK[choice.rows in FEW_ROWS]
    waited = clk / gemm_model.clock(facts, c)
    return max(streamed, waited) + c.beside * min(streamed, waited) + c.launch_us
