"""The GEMM on Hopper's own instructions: what the kernel takes, and its launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit import tensormap
from stof_cupy.jit.gemm_sm90 import for_layout, gemm_sm90
from stof_cupy.ops._arrays import Array, pointer
from stof_cupy.ops._counters import counters
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_operand import BLOCK, Matrix, axes, axes_of_heads, matrix, operand
from stof_cupy.ops.gemm_plan import Plan, steps_of
from stof_cupy.ops.gemm_stages import HeadsOf, Stages, stage_fields

__all__ = ["Layout", "Norm", "Plan", "Prepared", "fault", "fields", "layout", "prepare"]


_MOST_COUNTERS = 2**14  # of a product in pieces: which a captured launch keeps for good


@dataclass(frozen=True)
class Layout:
    """Whether A, and B seen as ``(N, K)``, are contiguous along their rows instead of K."""

    transposed_a: bool = False
    transposed_b: bool = False


def layout(problem: Problem, a: Array, b: Array) -> Layout | None:
    """Return how ``(M, K)`` and ``(N, K)`` lie in memory, or None if the kernel cannot load them.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.zeros((100, 64), np.float16), np.zeros((64, 40), np.float16)
    >>> layout(Problem("float16", 100, 40, 64), a, b.T)
    Layout(transposed_a=False, transposed_b=True)
    """
    left, right = operand(matrix(a)), operand(matrix(b), problem.epilogue.halves)
    if left is None or right is None:
        return None
    return Layout(left.transposed, right.transposed)


@lru_cache(maxsize=4096)
def fault(plan: Plan, problem: Problem, found: Layout | None) -> str | None:
    """Return why the kernel does not compute a problem as planned, or None.

    The one rule for the chooser, the tuner and the tests.

    Examples
    --------
    >>> from stof_cupy.jit.gemm_sm90 import Sm90Gemm
    >>> problem = Problem("float16", 100, 40, 64)
    >>> fault(Plan(Sm90Gemm(128, 128)), problem, Layout())
    >>> fault(Plan(Sm90Gemm(128, 128), splits=2), problem, Layout())
    'splits: got 2, expected 1 to 1 of a configuration that splits'
    """
    if min(problem.m, problem.n, problem.k) == 0:
        return mismatch("(M, N, K)", (problem.m, problem.n, problem.k), "no empty axis")
    if found is None:
        expected = "a contiguous axis, the other's stride a multiple of 16 bytes"
        return mismatch("a or b", "other strides", expected)
    config = for_layout(plan.config, found.transposed_a, found.transposed_b)
    wrong = config.fault(problem.epilogue)
    if wrong is not None:
        return wrong
    if config.across and not (config.across - 1) * config.n < problem.n <= config.across * config.n:
        return mismatch("N", problem.n, f"columns for each of {config.across} CTAs")
    most = steps_of(problem) if config.split else 1
    if config.joined > 1:
        if (plan.splits, plan.pieces(problem)) != (config.joined,) * 2:
            return mismatch("splits", plan.splits, f"{config.joined} pieces that are not empty")
    elif not 1 <= plan.splits <= most:
        return mismatch("splits", plan.splits, f"1 to {most} of a configuration that splits")
    if plan.stream and not (config.split and plan.splits == 1 and config.ctas == 1):
        return mismatch("stream", plan.stream, "0, or a configuration that splits, in one piece")
    if config.split and plan.splits + plan.stream > 1:
        counted = plan.cut(problem) * config.cluster * config.sharers
        if counted > _MOST_COUNTERS:
            return mismatch("splits", plan.splits, f"1 of so many tiles: {counted} counters")
        steps = math.prod(plan.tiles(problem)) * steps_of(problem)
        if plan.stream and steps > 2**30:
            return mismatch("steps", steps, "fewer in a stream")
    if plan.units(problem) * config.cluster * config.sharers > 2**31 - 2**16:
        return mismatch("tiles", plan.units(problem), "fewer than 2**31")
    return None


class Norm(NamedTuple):
    """LayerNorm of the result's rows: contiguous and 4-byte aligned weights of its type.

    Without a bias RMSNorm.
    """

    weight: Array | None
    bias: Array | None
    eps: float


@dataclass(frozen=True, eq=False)
class Prepared:
    """A launch with everything in place; calling it again computes from what the arrays hold then.

    Calls of one that splits must not overlap, on two streams say: they add up in one place.
    """

    kernel: Any
    grid: tuple[int]
    params: Any
    arrays: tuple[Any, ...]

    def __call__(self) -> None:
        """Launch on CuPy's current stream; the arrays' device must be the current one."""
        self.kernel(self.grid, self.params)


def prepare(
    plan: Plan,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    scale: float = 1.0,
    stages: Stages | None = None,
    norm: Norm | None = None,
    report: int = 0,
) -> Prepared:
    """Build the kernel and its parameters for the arrays' device, which is the current one.

    Parameters
    ----------
    plan, problem
        What `fault` has nothing against.
    a, b, c : cupy.ndarray
        ``(M, K)``, ``(N, K)`` and the result's rows, all matrices, or heads.
    bias, residual : cupy.ndarray, optional
        Contiguous and 4-byte aligned; with a unit column stride.
    scale : float
    stages : Stages, optional
    norm : Norm, optional
        With a configuration that normalises rows.
    report : int
        With a bounded configuration: the address of four uint32 of pinned memory, zeros. Before it
        faults the kernel writes there what it waited for (``Wait`` in
        ``cuda/gemm/sm90_shape.cuh``), block, thread and parity.

    Raises
    ------
    UnsupportedError
        See `fault`.
    """
    import cupy

    from stof_cupy.jit import device
    from stof_cupy.jit.launch import kernel

    found = layout(problem, a, b)
    wrong = fault(plan, problem, found)
    if wrong is not None or found is None:
        raise UnsupportedError(str(wrong))
    number = c.device.id
    config = for_layout(plan.config, found.transposed_a, found.transposed_b)
    run = kernel(gemm_sm90(problem.dtype, config, problem.epilogue), number)
    about = device.facts(number)
    partial, words = None, 0
    pieces = plan.pieces(problem) if config.split else 1
    if pieces > 1:
        tiles = plan.cut(problem) * config.cluster
        partial = cupy.empty(tiles * pieces * config.m * config.n, cupy.float32)
        words = counters(number).take(tiles * config.sharers)
    values = fields(
        *(plan, problem, a, b, c, bias, residual, scale, about.sm_count, tensormap.tensor_map),
        *(norm, stages),
        partial=pointer(partial),
        counters=words,
        report=report,
    )
    clusters = plan.units(problem)
    if not plan.stream and config.joined == 1:  # which are for so many, however many run at once
        clusters = min(clusters, about.at_once(config.ctas))
    arrays = (a, b, c, bias, residual, norm, stages, partial)
    return Prepared(run, (clusters * config.ctas,), run.pack(**values), arrays)


def fields(
    plan: Plan,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array,
    bias: Array | None,
    residual: Array | None,
    scale: float,
    sm_count: int,
    encode: Callable[..., bytes],
    norm: Norm | None = None,
    stages: Stages | None = None,
    **pointers: int,
) -> dict[str, Any]:
    """Return the kernel's parameters; `encode` makes tensor maps as `tensormap.tensor_map` does."""
    added, heads = None if residual is None else matrix(residual), HeadsOf.of(c)
    result = matrix(c) if heads is None else matrix(c[0, 0])._replace(row=2 * heads.step)
    where = (matrix(a), matrix(b), result, heads, added)
    found = _fields(plan, problem, *where, pointer(bias), scale, sm_count, encode)
    found, norm = found | stage_fields(stages, c), norm or Norm(None, None, 0.0)
    weights = {"norm_weight": pointer(norm.weight), "norm_bias": pointer(norm.bias)}
    return found | weights | {"eps": norm.eps} | pointers


@lru_cache(maxsize=4096)
def _fields(
    plan: Plan,
    problem: Problem,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    heads: HeadsOf | None,
    residual: Matrix | None,
    bias: int,
    scale: float,
    sm_count: int,
    encode: Callable[..., bytes],
) -> dict[str, Any]:
    """Return the parameters that do not change from launch to launch."""
    config, dtype = plan.config, problem.dtype
    left, right = operand(a), operand(b, problem.epilogue.halves)
    if config.swapped:
        left, right = right, left
    if left is None or right is None:
        raise UnsupportedError(str(fault(plan, problem, None)))
    boxes = left.box(config.m), right.box(config.n, config.cluster)
    added = residual or Matrix(0, 0, 0, 0, 0)
    of_c = axes(c) if heads is None else axes_of_heads(c, heads)
    maps: dict[str, Any] = {}
    for name, x, found in (("c", c, of_c), ("residual", added, axes(added))):
        maps |= {f"mapped_{name}": False, f"map_{name}": bytes(128)}
        if found is not None and not config.swapped:
            made = encode(x.address, dtype, *found, (BLOCK, BLOCK, 1, 1))
            maps |= {f"mapped_{name}": True, f"map_{name}": made}
    tiles_a, tiles_b = plan.tiles(problem)
    return {
        "map_a": encode(left.address, dtype, left.dims, left.strides, boxes[0]),
        "map_b": encode(right.address, dtype, right.dims, right.strides, boxes[1]),
        **maps,
        **{"c": c.address, "bias": bias, "residual": added.address},
        **{"residual_row": added.row_elements, "c_row": c.row_elements},
        **{"m": problem.m, "n": problem.n, "k": problem.k},
        **{"tiles_a": tiles_a, "tiles_b": tiles_b, "group": plan.raster(sm_count)},
        **{"splits": plan.pieces(problem), "split_steps": plan.split_steps(problem)},
        "stream": plan.share(problem) if plan.stream else 0,
        "whole": plan.whole(problem) if plan.stream else 0,
        "pairs_c": c.address % 4 == 0 and c.row % 4 == 0 and (heads is None or heads.pairs),
        "pairs_residual": added.address % 4 == 0 and added.row % 4 == 0,
        "scale": scale,
    }
