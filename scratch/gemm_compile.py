"""Compiles on all cores what the GPU tests of the GEMM's new stages run: python3 scratch/gemm_compile.py tests; 20 s on 16 cores."""
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
sys.path[:0] = [os.getcwd(), "benchmarks"]
from stof_cupy import env
from stof_cupy.jit import device
from stof_cupy.jit.cache import Store
from stof_cupy.jit.catalogue import GEMM_TILES
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, for_layout, gemm_sm90
from stof_cupy.ops import gemm_model, gemm_sm80
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout, Plan
from tests.ops import test_gemm_stages as stages

facts, specs = device.facts(), {}
for kind in (stages.QKV, stages.PAIRS, stages.FOLD, stages.LARGE, stages.EVERY):
    for config in GEMM_SM90_CONFIGS:
        if config.fault(kind) is None:
            specs[gemm_sm90("bfloat16", config, kind)] = None
for kind, (batch, seq, heads, dim, k) in stages.CASES:
    for dtype in ("float16", "bfloat16"):
        for s in (seq, 300, 1):
            problem = Problem(dtype, batch * s, heads * dim, k, kind)
            choice = gemm_model.choose(problem, Layout(), facts)
            specs[gemm_sm90(dtype, choice.config, kind) if isinstance(choice, Plan) else choice.spec(problem)] = None
    for tile in GEMM_TILES:
        if gemm_sm80.Config(tile).fault(problem) is None:
            specs[gemm_sm80.Config(tile).spec(problem)] = None
for config in GEMM_SM90_CONFIGS:
    if config.split:
        specs[gemm_sm90("bfloat16", for_layout(config, False, False))] = None
start, store = time.time(), Store(env.cache_dir("kernels"))


def attempt(spec):
    try:
        store.get(spec, facts.arch)
    except Exception as error:
        print("BAD", spec.name, repr(error)[:200])


with ThreadPoolExecutor(os.cpu_count()) as pool:
    list(pool.map(attempt, specs))
print(len(specs), "kernels in", round(time.time() - start), "s")
