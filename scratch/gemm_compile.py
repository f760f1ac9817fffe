"""Compiles on all cores, each in a process: python3 scratch/gemm_compile.py [ladder] [grid] [tests]. 91 + 134 + 180 kernels, 40 s on 16 cores by estimate."""
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

sys.path[:0] = [os.getcwd(), "benchmarks", "scratch"]


def attempt(spec):
    from stof_cupy import env
    from stof_cupy.jit.cache import Store
    try:
        Store(env.cache_dir("kernels")).get(spec, "90a")
    except Exception as error:
        return f"BAD {spec.name} {' '.join(repr(error).split())[:200]}"


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


def of_grid():
    import gemm_cells
    from gemm_bench import set_up
    from stof_cupy.jit.device import facts
    from stof_cupy.jit.gemm_sm90 import gemm_sm90
    from stof_cupy.ops import gemm_model
    from stof_cupy.ops.gemm_sm90 import Layout, Plan
    from stof_cupy.ops.gemm_timing import to_time
    from stof_cupy.ops.gemm_vendor import Vendor
    set_up()
    for kind in gemm_cells.KINDS:
        for shape in gemm_cells.shapes(kind):
            if kind == "plain" or shape[0] >= 512:
                problem = gemm_cells.problem_of(kind, shape)
                ways = [*to_time(problem, Layout(), facts())]
                ways += gemm_model.norm_candidates(problem, Layout(), facts()) if kind == "layer_norm" else []
                for way in ways:
                    if not isinstance(way, Vendor):
                        yield gemm_sm90("bfloat16", way.config, problem.epilogue) if isinstance(way, Plan) else way.spec(problem)


if __name__ == "__main__":
    import gemm_ladder
    found, start = {}, time.time()
    for part in sys.argv[1:]:
        found |= dict.fromkeys({"ladder": gemm_ladder.specs, "grid": of_grid, "tests": of_tests}[part]())
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for wrong in pool.map(attempt, found):
            if wrong:
                print(wrong)
    print(len(found), "kernels in", round(time.time() - start), "s")
