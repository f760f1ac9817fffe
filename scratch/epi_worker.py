"""One tree's kernels, timed once a line of stdin: epi_turns.py asks several in turn."""
import json, sys, time
import cupy, numpy as np
from concurrent.futures import ThreadPoolExecutor
from stof_cupy import env
from stof_cupy.jit.cache import Store
from stof_cupy.jit.device import facts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import Sm90Gemm, gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Plan, prepare
from stof_cupy.ops.gemm_timing import normal
KINDS = {"plain": EpilogueKind(), "bias": EpilogueKind(bias=True), "tanh": EpilogueKind(bias=True, activation="gelu_tanh"), "erf": EpilogueKind(bias=True, activation="gelu"), "residual": EpilogueKind(bias=True, residual=True), "swiglu": EpilogueKind(activation="silu", gated=True)}
PP, BIG, SQ, SMALL = dict(m=128, n=192, pingpong=True), dict(m=128, n=256), dict(m=128, n=128, pingpong=True), dict(m=64, n=64, pingpong=True)
CASES = [((32768, 3072, 768), PP, "plain"), ((32768, 2304, 768), PP, "bias"), ((32768, 3072, 768), PP, "tanh"), ((32768, 3072, 768), PP, "erf"), ((32768, 768, 3072), PP, "residual"), ((32768, 768, 768), PP, "residual"), ((4096, 3072, 768), PP, "erf"), ((4096, 3072, 768), PP, "tanh"), ((4096, 2304, 768), PP, "bias"), ((4096, 768, 768), dict(m=64, n=192, pingpong=True), "residual"), ((4096, 3072, 768), SQ, "erf"), ((32768, 4096, 2048), BIG, "swiglu"), ((8192, 8192, 8192), dict(m=128, n=192, pingpong=True, cluster=2), "plain"), ((128, 2304, 768), SMALL, "bias"), ((128, 3072, 768), SMALL, "erf"), ((512, 3072, 768), dict(m=64, n=192, pingpong=True), "tanh")]
store, here = Store(env.cache_dir("kernels")), facts()
with ThreadPoolExecutor(8) as pool: list(pool.map(lambda c: store.get(gemm_sm90("bfloat16", Sm90Gemm(**c[1]), KINDS[c[2]]), here.arch), CASES))
runs, arrays = [], {}
def made(shape, seed, scale=1.0):
    return arrays.setdefault((shape, seed), normal(shape, "bfloat16", seed, scale))
for (m, n, k), how, kind in CASES:
    p = Problem("bfloat16", m, n, k, KINDS[kind])
    a, b = made((m, k), 0), made((n * (2 if kind == "swiglu" else 1), k), 1, k ** -0.5)
    extra = {}
    if KINDS[kind].bias: extra["bias"] = made((n,), 2)
    if KINDS[kind].residual: extra["residual"] = made((m, n), 3)
    out = arrays.setdefault((m, n), cupy.empty((m, n), a.dtype))
    runs.append((prepare(Plan(Sm90Gemm(**how)), p, a, b, out, **extra), 2 if m > 512 else 20))
for _ in range(2):
    for r, _ in runs: r()
cupy.cuda.Device().synchronize()
print("ready", flush=True)
for line in sys.stdin:
    found = []
    for run, count in runs:
        cupy.cuda.Device().synchronize(); time.sleep(0.002)
        e = cupy.cuda.Event(), cupy.cuda.Event()
        run(); e[0].record()
        for _ in range(count): run()
        e[1].record(); e[1].synchronize()
        found.append(cupy.cuda.get_elapsed_time(*e) * 1000 / count)
    print(json.dumps(found), flush=True)
