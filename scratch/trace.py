"""(with few_trace.patch, on 3da0826) When CTAs of products of few rows start, are let go, have multiplied and are done: %globaltimer, ns."""
import os, sys
from concurrent.futures import ThreadPoolExecutor
import cupy, numpy as np
from stof_cupy import env
from stof_cupy.dtypes import as_dtype
from stof_cupy.jit.cache import Store
from stof_cupy.jit.device import facts
from stof_cupy.jit.gemm_sm90 import gemm_sm90, Sm90Gemm
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops import gemm_sm90 as hopper, gemm_few_rows as few
from stof_cupy.ops.gemm_sm90 import Plan
from stof_cupy.ops.gemm_timing import normal
here = facts()
def sw(m, r, res=1, ask=4, **how): return Plan(Sm90Gemm(m, r, swapped=True, split=True, pingpong=m == 64, resident=res, ask=ask), **how)
CASES = [((1,2048,8192), "few4", few.Config(1,4,(1,4,0))), ((1,2048,8192), "few4 asks", few.Config(1,4,(1,4,1))), ((1,3072,2048), "few4", few.Config(1,4,(1,4,0))), ((1,3072,2048), "few4 asks", few.Config(1,4,(1,4,1))),
  ((16,3072,2048), "sixteen8", few.Config(16,8,(4,16,0))), ((16,3072,2048), "sixteen8 asks", few.Config(16,8,(4,16,1))), ((16,2048,8192), "sixteen16", few.Config(16,16,(4,16,0))),
  ((16,2048,8192), "sw64/4", sw(64,16,splits=4)), ((16,2048,8192), "sw64/4 a8", sw(64,16,ask=8,splits=4)), ((16,2048,8192), "sw64/4 r2a4", sw(64,16,2,splits=4)), ((16,3072,2048), "sw64 stream", sw(64,16,stream=132)), ((16,3072,2048), "sw64/1", sw(64,16)), ((16,16384,2048), "sw128", sw(128,16))]
if os.environ.get("EXP_SMALL"): CASES = CASES[:6]
store = Store(env.cache_dir("kernels")); specs = {}
prob = lambda s: Problem("bfloat16", *s)
for s, _, x in CASES: specs[gemm_sm90("bfloat16", x.config, prob(s).epilogue) if isinstance(x, Plan) else x.spec(prob(s))] = None
with ThreadPoolExecutor(os.cpu_count()) as pool: list(pool.map(lambda s: store.get(s, here.arch), specs))
stream = cupy.cuda.Stream(non_blocking=True); N = 20
with stream:
    for s, name, x in CASES:
        p = prob(s); a = normal((p.m, p.k), "bfloat16", 0); b = normal((p.n, p.k), "bfloat16", 1, p.k ** -0.5)
        turns = [b] + [b.copy() for _ in range(min(19, 200 * 2**20 // b.nbytes))]
        c = cupy.empty((p.m, p.n), np.uint16).view(as_dtype("bfloat16"))
        trace = cupy.zeros((N, 2048, 8), np.int64); calls = []
        for i in range(N):
            w = turns[i % len(turns)]; at = trace[i].data.ptr
            if isinstance(x, Plan): hopper.TRACE[:] = [at]; calls.append(hopper.prepare(x, p, a, w, c))
            else:
                def call(w=w, at=at): few.TRACE[:] = [at]; few.launch(x, p, a, w, c)
                calls.append(call)
        calls[0](); stream.synchronize()
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        for f in calls: f()
        graph = stream.end_capture(); rows = []; each = []
        for rep in range(8):
            e = cupy.cuda.Event(), cupy.cuda.Event()
            e[0].record(stream); graph.launch(stream); e[1].record(stream); stream.synchronize(); each.append(cupy.cuda.get_elapsed_time(*e) / N * 1e3)
            t = trace.get()
            if rep < 3: continue
            for i in range(2, N):
                n = int((t[i, :, 0] > 0).sum()); now, was = t[i, :n], t[i - 1, :n]
                end = was[:, 3].max()  # the last CTA of the one before
                q = lambda v: np.percentile(v, (0, 25, 50, 75, 100))
                rows.append([*(q(now[:, j]) - end for j in (0, 1, 2, 3)), *([q(now[:, 4]) - end] if now[0, 4] else [q(now[:, 2]) * 0])])
        m = np.median(np.array(rows), axis=0)
        spread = len(set(t[5, :n, 7]))
        print(f"{s} {name}: {np.median(each):.2f} us, CTAs {n} on {spread} SMs; ns after the end of the last CTA before (0, 25, 50, 75, 100 %)", flush=True)
        for label, r in zip(("start", "let go", "multiplied", "done", "first data"), m): print(f"    {label:11}", " ".join(f"{v:7.0f}" for v in r), flush=True)
