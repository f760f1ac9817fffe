"""Where a product that normalises rows spends its time: clocks of a warpgroup's tiles. Needs norm_trace.patch (kernels that note the clock).

    git apply scratch/norm_trace.patch; ... PYTHONPATH=$PWD python3 scratch/norm_trace.py; git checkout cuda
"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
import cupy, numpy as np
from stof_cupy import env
from stof_cupy.jit.cache import Store
from stof_cupy.jit.device import facts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import Sm90Gemm, gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Norm, Plan, prepare
from stof_cupy.ops.gemm_timing import normal
KIND = EpilogueKind(bias=True, residual=True)
fields = getattr(Sm90Gemm, "__dataclass_fields__", {})
CASES = [((32768, 768, 768), dict(n=192, pingpong=True, across=4)), ((32768, 768, 768), dict(n=192, across=4)), ((32768, 768, 3072), dict(n=192, pingpong=True, across=4)), ((32768, 768, 768), dict(n=256, across=3)), ((32768, 576, 1536), dict(n=192, pingpong=True, across=3))]
if "shared" in fields: CASES += [(s, {**h, "shared": True}) for s, h in CASES]
store, here = Store(env.cache_dir("kernels")), facts()
with ThreadPoolExecutor(16) as pool: list(pool.map(lambda c: store.get(gemm_sm90("bfloat16", Sm90Gemm(128, **c[1]), KIND), here.arch), CASES))
for (m, n, k), how in CASES:
    a, b = normal((m, k), "bfloat16", 0), normal((n, k), "bfloat16", 1, k ** -0.5)
    bias, residual, weight, shift = (normal(s, "bfloat16", 2 + i) for i, s in enumerate(((n,), (m, n), (n,), (n,))))
    out = cupy.empty_like(residual); plan = Plan(Sm90Gemm(128, **how)); p = Problem("bfloat16", m, n, k, KIND)
    notes = cupy.zeros((132 * 2 * 12 * 8,), np.int64)
    def run(report):
        return prepare(plan, p, a, b, out, bias=bias, residual=residual, norm=Norm(weight, shift, 1e-5), report=report)
    plain, noted = run(0), run(notes.data.ptr)
    for _ in range(3): plain(); noted()
    cupy.cuda.Device().synchronize(); times = []
    for which in (plain, noted):
        ev = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(20)]
        for s, e in ev: s.record(); which(); e.record()
        cupy.cuda.Device().synchronize(); times.append(np.median([cupy.cuda.get_elapsed_time(s, e) for s, e in ev]) * 1e3)
    t = notes.get().reshape(132, 2, 12, 8)[: 120 if how["across"] != 3 else 117]
    some = t[:, :, 1:4]; ok = some[..., 7] > 0  # neither first nor last
    d = {"waits for its turn": (0, 1), "products": (1, 2), "bias, residual": (2, 3), "own statistics": (3, 4), "exchange": (4, 5), "combined": (5, 6), "normalised, sent": (6, 7)}
    print((m, n, k), plan.config.name, f"{times[0]:.1f} us, with notes {times[1]:.1f};", ", ".join(f"{name} {np.median((some[..., j] - some[..., i])[ok]):.0f}" for name, (i, j) in d.items()), flush=True)
