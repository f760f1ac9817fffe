"""Compiles on all cores, each in a process: python3 scratch/gemm_compile.py [ladder] [first] [grid] [first_tests] [right_tests] [sanitize_tests] [engine_tests]. Kernels of each: 97, 110, 150, 87, 242, 152, 100;
a kernel takes 1 to 3 s of a core, so that ladder, first and first_tests (270) take 40 s on 16 cores by estimate. --count says what there is and compiles nothing."""
import os, pickle, sys, time
from functools import partial
from pathlib import Path
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


def of_tests(part):
    """What tests and gemm_pair.py load in a part of gemm.sh, as emulated_gpu.py saw it (EMULATE_LOG): whatever is missing there is compiled by the test, one after the other."""
    return pickle.loads((Path(__file__).parent / "gemm_specs.pkl").read_bytes())[part]


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
    parts = {"ladder": gemm_ladder.specs, "first": of_first, "grid": of_grid} | {f"{name}_tests": partial(of_tests, name) for name in ("first", "right", "sanitize", "engine")}
    for part in sys.argv[1:]:
        found |= dict.fromkeys(parts[part]() if part != "--count" else ())
    if "--count" in sys.argv:
        sys.exit(f"{len(found)} kernels")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        every = sorted(pool.map(attempt, found), reverse=True, key=lambda each: each[0])
    print(*(wrong for *_, wrong in every if wrong), sep="\n", end="")
    print(len(found), "kernels in", round(time.time() - start), "s;", sum(s > 2 for s, *_ in every), "took more than 2 s:", *(f"{name} {s:.1f}" for s, name, _ in every[:3]))
