"""Device times of products, for the choice among the ways to compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from stof_cupy.dtypes import CUDA_FLOATS, as_dtype
from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit import device
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops import gemm, gemm_choice, gemm_model, gemm_norm, gemm_vendor, gemm_ways
from stof_cupy.ops.attention_timing import alone_us, in_turn_us
from stof_cupy.ops.epilogue import SLAB, Epilogue, Normed, Rotary
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_choice import Choice
from stof_cupy.ops.gemm_fold import row_statistics
from stof_cupy.ops.gemm_sm90 import Layout, Norm, Plan
from stof_cupy.ops.gemm_vendor import Vendor

__all__ = ["measure", "measure_norm", "normal", "to_time"]

NEAR = 1.5
"""Times the best prediction: what may be the fastest."""

LEAST, MOST = 4, 8
"""How many of our own are timed, but for those that the predictions leave out."""

ALIKE = 2
"""How many of those are one kernel that cuts K in different ways."""

_FEW_ROWS = 64  # for which the weights come from memory
_COPIES = 40  # of the weights, one for each launch of a graph

_CLOSE = 1.06
"""Times the fastest in turn: what is told apart by a call alone."""


def to_time(problem: Problem, found: Layout | None, facts: DeviceFacts) -> list[Choice]:
    """Return the ways of which one may be the fastest: the model's choice first, cuBLASLt last."""
    ranked = gemm_ways.ways(problem, found, facts)
    chosen: list[Choice] = []
    kernels: Counter[object] = Counter()
    for choice, us in ranked:
        kernel = choice.config if isinstance(choice, Plan) else choice
        if us <= NEAR * ranked[0].us or len(chosen) < LEAST:
            kernels[kernel] += 1
            if kernels[kernel] <= ALIKE and len(chosen) < MOST:
                chosen.append(choice)
    if gemm_vendor.binding() is not None and gemm_vendor.fault(problem) is None:
        chosen += [Vendor(rank) for rank in range(gemm_vendor.RANKS)]
    return chosen


def measure(
    problem: Problem, found: Layout | None = None, *, again: bool = False
) -> gemm_choice.Times:
    """Time the ways to compute a product on CuPy's current device, and keep what was found.

    From then on `gemm` takes the fastest for such a product. Takes about 10 ms for each way, half a
    second for each of those that are about as fast and take 100 us or more, and a second for each
    kernel that was never compiled; no stream may be captured meanwhile. Where the cache directory
    cannot be written a warning says so, and what was found lasts as long as the process.

    Parameters
    ----------
    problem : Problem
    found : Layout, optional
        How A and B lie; default: both contiguous along K, as a weight is that is passed as ``w.T``.
    again : bool
        Measure even if that was done before.

    Returns
    -------
    mapping of str to float
        Microseconds by `gemm_choice.name_of`; empty if there is nothing to choose from. Those of a
        product of normalised rows have the statistics of the rows in them.

    Raises
    ------
    UnsupportedError
        If no kernel computes in the problem's type.
    """
    if _nothing(problem):
        return {}
    found = found or Layout()
    facts = device.facts(device.current())
    key = gemm_choice.key_of(problem, found)
    known = gemm_choice.times_of(facts, key)
    if known and not again:
        return known
    epilogue = _epilogue(problem)
    sets, operands = _sets(problem, found), gemm.operands_of(epilogue)
    runs = {}
    for choice in to_time(problem, found, facts):
        made = [gemm.prepared(choice, problem, a, b, out, operands) for a, b, out in sets]
        ready = [run for run in made if run is not None]
        if len(ready) == len(sets):
            used = [_as_used(run, a, epilogue) for run, (a, _, _) in zip(ready, sets, strict=True)]
            runs[gemm_choice.name_of(choice)] = _turns(used)
    times = _times(runs, _cold(problem, sets, facts))
    gemm_choice.keep(facts, key, times)
    return times


def measure_norm(problem: Problem, *, again: bool = False) -> gemm_choice.Times:
    """Time a product whose rows are normalised as `measure` does: in one kernel, and in two.

    In two the residual, if there is one, is added by either.
    """
    if _nothing(problem):
        return {}
    found, facts = Layout(), device.facts(device.current())
    key = gemm_choice.key_of(problem, found, norm=True)
    known = gemm_choice.times_of(facts, key)
    if known and not again:
        return known
    measure(problem, found, again=again)
    sets, epilogue = _sets(problem, found), _epilogue(problem)
    weight, shift = (normal((problem.n,), problem.dtype, seed) for seed in (4, 5))
    norm = Norm(weight, shift, 1e-5)

    def apart(late: bool, a: Any, b: Any, out: Any) -> None:
        gemm_norm.apart(a, b.T, epilogue, norm, out, late=late)

    def whole(plan: Plan, a: Any, b: Any, out: Any) -> None:
        gemm_norm.launch(plan, problem, a, b.T, epilogue, norm, out)

    ways: dict[str, Callable[..., None]] = {gemm_choice.APART: partial(apart, False)}
    if problem.epilogue.residual:
        without = replace(problem, epilogue=replace(problem.epilogue, residual=False))
        measure(without, found, again=again)
        ways[gemm_choice.LATE] = partial(apart, True)
    for plan in gemm_model.norm_candidates(problem, found, facts):
        ways[gemm_choice.name_of(plan)] = partial(whole, plan)
    runs = {name: _turns([partial(way, *each) for each in sets]) for name, way in ways.items()}
    times = _times(runs, _cold(problem, sets, facts))
    gemm_choice.keep(facts, key, times)
    return times


def _as_used(run: Callable[[], None], a: Any, epilogue: Epilogue) -> Callable[[], None]:
    """Return a run, and before it what finds the statistics that it normalises its rows by.

    That has brought A to the L2. 512x2048x8192 in tiles of 64x128 takes 36.5 us where nothing is
    there, in two pieces of K 40.5; after the statistics it is the slower one, by 8 us.
    """
    normed = epilogue.normed
    if normed is None or not a.flags.c_contiguous:
        return run

    def both() -> None:
        row_statistics(a, eps=1e-5, out=normed.statistics)
        run()

    return both


def _times(runs: Mapping[str, Callable[[], None]], l2_bytes: int) -> dict[str, float]:
    """Return the times of ways in turn, where those that are close are told apart alone.

    Their times are then the fastest one's in turn, and more by what they take more alone.
    `l2_bytes` is 0 where the L2 keeps from call to call what they read.
    """
    times = dict(zip(runs, in_turn_us([*runs.values()]), strict=True))
    least = min(times.values(), default=0.0)
    close = [name for name, us in times.items() if us <= _CLOSE * least]
    if l2_bytes and len(close) > 1:
        alone = alone_us([runs[name] for name in close], 4 * l2_bytes)
        times |= {name: least * us / min(alone) for name, us in zip(close, alone, strict=True)}
    return times


def _nothing(problem: Problem) -> bool:
    """Whether there is nothing to time."""
    if problem.dtype not in CUDA_FLOATS:
        raise UnsupportedError(mismatch("dtype", problem.dtype, " or ".join(CUDA_FLOATS)))
    return min(problem.m, problem.n, problem.k) == 0


def normal(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> Any:
    """Return normal numbers on CuPy's current device, float16 or bfloat16.

    Their bits matter: a product of zeros draws less power, and runs at a higher clock.
    """
    import cupy

    x = cupy.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    x *= np.float32(scale)
    if dtype == "float16":
        return x.astype(np.float16)
    upper = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # halves of float32's bits
    return upper.view(as_dtype("bfloat16"))


def _arrays(problem: Problem, found: Layout) -> tuple[Any, Any, Any]:
    """Return A ``(M, K)``, B ``(N, K)`` and the result."""
    import cupy

    p = problem
    a, b = (
        normal((p.k, rows), p.dtype, seed, scale).T
        if transposed
        else normal((rows, p.k), p.dtype, seed, scale)
        for rows, transposed, seed, scale in (
            (p.m, found.transposed_a, 0, 1.0),
            (p.columns, found.transposed_b, 1, p.k**-0.5),
        )
    )
    shape: tuple[int, ...] = (p.m, p.n)
    if p.epilogue.heads:
        dim = _head_dim(p)
        shape = (1, p.n // dim, p.m, dim)
    return a, b, cupy.empty(shape, a.dtype)


def _head_dim(problem: Problem) -> int:
    """Return a size of heads for a problem, which does not say."""
    rotary = problem.epilogue.rotary
    if isinstance(rotary, int):
        return rotary
    return 64 if problem.n % 64 == 0 else problem.n


def _epilogue(problem: Problem) -> Epilogue:
    import cupy

    p, kind, dtype = problem, problem.epilogue, problem.dtype
    dim, normed, turn, statistics = _head_dim(p), None, None, None
    if kind.normed:
        normed = Normed(cupy.ones((p.m, 2), np.float32), cupy.ones(p.columns, np.float32))
    if kind.rotary is not None:
        positions = cupy.zeros((1, p.m) if kind.heads else p.m, np.int32)
        frequency = cupy.ones(dim // 2, np.float32)
        turn = Rotary(positions, frequency, p.n // dim, dim, kind.rotary == "neighbours")
    if kind.statistics:
        statistics = cupy.empty((p.m, -(-p.n // SLAB), 2), np.float32)
    return Epilogue(
        bias=normal((problem.columns,), dtype, 2) if kind.bias else None,
        activation=kind.activation,
        residual=normal((problem.m, problem.n), dtype, 3) if kind.residual else None,
        gated=kind.gated,
        scale=0.5 if kind.scale else None,
        normed=normed,
        rotary=turn,
        heads=p.n // dim if kind.heads else None,
        statistics=statistics,
    )


def _sets(problem: Problem, found: Layout) -> list[tuple[Any, Any, Any]]:
    """Return what calls take in turn: as in a model, what is too much for the L2 is not there.

    Few rows meet new weights at every call.
    """
    a, b, out = _arrays(problem, found)
    l2, total = device.facts(b.device.id).l2_bytes, a.nbytes + b.nbytes + out.nbytes
    sets = [(a, b, out)]
    if problem.m <= _FEW_ROWS:
        more = min(_COPIES - 1, 3 * l2 // b.nbytes)
        sets += [(a, b.copy(order="K"), out) for _ in range(more)]
    elif l2 < 2 * total < 4 * l2:
        for _ in range(-(-l2 // total)):
            sets.append((a.copy(order="K"), b.copy(order="K"), out.copy()))
    return sets


def _cold(problem: Problem, sets: list[tuple[Any, Any, Any]], facts: DeviceFacts) -> int:
    """Return the bytes of the L2 if what a call reads is not there for the next one, else 0.

    Of few rows, whose weights are others each time in turn, there is nothing more to tell.
    """
    total = sum(array.nbytes for array in sets[0])
    return facts.l2_bytes if problem.m > _FEW_ROWS and 2 * total > facts.l2_bytes else 0


def _turns(runs: list[Callable[[], None]]) -> Callable[[], None]:
    """Return a call of the next of several runs."""
    turns = cycle(runs)
    return lambda: next(turns)()
