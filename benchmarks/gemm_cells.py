"""What bench_gemm.py times: inputs on the GPU, ours, and what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from os import cpu_count
from typing import Any, NamedTuple

import numpy as np
from device_time import LAUNCHES
from shapes import GEMM_CUBES, GEMM_ROWS, GEMM_WEIGHTS, NORM_MOST

from stof_cupy import Epilogue, env, gemm
from stof_cupy.dtypes import as_dtype
from stof_cupy.jit.cache import Store
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import gemm_sm90
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops import gemm as gemm_module
from stof_cupy.ops import gemm_choice, gemm_model, gemm_ways, reference
from stof_cupy.ops.epilogue import Normed
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_choice import name_of
from stof_cupy.ops.gemm_fold import fold_norm, row_statistics
from stof_cupy.ops.gemm_norm import gemm_layer_norm
from stof_cupy.ops.gemm_sm90 import Layout, Plan
from stof_cupy.ops.gemm_timing import measure, measure_norm, normal, to_time
from stof_cupy.ops.gemm_vendor import Vendor
from stof_cupy.ops.norm import layer_norm
from stof_cupy.testing import assert_close, budget

DTYPE = "bfloat16"
FEW, MANY = 16, 512  # rows
IN_TURN = 200 * 2**20  # bytes of weights that L2 does not hold
EPS = 1e-5
Shape = tuple[int, int, int]  # M, N, K; N are columns of B
Call = Callable[[], Any]

KINDS = {
    "plain": EpilogueKind(),
    "bias_gelu": EpilogueKind(bias=True, activation="gelu_tanh"),  # the GELU that cuBLASLt has
    "swiglu": EpilogueKind(activation="silu", gated=True),
    "layer_norm": EpilogueKind(bias=True, residual=True),  # and the rows of that normalised
    # Of rows that are normalised before.
    "fold": EpilogueKind(normed=True, bias=True, activation="gelu_tanh"),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem on the GPU, computed by ours, and how far from that somebody else may be.

    Attributes
    ----------
    b : (N, K) cupy.ndarray
    weight, shift : cupy.ndarray
        Of LayerNorm.
    allowed : float
        Between two results of which each may be off by the budget.
    """

    kind: str
    shape: Shape
    a: Any
    b: Any
    bias: Any
    residual: Any
    weight: Any
    shift: Any
    out: Any
    allowed: float = 0.0
    others: tuple[Any, ...] = ()  # more weights like `b`, for calls in turn

    @property
    def flop(self) -> float:
        m, n, k = self.shape
        return 2.0 * m * n * k

    @property
    def moved(self) -> int:
        """Bytes that have to move."""
        arrays = [self.a, self.b, self.out]
        arrays += [self.residual] if KINDS[self.kind].residual else []
        return sum(int(x.nbytes) for x in arrays)

    @property
    def small(self) -> bool:
        """Whether many calls are timed at once: their inputs are in L2, or meant not to be."""
        return bool(self.others) or (self.shape[0] > FEW and self.moved < 32 * 2**20)

    @property
    def cold(self) -> bool:
        """Whether weights come from memory: those that few rows meet, as a model has others."""
        return self.shape[0] <= FEW or not self.small


class Measured(NamedTuple):
    """What is chosen for a cell, what the model would, and us of all that was timed."""

    choice: str
    model: str
    times: dict[str, float]


def shapes(kind: str) -> list[Shape]:
    """Return the (M, N, K) of a kind of product: first those with most goals."""
    found = [(m, n, k) for m in GEMM_ROWS for n, k in GEMM_WEIGHTS]
    if kind == "layer_norm":
        found = [shape for shape in found if shape[1] <= NORM_MOST]
    else:
        found += [(size,) * 3 for size in GEMM_CUBES]
    return sorted(found, key=lambda shape: (shape[0] < MANY, shape[0] > FEW))


@lru_cache(maxsize=1)
def cell(kind: str, shape: Shape) -> Cell:
    """Return a problem whose output is computed by ours, and right where it was looked at."""
    import cupy

    m, n, k = shape
    cupy.get_default_memory_pool().free_all_blocks()  # torch has a pool of its own
    a, b = _operands(shape)
    columns = n // KINDS[kind].halves
    bias = normal((n,), DTYPE, 2)
    residual = normal((m, columns), DTYPE, 3) if KINDS[kind].residual else None
    normed = k if kind == "fold" else columns
    weight, shift = (normal((normed,), DTYPE, seed) for seed in (4, 5))
    out = cupy.full((m, columns), np.nan, np.float16).view(as_dtype(DTYPE))
    made = Cell(kind, shape, a, b, bias, residual, weight, shift, out)
    ours(made)()
    others = ()
    if m <= FEW and kind != "fold" and LAUNCHES * b.nbytes >= IN_TURN:
        others = tuple(b.copy() for _ in range(min(LAUNCHES, IN_TURN // b.nbytes)))
    return replace(made, allowed=2 * check(made), others=others)


def in_turn(cell: Cell, make: Callable[[Cell], Call]) -> Call:
    """Return a call that takes other weights every time, where the cell has them."""
    if not cell.others:
        return make(cell)
    turns = cycle([make(replace(cell, b=b)) for b in (cell.b, *cell.others)])
    return lambda: next(turns)()


@lru_cache(maxsize=1)
def _operands(shape: Shape) -> tuple[Any, Any]:
    m, n, k = shape
    return normal((m, k), DTYPE, 0), normal((n, k), DTYPE, 1, k**-0.5)


def check(cell: Cell) -> float:
    """Compare some rows and columns with the float64 oracle; return the budget."""
    m, n, _ = cell.shape
    kind = KINDS[cell.kind]
    columns = n // kind.halves
    rows = np.unique(np.linspace(0, m - 1, 16).astype(np.int64))
    every = cell.kind == "layer_norm"
    cols = np.unique(np.linspace(0, columns - 1, columns if every else 300).astype(np.int64))
    of_b = np.concatenate([cols + half * columns for half in range(kind.halves)])
    a, b = cell.a[rows].get(), cell.b[of_b].get()
    bias = cell.bias[of_b].get() if kind.bias else None
    residual = cell.residual[rows].get()[:, cols] if kind.residual else None
    weight, shift = cell.weight.get(), cell.shift.get()

    def computed(precision: str | None) -> Any:
        how: dict[str, Any] = {"bias": bias, "residual": residual, "precision": precision}
        how |= {"activation": kind.activation, "gated": kind.gated}
        norm: dict[str, Any] = {"eps": EPS, "precision": precision}
        if cell.kind == "fold":
            return reference.gemm(reference.layer_norm(a, weight, shift, **norm), b.T, **how)
        made = reference.gemm(a, b.T, **how)
        return reference.layer_norm(made, weight, shift, **norm) if every else made

    exact, low = computed(None), computed(DTYPE)
    assert_close(cell.out[rows].get()[:, cols], exact, low)
    return budget(exact, low, as_dtype(DTYPE))


# ---------------------------------------------------------------- ours


def epilogue(cell: Cell) -> Epilogue:
    """Return the epilogue of a cell's product."""
    kind = KINDS[cell.kind]
    return Epilogue(
        bias=cell.bias if kind.bias else None,
        activation=kind.activation,
        residual=cell.residual,
        gated=kind.gated,
    )


def ours(cell: Cell) -> Call:
    """Return a call of ours, which writes to ``cell.out``."""
    after, weight = epilogue(cell), cell.b.T
    if cell.kind == "layer_norm":
        norm = cell.weight, cell.shift
        return lambda: gemm_layer_norm(cell.a, weight, *norm, eps=EPS, epilogue=after, out=cell.out)
    if cell.kind == "fold":
        return _folded(cell)
    return lambda: gemm(cell.a, weight, epilogue=after, out=cell.out)


def _folded(cell: Cell) -> Call:
    """Return a call of the statistics of rows, and the product that the norm is folded into."""
    import cupy

    host = (x.get() for x in (cell.b, cell.weight, cell.shift, cell.bias))
    weight, sums, bias = (cupy.asarray(x) for x in fold_norm(*host))
    statistics = cupy.empty((cell.shape[0], 2), np.float32)
    activation = KINDS[cell.kind].activation
    after = Epilogue(bias=bias, activation=activation, normed=Normed(statistics, sums))

    def run() -> None:
        row_statistics(cell.a, eps=EPS, out=statistics)
        gemm(cell.a, weight.T, epilogue=after, out=cell.out)

    return run


def apart(cell: Cell) -> Call | None:
    """Return a call of a norm and a product, where ours is one kernel or a fold."""
    after, weight = epilogue(cell), cell.b.T
    if cell.kind == "layer_norm":

        def norm_last() -> None:
            gemm(cell.a, weight, epilogue=after, out=cell.out)
            layer_norm(cell.out, cell.weight, cell.shift, eps=EPS, out=cell.out)

        return norm_last
    if cell.kind != "fold":
        return None
    normed = cell.a.copy()

    def norm_first() -> None:
        layer_norm(cell.a, cell.weight, cell.shift, eps=EPS, out=normed)
        gemm(normed, weight, epilogue=after, out=cell.out)

    return norm_first


def problem_of(kind: str, shape: Shape) -> Problem:
    """Return what the chooser is asked about."""
    m, n, k = shape
    return Problem(DTYPE, m, n // KINDS[kind].halves, k, KINDS[kind])


@lru_cache(maxsize=1)
def measured(kind: str, shape: Shape) -> Measured:
    """Time the ways to compute a cell, from then on ours is the fastest, and say which that is."""
    from stof_cupy.jit.device import facts

    problem, here = problem_of(kind, shape), facts()
    if kind == "layer_norm":
        times = measure_norm(problem)
        ways = (gemm_choice.norm, gemm_choice.guessed_norm)
        return Measured(*(name_of(way(problem, Layout(), here)) for way in ways), dict(times))
    times = measure(problem)
    chosen = gemm_choice.choices(problem, Layout(), here)[0]
    return Measured(
        name_of(chosen), name_of(gemm_ways.ways(problem, Layout(), here)[0].choice), dict(times)
    )


def templates(cell: Cell) -> Call | None:
    """Return a call of the fastest of our own kernels; None if ours is that already."""
    from stof_cupy.jit.device import facts

    problem = problem_of(cell.kind, cell.shape)
    *others, choice = gemm_choice.choices(problem, Layout(), facts())
    if cell.kind in ("layer_norm", "fold") or not others:
        return None
    after, weight = epilogue(cell), cell.b.T
    return lambda: gemm_module._launch(problem, cell.a, weight, after, cell.out, choice)


def compile_all(cells: Iterable[tuple[str, Shape]]) -> None:
    """Compile what may be chosen for some cells, in parallel."""
    from stof_cupy.jit.device import facts

    here, specs = facts(), dict[KernelSpec, None]()
    for kind, shape in cells:
        problem = problem_of(kind, shape)
        ways: list[Any] = to_time(problem, Layout(), here)
        if kind == "layer_norm":
            ways += gemm_model.norm_candidates(problem, Layout(), here)
        for way in ways:
            if isinstance(way, Plan):
                specs[gemm_sm90(DTYPE, way.config, problem.epilogue)] = None
            elif not isinstance(way, Vendor):
                specs[way.spec(problem)] = None
    store = Store(env.cache_dir("kernels"))
    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(lambda spec: store.get(spec, here.arch), specs))
