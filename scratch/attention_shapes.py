import sys, json, time
sys.path[:0] = ["benchmarks"]
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import attention_cells
from shapes import *
from stof_cupy import env
from stof_cupy.jit import device, nvrtc
from stof_cupy.jit.cache import Store
from stof_cupy.jit.attention_kernels import Shape, SHAPES, FEW_ROWS
from stof_cupy.ops.attention_config import Config, legal
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_timing import graph_us, inputs_of
from stof_cupy.ops.attention_cuda import prepared
from stof_cupy.ops import attention_rowwise as rowwise
facts = device.facts()
shapes = [*SHAPES[64][2:], FEW_ROWS[64]] + [Shape(*x) for x in (
  (2,16,2,True,3,2), (2,16,2,True,2,2), (2,16,1,True,3,2), (1,16,2,True,3,2), (1,16,1,True,3,4), (1,16,1,True,2,4), (2,16,2,True,1,4), (2,16,1,True,2,4), (2,16,2,True,4,1), (4,16,2,True,1,2), (4,16,1,True,2,2))]
P = lambda s: Problem("bfloat16", 1, 12, 12, s, s, 64, 64)
store = Store(env.cache_dir("kernels"))
def comp(sh):
    try: store.get(Config(64, sh).spec(P(128)), facts.arch); return True
    except Exception as e: print(sh.name, str(e)[:200]); return False
with ThreadPoolExecutor(16) as pool: ok = list(pool.map(comp, shapes))
shapes = [s for s, o in zip(shapes, ok) if o]
t0 = time.time()
out = {}
print(" " * 22 + " ".join(f"{s.name:>14s}" for s in shapes))
for s in (128, 256, 512):
    for name in ATTENTION_MASKS:
        cell = attention_cells.cell((1, 12, 12, s, s, 64), name)
        case = Case(P(s), cell.mask.ours, facts, nvrtc=nvrtc.load().version)
        args = inputs_of(case)
        row = []
        ref = None
        for sh in shapes:
            rows = sh.rows if case.mask is None else int(np.lcm(sh.rows, 64))
            c = Config(64, sh, mask_rows=rows)
            why = legal(c, case)
            if why: row.append(f"{why[:14]:>14s}"); continue
            run = prepared(c, args)
            args.out.fill(np.nan); run(); got = args.out.astype(np.float32)
            if ref is None: ref = got
            d = float(abs(got - ref).max())
            us = min(graph_us(run), graph_us(run))
            out[f"{s}-{name}-{sh.name}"] = us
            row.append(f"{us:12.2f}{'  ' if d < 2e-2 else '!!'}")
        print(f"{s:4d} {name:16s} " + " ".join(row), flush=True)
json.dump(out, open(sys.argv[1], "w"))
print("took", round(time.time() - t0))
