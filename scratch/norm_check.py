"""Products that normalise rows (norm_overlap.patch): right with bounded waits, then timed: python scratch/norm_check.py [time]"""
import sys, os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
import cupy, numpy as np
from stof_cupy import env
from stof_cupy.jit.cache import Store
from stof_cupy.jit.device import facts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import Sm90Gemm, gemm_sm90
from stof_cupy.ops import gemm_sm90 as hopper
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout, Norm, Plan, prepare
from stof_cupy.ops.gemm_timing import normal
from stof_cupy.ops.attention_timing import in_turn_us
from stof_cupy.ops import gemm_model
from stof_cupy.ops.norm import layer_norm
KINDS = (EpilogueKind(bias=True, residual=True), EpilogueKind(bias=True))
f32 = lambda x: (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
def configs(n):
    for tile, turns in product((128, 192, 256), (False, True)):
        a = -(-n // tile)
        if a <= 8: yield Sm90Gemm(128, tile, pingpong=turns, across=a)
        for c in (1, 2) if n > 200 else (1,): yield Sm90Gemm(128, tile, turns, c, finished=-(-n // 256))
SHAPES = ((1, 64, 64), (300, 43, 72), (127, 768, 768), (3000, 1024, 200), (700, 1728, 136), (2500, 2048, 264), (260, 2047, 72), (32768, 768, 768), (5000, 576, 1536), (3001, 1001, 72))
TIMED = ((32768, 768, 768), (32768, 768, 3072), (32768, 1024, 4096), (32768, 576, 1536), (32768, 1728, 576), (4096, 768, 768), (4096, 768, 3072), (4096, 576, 1536), (4096, 1728, 576), (4096, 1024, 4096), (4096, 2048, 8192), (512, 768, 768), (512, 2048, 8192))
store, here = Store(env.cache_dir("kernels")), facts(); timing = "time" in sys.argv
todo = {}
for m, n, k in SHAPES + (TIMED if timing else ()):
    for kind in KINDS:
        for c in configs(n):
            for b in (True, False):
                c2 = replace(c, bounded=b)
                if c2.fault(kind) is None: todo[gemm_sm90("bfloat16", c2, kind)] = 0
print(len(todo), "kernels", flush=True)
with ThreadPoolExecutor(os.cpu_count()) as pool: list(pool.map(lambda s: store.get(s, here.arch), todo))
pin = cupy.cuda.alloc_pinned_memory(64); report = np.frombuffer(pin, np.uint32, 16)
def arrays(m, n, k):
    x = [normal((m, k), "bfloat16", 0), normal((n, k), "bfloat16", 1, k ** -0.5), normal((n,), "bfloat16", 2), normal((m, n), "bfloat16", 3), normal((n,), "bfloat16", 4), normal((n,), "bfloat16", 5)]
    return x
for m, n, k in SHAPES:
    if k % 8: continue
    a, b, bias, residual, weight, shift = arrays(m, n, k)
    for kind in KINDS:
        p = Problem("bfloat16", m, n, k, kind)
        y = f32(a) @ f32(b).T + f32(bias) + (f32(residual) if kind.residual else 0)
        want = (y - y.mean(1, keepdims=True)) / cupy.sqrt(y.var(1, keepdims=True) + 1e-5) * f32(weight) + f32(shift)
        for c in configs(n):
            plan = Plan(replace(c, bounded=True))
            if hopper.fault(plan, p, Layout()) is not None: continue
            out = cupy.empty((m, n), np.uint16); out.fill(0x7fc0); out = out.view(a.dtype)
            for again in range(3):
                prepare(plan, p, a, b, out, bias=bias, residual=residual if kind.residual else None, norm=Norm(weight, shift, 1e-5), report=pin.ptr)()
            try: cupy.cuda.Device().synchronize()
            except Exception as e: print("FAULT", (m, n, k), plan.config.name, report[:4], flush=True); sys.exit(1)
            off = float(cupy.abs(f32(out) - want).max())
            if not off < 0.1: print("WRONG", (m, n, k), kind.name, plan.config.name, off, flush=True)
print("checked", flush=True)
for m, n, k in TIMED if timing else ():
    a, b, bias, residual, weight, shift = arrays(m, n, k); out = cupy.empty_like(residual); p = Problem("bfloat16", m, n, k, KINDS[0]); runs = {}
    for c in configs(n):
        if hopper.fault(Plan(c), p, Layout()) is None: runs[c.name] = prepare(Plan(c), p, a, b, out, bias=bias, residual=residual, norm=Norm(weight, shift, 1e-5))
    plan = gemm_model.choose(p, Layout(), here)
    first = prepare(plan, p, a, b, out, bias=bias, residual=residual) if isinstance(plan, Plan) else None
    if first is not None:
        runs["APART"] = lambda: (first(), layer_norm(out, weight, shift, eps=1e-5, out=out))
        runs["GEMM"] = first
    times = dict(zip(runs, in_turn_us(list(runs.values()))))
    print((m, n, k), ", ".join(f"{n} {t:.1f}" for n, t in sorted(times.items(), key=lambda x: x[1])[:9]), flush=True)
if timing:
    from stof_cupy.ops.gemm_fold import row_statistics
    from stof_cupy.ops.norm import layer_norm
    for rows, k in ((32768, 768), (32768, 3072), (32768, 8192), (4096, 768), (4096, 3072), (512, 768), (512, 4096), (512, 8192)):
        x = normal((rows, k), "bfloat16", 0); out = cupy.empty((rows, 2), np.float32); y = cupy.empty_like(x); w, b = normal((k,), "bfloat16", 1), normal((k,), "bfloat16", 2)
        want = f32(x); got = row_statistics(x, eps=1e-5, out=out)
        off = float(cupy.abs(got[:, 0] - want.mean(1)).max()), float(cupy.abs(got[:, 1] * cupy.sqrt(want.var(1) + 1e-5) - 1).max())
        t = in_turn_us([lambda: row_statistics(x, eps=1e-5, out=out), lambda: layer_norm(x, w, b, eps=1e-5, out=y)])
        print(f"rows ({rows}, {k}): statistics {t[0]:.1f} us {x.nbytes / t[0] * 1e-6:.2f} TB/s, LayerNorm {t[1]:.1f} us {2 * x.nbytes / t[1] * 1e-6:.2f} TB/s, off {off[0]:.1e} {off[1]:.1e}", flush=True)
