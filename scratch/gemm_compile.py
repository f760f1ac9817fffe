"""Compiles on all cores, each in a process: python3 scratch/gemm_compile.py [ladder] [first] [pair] [grid] [tests]. Kernels of each: 97, 110, 21, 150, 134;
a kernel takes 1 to 3 s of a core, so that ladder, first and pair (225) take 35 s on 16 cores by estimate. --count says what there is and compiles nothing."""
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

sys.path[:0] = [os.getcwd(), "benchmarks", "scratch"]


def attempt(spec):
    from stof_cupy import env
    from stof_cupy.jit.cache import Store
    start, wrong = time.time(), None
    try:
        Store(env.cache_dir("kernels")).get(spec, "90a")
    except Exception as error:
        wrong = f"BAD {spec.name} {' '.join(repr(error).split())[:200]}"
    return time.time() - start, spec.name, wrong


def of_tests():
    from stof_cupy.jit.catalogue import GEMM_TILES
    from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, gemm_sm90
    from stof_cupy.ops import gemm_sm80
    from stof_cupy.ops.gemm_args import Problem
    from tests.ops import test_gemm_stages as stages
    for kind in (stages.QKV, stages.PAIRS, stages.FOLD, stages.LARGE, stages.EVERY):
        for config in GEMM_SM90_CONFIGS:
            if config.fault(kind) is None:
                yield gemm_sm90("bfloat16", config, kind)
    for kind, (batch, seq, heads, dim, k) in stages.CASES:
        for tile in GEMM_TILES:
            problem = Problem("bfloat16", batch * seq, heads * dim, k, kind)
            if gemm_sm80.Config(tile).fault(problem) is None:
                yield gemm_sm80.Config(tile).spec(problem)


def of_pair():
    """Two products in one kernel: those of tests/ops/test_gemm_gemm.py, and of gemm_pair.py."""
    from stof_cupy.jit.epilogues import PLAIN
    from stof_cupy.jit.gemm_pair import PAIR_TILES, gemm_pair
    from tests.ops import test_gemm_gemm as tests
    import gemm_pair as timed
    for tile in PAIR_TILES:
        for dtype in ("float16", "bfloat16"):
            for kinds in ((PLAIN, PLAIN), (tests.GELU, tests.ADDED), (tests.GATED, tests.ADDED)):
                yield gemm_pair(dtype, tile, *kinds)
        yield gemm_pair("bfloat16", tile, *timed.KINDS)


FIRST = ("plain", "bias_gelu", "layer_norm"), (16, 512, 4096, 32768)


def of_first():
    yield from of_grid(*FIRST)


def of_grid(kinds=None, rows=None):
    import gemm_cells
    from gemm_bench import set_up
    from stof_cupy.jit.device import facts
    from stof_cupy.jit.gemm_sm90 import gemm_sm90
    from stof_cupy.ops import gemm_model
    from stof_cupy.ops.gemm_sm90 import Layout, Plan
    from stof_cupy.ops.gemm_timing import to_time
    from stof_cupy.ops.gemm_vendor import Vendor
    set_up()
    for kind in kinds or gemm_cells.KINDS:
        for shape in gemm_cells.shapes(kind):
            if shape[0] in rows if rows else kind == "plain" or shape[0] >= 512:
                problem = gemm_cells.problem_of(kind, shape)
                ways = [*to_time(problem, Layout(), facts())]
                ways += gemm_model.norm_candidates(problem, Layout(), facts()) if kind == "layer_norm" else []
                for way in ways:
                    if not isinstance(way, Vendor):
                        yield gemm_sm90("bfloat16", way.config, problem.epilogue) if isinstance(way, Plan) else way.spec(problem)


if __name__ == "__main__":
    import gemm_ladder
    found, start = {}, time.time()
    parts = {"ladder": gemm_ladder.specs, "first": of_first, "pair": of_pair, "grid": of_grid, "tests": of_tests}
    for part in sys.argv[1:]:
        found |= dict.fromkeys(parts[part]() if part != "--count" else ())
    if "--count" in sys.argv:
        sys.exit(f"{len(found)} kernels")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        every = sorted(pool.map(attempt, found), reverse=True, key=lambda each: each[0])
    print(*(wrong for *_, wrong in every if wrong), sep="\n", end="")
    print(len(found), "kernels in", round(time.time() - start), "s;", sum(s > 2 for s, *_ in every), "took more than 2 s:", *(f"{name} {s:.1f}" for s, name, _ in every[:3]))
