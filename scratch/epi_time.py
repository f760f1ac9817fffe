"""python3 scratch/epi_time.py NAME [trace]: us of products in given tiles, each after a rest, interleaved; with trace: clocks of a warpgroup's tile. The tree is that of PYTHONPATH."""
import sys, time
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
name, tracing = sys.argv[1], "trace" in sys.argv
KINDS = {"plain": EpilogueKind(), "bias": EpilogueKind(bias=True), "tanh": EpilogueKind(bias=True, activation="gelu_tanh"), "erf": EpilogueKind(bias=True, activation="gelu"), "residual": EpilogueKind(bias=True, residual=True), "swiglu": EpilogueKind(activation="silu", gated=True)}
PP, BIG, C2 = dict(m=128, n=192, pingpong=True), dict(m=128, n=256), dict(m=128, n=192, pingpong=True, cluster=2)
CASES = [(s, PP, k) for k in ("plain", "bias", "tanh", "erf", "residual") for s in ((32768, 3072, 768),)] + [((4096, 3072, 768), PP, k) for k in ("tanh", "erf")] + [((32768, 768, 3072), PP, "residual"), ((32768, 4096, 2048), BIG, "swiglu"), ((32768, 3072, 768), C2, "erf"), ((8192, 8192, 8192), C2, "plain"), ((4096, 2304, 768), PP, "bias"), ((4096, 3072, 768), dict(m=128, n=128, pingpong=True), "erf"), ((512, 3072, 768), dict(m=64, n=192, pingpong=True), "tanh")]
if tracing: CASES = [((32768, 3072, 768), PP, k) for k in ("plain", "bias", "tanh", "erf")] + [((32768, 3072, 768), BIG, k) for k in ("plain", "tanh")]
store, here = Store(env.cache_dir("kernels")), facts()
with ThreadPoolExecutor(16) as pool: list(pool.map(lambda c: store.get(gemm_sm90("bfloat16", Sm90Gemm(**c[1]), KINDS[c[2]]), here.arch), CASES))
runs = []
for (m, n, k), how, kind in CASES:
    gated = kind == "swiglu"
    p = Problem("bfloat16", m, n, k, KINDS[kind])
    a, b = normal((m, k), "bfloat16", 0), normal((n * (2 if gated else 1), k), "bfloat16", 1, k ** -0.5)
    extra = {}
    if KINDS[kind].bias: extra["bias"] = normal((n,), "bfloat16", 2)
    if KINDS[kind].residual: extra["residual"] = normal((m, n), "bfloat16", 3)
    out = cupy.empty((m, n), a.dtype); plan = Plan(Sm90Gemm(**how))
    notes = cupy.zeros((132 * 2 * 12 * 24,), np.int64) if tracing else None
    run = prepare(plan, p, a, b, out, report=notes.data.ptr if tracing else 0, **extra)
    runs.append(((m, n, k), how, kind, run, notes, []))
for _ in range(2):
    for r in runs: r[3]()
cupy.cuda.Device().synchronize()
if tracing:
    for size, how, kind, run, notes, _ in runs:
        t = notes.get().reshape(132, 2, 12, 24)[:, :, 2:9]
        slabs = 6 if how["n"] == 192 else 4
        med = lambda i, j: int(np.median((t[..., j] - t[..., i])))
        per = [(med(2 if s == 0 else 5 + 3 * (s - 1), 3 + 3 * s), med(3 + 3 * s, 4 + 3 * s), med(4 + 3 * s, 5 + 3 * s)) for s in range(slabs)]
        print(name, size, how["n"], kind, f"turn {med(0, 1)} products {med(1, 2)} epilogue {med(2, 23)}; ready, stage, send of each:", *(f"{a}+{b}+{c}" for a, b, c in per), flush=True)
else:
    for _ in range(8):
        for r in runs:
            cupy.cuda.Device().synchronize(); time.sleep(0.004)
            e = cupy.cuda.Event(), cupy.cuda.Event()
            r[3](); e[0].record(); r[3](); r[3](); e[1].record(); e[1].synchronize()
            r[5].append(cupy.cuda.get_elapsed_time(*e) * 500)
    print(name, " | ".join(f"{'x'.join(map(str, s))} {h['m']}x{h['n']}{'c2' if h.get('cluster') else ''} {k} {np.median(x):.1f}" for s, h, k, _, _, x in runs), flush=True)
