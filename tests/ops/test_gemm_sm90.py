"""The Hopper GEMM against the oracle: its code on the CPU, and the kernel on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import UnsupportedError
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, Sm90Gemm, for_layout, gemm_sm90
from stof_cupy.ops import gemm_sm90 as module
from stof_cupy.ops import reference, reference_decoder
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Plan
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.ops import on_hopper

DTYPES = ("float16", "bfloat16")
SHARED = Sm90Gemm(128, 64)
PAIR = Sm90Gemm(128, 64, cluster=2)
TURNS = Sm90Gemm(64, 64, pingpong=True)
TALL_TURNS = Sm90Gemm(128, 64, pingpong=True, cluster=2, stages=3)
TALL = Sm90Gemm(256, 64, stages=2)
WIDE = Sm90Gemm(128, 128, cluster=2)
PIECES = Sm90Gemm(128, 64, split=True)
FEW = Sm90Gemm(128, 16, swapped=True, split=True)
UNEVEN_PAIR = Sm90Gemm(128, 160, cluster=2)
UNEVEN_TURNS = Sm90Gemm(128, 80, pingpong=True)
UNEVEN_PIECES = Sm90Gemm(128, 112, split=True)
UNEVEN = (UNEVEN_PAIR, UNEVEN_TURNS, UNEVEN_PIECES)
CPU = (SHARED, PAIR, TURNS, TALL_TURNS, TALL, WIDE, PIECES, FEW, *UNEVEN)
EVERY = EpilogueKind(scale=True, bias=True, activation="gelu_tanh", residual=True)
GATED = EpilogueKind(bias=True, activation="silu", gated=True, residual=True)


@dataclass
class Case:
    """One random problem, and where its result goes."""

    problem: Problem
    a: Any  # (M, K)
    b: Any  # (N, K)
    bias: Any
    residual: Any
    out: Any
    scale: float = 1.0
    norm: Any = None

    @classmethod
    def draw(
        cls, seed: int, problem: Problem, layout: str = "kk", padded_out: bool = False
    ) -> Case:
        """Draw operands, each contiguous along `k` or along its rows, `m`, with padded rows."""
        g, p = rng(seed), problem
        kind = p.epilogue
        a = _laid(g, (p.m, p.k), p.dtype, layout[0], 1.0)
        b = _laid(g, (p.columns, p.k), p.dtype, layout[1], max(p.k, 1) ** -0.5)
        bias = random_array(g, (p.columns,), p.dtype) if kind.bias else None
        residual = random_array(g, (p.m, p.n), p.dtype) if kind.residual else None
        pitch = -(-p.n // 8) * 8 + 8 if padded_out else p.n
        out = poison((p.m, pitch), a.dtype)[:, : p.n]
        return cls(p, a, b, bias, residual, out, 0.75 if kind.scale else 1.0)

    def compare(self, got: Any) -> None:
        kind = self.problem.epilogue
        how: dict[str, Any] = {"bias": self.bias, "residual": self.residual, "gated": kind.gated}
        how |= {"activation": kind.activation, "scale": self.scale if kind.scale else None}
        exact = reference.gemm(self.a, self.b.T, **how)
        low = reference.gemm(self.a, self.b.T, **how, precision=got.dtype.name)
        if self.norm is not None:
            exact, low = self._normed(exact), self._normed(low, precision=got.dtype.name)
        assert_close(got, exact, low)

    def _normed(self, x: Any, **how: Any) -> Any:
        weight, bias, eps = self.norm
        if bias is None:
            return reference_decoder.rms_norm(x, weight, eps=eps, **how)
        return reference.layer_norm(x, weight, bias, eps=eps, **how)


def _laid(g: Any, shape: tuple[int, int], dtype: str, along: str, scale: float) -> Any:
    """Return a matrix in poison: its rows, or its columns, are 16-byte aligned pieces of longer
    ones."""
    rows, k = shape if along == "k" else shape[::-1]
    wide = poison((rows, -(-k // 8) * 8 + 16), np.dtype(random_array(g, (1,), dtype).dtype))
    wide[:, 8 : 8 + k] = random_array(g, (rows, k), dtype, scale)
    view = wide[:, 8 : 8 + k]
    return view if along == "k" else view.T


def run_on_cpu(plan: Plan, case: Case, *, ctas: int = 3, seed: int = 0) -> Any:
    problem, config = case.problem, plan.config
    found = module.layout(problem, case.a, case.b)
    assert found is not None and module.fault(plan, problem, found) is None
    config = for_layout(config, found.transposed_a, found.transposed_b)
    tiles = plan.cut(problem) * config.cluster
    partial = np.full(tiles * plan.pieces(problem) * config.m * config.n, np.nan, np.float32)
    counters = np.zeros(tiles * config.sharers, np.int32)
    fields = module.fields(
        *(plan, problem, case.a, case.b, case.out, case.bias, case.residual, case.scale, 4),
        *(on_hopper.encode, case.norm),
        partial=partial.ctypes.data,
        counters=counters.ctypes.data,
        report=0,
    )
    clusters = plan.stream or min(plan.units(problem), max(1, ctas // config.ctas))
    if config.joined > 1:
        clusters = plan.units(problem)
    spec = gemm_sm90(problem.dtype, config, problem.epilogue)
    on_hopper.launch(spec, clusters * config.ctas, fields, seed=seed)
    assert not counters.any(), "the next launch would not begin with zeros"
    return case.out


SIZES = ((1, 72, 40), (17, 100, 1000), (127, 72, 136), (300, 200, 72), (257, 64, 64))


@pytest.mark.parametrize("config", CPU, ids=lambda c: c.name)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_code_computes_products(config: Sm90Gemm, size: tuple[int, int, int]) -> None:
    case = Case.draw(sum(size), Problem("bfloat16", *size))
    plan = Plan(config, splits=min(3, -(-size[2] // 64)) if config.split else 1, group=2)
    case.compare(run_on_cpu(plan, case, ctas=2 + size[0] % 3, seed=size[0]))


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        *((SHARED, "km"), (SHARED, "mk")),
        *((config, "mm") for config in (WIDE, TALL_TURNS, TALL, replace(FEW, n=64))),
    ],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_the_code_on_transposed_operands(config: Sm90Gemm, layout: str) -> None:
    case = Case.draw(5, Problem("bfloat16", 140, 200, 136), layout)
    plan = Plan(config, splits=2 if config.split else 1)
    case.compare(run_on_cpu(plan, case, ctas=4))


def test_the_code_of_an_activation() -> None:
    kind = EpilogueKind(bias=True, activation="gelu")
    case = Case.draw(1, Problem("float16", 70, 72, 40, kind))
    case.bias *= 4
    case.compare(run_on_cpu(Plan(SHARED), case))


@pytest.mark.parametrize(
    "config",
    [WIDE, TALL_TURNS, PIECES, FEW, *UNEVEN, *GEMM_SM90_CONFIGS[-3:]],
    ids=lambda c: c.name,
)
def test_the_code_of_every_stage(config: Sm90Gemm) -> None:
    """With and without tensor maps of output and residual, for several tiles of each CTA."""
    plan = Plan(config, splits=2 if config.split else 1)
    for rows, columns, padded in (
        (70, 200, True),
        (300, 272, False),
        (70, 75, True),
        (9, 75, False),
    ):
        case = Case.draw(rows, Problem("bfloat16", rows, columns, 100, EVERY), padded_out=padded)
        if columns == 200:
            case.residual = _laid(rng(1), (rows, columns), "bfloat16", "k", 1.0)[:, :columns]
        out = run_on_cpu(plan, case, ctas=2)
        case.compare(out)
        around = out.base.astype(np.float32)[:, columns:]
        assert np.isnan(around).all()


@pytest.mark.parametrize("config", [TALL, WIDE, TURNS, PIECES], ids=lambda c: c.name)
def test_the_code_of_a_residual_that_has_a_tensor_map_where_the_output_has_none(
    config: Sm90Gemm,
) -> None:
    """Its blocks are copied to where results were written, by several tiles of each CTA."""
    case = Case.draw(2, Problem("bfloat16", 300, 200, 72, EpilogueKind(residual=True)))
    case.residual = _laid(rng(1), (300, 200), "bfloat16", "k", 1.0)
    case.out = poison((300, 203), case.out.dtype)[:, 1:201]
    plan = Plan(config, splits=2 if config.split else 1)
    case.compare(run_on_cpu(plan, case, ctas=config.ctas))


@pytest.mark.parametrize(
    "config", [WIDE, Sm90Gemm(64, 128, pingpong=True), FEW], ids=lambda c: c.name
)
def test_the_code_of_gates(config: Sm90Gemm) -> None:
    for size in ((70, 136, 72), (9, 8, 200)):
        case = Case.draw(3, Problem("bfloat16", *size, GATED))
        case.compare(run_on_cpu(Plan(config), case))


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize(("across", "residual"), [(1, False), (2, True), (3, True)])
def test_the_code_of_norms(across: int, residual: bool, turns: bool) -> None:
    """Several tiles for each cluster, rows of one that are none, and columns far from zero."""
    kind = EpilogueKind(bias=True, residual=residual)
    config = Sm90Gemm(128, 64, pingpong=turns, across=across)
    for rows, columns, ctas in ((3, 64, 1), (300, 43, 1), (460, 61, 2)):
        n = 64 * (across - 1) + columns
        case = Case.draw(across, Problem("bfloat16", rows, n, 72, kind), padded_out=rows == 300)
        case.bias += np.asarray(3, case.bias.dtype)
        weight, bias = (random_array(rng(i), (n,), "bfloat16") for i in (8, 9))
        case.norm = module.Norm(weight, bias if rows != 300 else None, 1e-5)
        case.compare(run_on_cpu(Plan(config), case, ctas=ctas * across, seed=rows))


@pytest.mark.parametrize("turns", [False, True])
def test_the_code_of_norms_of_more_blocks_than_buffers(turns: bool) -> None:
    """The residual is read on into buffers that have left."""
    kind = EpilogueKind(bias=True, residual=True)
    config = Sm90Gemm(128, 192, pingpong=turns, across=2)
    for rows, n in ((130, 350), (520, 257)):
        case = Case.draw(rows, Problem("float16", rows, n, 72, kind), padded_out=n == 257)
        weight, bias = (random_array(rng(i), (n,), "float16") for i in (8, 9))
        case.norm = module.Norm(weight, bias, 1e-5)
        case.compare(run_on_cpu(Plan(config), case, ctas=2, seed=rows))


def test_the_code_in_place_of_the_residual() -> None:
    turns = Sm90Gemm(128, 144, pingpong=True)
    for config, n in product((PAIR, FEW, turns, UNEVEN_PIECES), (100, 143, 144)):
        case = Case.draw(4, Problem("bfloat16", 140, n, 72, EpilogueKind(residual=True)))
        case.out = case.residual.copy()
        given, case.residual = case.residual, case.out
        out = run_on_cpu(Plan(config), case)
        case.residual = given
        case.compare(out)


@pytest.mark.parametrize("config", [TALL_TURNS, PIECES, FEW], ids=lambda c: c.name)
def test_runs_of_the_code_are_equal_whatever_the_order_of_its_threads(config: Sm90Gemm) -> None:
    plan = Plan(config, splits=4 if config.split else 1)
    results = []
    for seed in range(3):
        case = Case.draw(6, Problem("bfloat16", 130, 136, 256))
        results.append(run_on_cpu(plan, case, ctas=2 + seed, seed=seed).view("u2").copy())
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


@pytest.mark.parametrize("stream", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("config", [PIECES, FEW], ids=lambda c: c.name)
def test_the_code_of_streams(config: Sm90Gemm, stream: int) -> None:
    """Tiles cut anywhere, one by many clusters and many by one, some left whole, some idle."""
    for size in ((130, 200, 330), (17, 72, 1000), (9, 300, 64)):
        case = Case.draw(stream, Problem("bfloat16", *size, EpilogueKind(residual=True)))
        plan = Plan(config, stream=stream)
        case.compare(run_on_cpu(plan, case, seed=stream))


@pytest.mark.parametrize(
    ("n", "joined"),
    [(128, 2), (256, 2), (192, 3), (256, 4), (64, 2), (64, 4), (64, 8), (128, 4), (128, 8)],
)
def test_the_code_of_pieces_in_a_cluster(n: int, joined: int) -> None:
    """Tails in all of M, N and K, CTAs with no column of the output, and the fewest steps."""
    config = Sm90Gemm(128, n, joined=joined)
    sizes = ((1, 72, 64 * joined), (300, n + 100, 1000), (17, 43, max(392, 64 * joined - 56)))
    for seed, size in enumerate(sizes):
        kind = EVERY if seed == 1 else EpilogueKind()
        case = Case.draw(seed, Problem("bfloat16", *size, kind), padded_out=seed == 2)
        case.compare(run_on_cpu(Plan(config, joined), case, seed=seed))
    case = Case.draw(7, Problem("float16", 136, 128, 456), "mm")
    case.compare(run_on_cpu(Plan(config, joined), case))


def test_a_stream_does_every_step_once() -> None:
    for tiles, steps, stream in ((5, 7, 3), (1, 30, 7), (11, 4, 3), (4, 4, 4), (9, 1, 4)):
        problem, plan = Problem("float16", 8, 64 * tiles, 64 * steps), Plan(PIECES, stream=stream)
        whole, share = plan.whole(problem), plan.share(problem)
        assert whole % stream == 0 and 0 <= whole <= tiles
        left = (tiles - whole) * steps
        assert (stream - 1) * share < left + share * stream and share * stream >= left
        for tile in range(tiles - whole):
            first, last = tile * steps // share, (tile * steps + steps - 1) // share
            assert last - first + 1 <= plan.pieces(problem)


def test_what_is_not_finite_stays_where_it_is() -> None:
    case = Case.draw(7, Problem("bfloat16", 70, 72, 100))
    case.a[3, 5], case.b[40, 7] = np.nan, np.inf
    case.compare(run_on_cpu(Plan(SHARED), case))


# ---------------------------------------------------------------- the kernel, on a GPU


def upload(cupy: Any, x: Any) -> Any:
    """Return an array on the GPU with the strides of one of the CPU, and what lies between."""
    if x is None:
        return None
    base = x if x.base is None else x.base
    flat = cupy.asarray(base).reshape(-1)
    skipped = (x.ctypes.data - base.ctypes.data) // x.itemsize
    return cupy.ndarray(x.shape, x.dtype, flat[skipped:].data, strides=x.strides)


def run_on_gpu(cupy: Any, plan: Plan, case: Case) -> Any:
    a, b, bias, residual, out = (
        upload(cupy, x) for x in (case.a, case.b, case.bias, case.residual, case.out)
    )
    how = {"bias": bias, "residual": residual, "scale": case.scale}
    run = module.prepare(plan, case.problem, a, b, out, **how)
    run()
    first = out.get()
    out.fill(np.nan)
    run()
    assert np.array_equal(out.get().view("u2"), first.view("u2")), "runs differ"
    return first


def compare_on_gpu(cupy: Any, config: Sm90Gemm, case: Case, seed: int) -> None:
    """Compare, if K has steps for all that a configuration joins."""
    steps = -(-case.problem.k // 64)
    plan = Plan(config, min(1 + seed % 4, steps) if config.split else config.joined)
    if config.joined == 1 or plan.pieces(case.problem) == config.joined:
        case.compare(run_on_gpu(cupy, plan, case))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", (*GEMM_SM90_CONFIGS, *CPU), ids=lambda c: c.name)
def test_sizes(hopper: Any, config: Sm90Gemm, dtype: str) -> None:
    sizes = ((1, 72, 40), (17, 100, 1000), (127, 72, 1000), (300, 520, 72), (2000, 1000, 328))
    for seed, size in enumerate(sizes):
        case = Case.draw(seed, Problem(dtype, *size), padded_out=seed % 2 == 0)
        compare_on_gpu(hopper, config, case, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", (EVERY, GATED), ids=lambda k: k.name)
@pytest.mark.parametrize("config", GEMM_SM90_CONFIGS, ids=lambda c: c.name)
def test_epilogues(hopper: Any, config: Sm90Gemm, kind: EpilogueKind) -> None:
    if config.fault(kind) is not None:
        pytest.skip("no such kernel")
    for seed, size in enumerate(((17, 104, 200), (300, 200, 72), (1500, 1032, 264))):
        case = Case.draw(seed, Problem("bfloat16", *size, kind), padded_out=seed == 1)
        compare_on_gpu(hopper, config, case, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["km", "mk", "mm"])
@pytest.mark.parametrize("config", GEMM_SM90_CONFIGS, ids=lambda c: c.name)
def test_transposed_operands(hopper: Any, config: Sm90Gemm, layout: str) -> None:
    if for_layout(config, layout[0] == "m", layout[1] == "m").fault() is not None:
        pytest.skip("no such kernel")
    for seed, size in enumerate(((17, 104, 200), (1000, 1032, 264))):
        case = Case.draw(seed, Problem("float16", *size), layout)
        compare_on_gpu(hopper, config, case, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("config", GEMM_SM90_CONFIGS, ids=lambda c: c.name)
def test_many_tiles_for_each_cta(hopper: Any, config: Sm90Gemm) -> None:
    """Buffers and phases go round many times; the whole result is that of a float32 product."""
    m, n, k = (64 if config.swapped else 5000), 9000, 1000
    g = hopper.random.default_rng(1)
    a, b = (g.standard_normal((rows, k), np.float32).astype(np.float16) for rows in (m, n))
    b *= k**-0.5
    out = poison((m, n), np.float16, hopper)
    run = module.prepare(
        Plan(config, 3 if config.split else config.joined),
        *(Problem("float16", m, n, k), a, b, out),
    )
    exact = a.astype(np.float32) @ b.astype(np.float32).T
    for _ in range(3):
        out.fill(np.nan)
        run()
        assert abs(out.astype(np.float32) - exact).max() < 2**-9 * abs(exact).max()


@pytest.mark.gpu
@pytest.mark.parametrize("config", [c for c in GEMM_SM90_CONFIGS if c.split], ids=lambda c: c.name)
def test_streams(hopper: Any, config: Sm90Gemm) -> None:
    for seed, size in enumerate(((17, 100, 1000), (300, 520, 2000), (2000, 1500, 328))):
        for stream in (1, 7, 132):
            case = Case.draw(seed, Problem("bfloat16", *size), padded_out=seed == 1)
            case.compare(run_on_gpu(hopper, Plan(config, stream=stream), case))


@pytest.mark.gpu
def test_what_the_kernel_refuses(hopper: Any) -> None:
    a, b = hopper.zeros((8, 20), np.float16), hopper.zeros((16, 20), np.float16)
    out = hopper.zeros((8, 16), np.float16)
    with pytest.raises(UnsupportedError, match="multiple of 16 bytes"):
        module.prepare(Plan(SHARED), Problem("float16", 8, 16, 20), a, b, out)
    with pytest.raises(UnsupportedError, match="splits"):
        a, b = hopper.zeros((8, 64), np.float16), hopper.zeros((16, 64), np.float16)
        module.prepare(Plan(PIECES, splits=2), Problem("float16", 8, 16, 64), a, b, out)


@pytest.mark.gpu
def test_captured_launches_run_again(hopper: Any) -> None:
    for config in (PAIR, FEW):
        case = Case.draw(3, Problem("bfloat16", 16, 264, 512))
        a, b, out = (upload(hopper, x) for x in (case.a, case.b, case.out))
        run = module.prepare(Plan(config, 4 if config.split else 1), case.problem, a, b, out)
        run()
        want = out.copy()
        stream = hopper.cuda.Stream(non_blocking=True)
        hopper.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            run()
            graph = stream.end_capture()
            for _ in range(3):
                out.fill(0)
                graph.launch(stream)
                stream.synchronize()
                assert hopper.array_equal(out, want)
