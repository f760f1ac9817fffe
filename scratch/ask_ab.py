"""Products of few rows, every way, us: python scratch/ask_ab.py OUT.json; beside another tree's: ask_ab.py OUT.json OTHER.json"""
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
out, *other = sys.argv[1:]
from stof_cupy import env
from stof_cupy.jit.cache import Store
from stof_cupy.jit.device import facts
from stof_cupy.jit.gemm_sm90 import gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout, Plan
from stof_cupy.ops.gemm_timing import measure, to_time
from stof_cupy.ops.gemm_vendor import Vendor
W = ((2304,768),(768,768),(3072,768),(768,3072),(3072,1024),(1024,4096),(3072,2048),(16384,2048),(2048,8192),(1728,576),(576,1536))
here = facts(); store = Store(env.cache_dir("kernels")); specs = {}
problems = [Problem("bfloat16", m, n, k) for m in (1, 4, 16) for n, k in W]
for p in problems:
    for way in to_time(p, Layout(), here):
        if isinstance(way, Plan): specs[gemm_sm90(p.dtype, way.config, p.epilogue)] = None
        elif not isinstance(way, Vendor): specs[way.spec(p)] = None
with ThreadPoolExecutor(os.cpu_count()) as pool: list(pool.map(lambda s: store.get(s, here.arch), specs))
times = {f"{p.m}x{p.n}x{p.k}": dict(measure(p, again=True)) for p in problems}
json.dump(times, open(out, "w"))
old = json.load(open(other[0])) if other else {}
for name, found in times.items():
    was = old.get(name, {})
    gb = 2e-3 * int(name.split("x")[1]) * int(name.split("x")[2])
    row = sorted(found, key=lambda w: found[w])[:5]
    print(f"{name:14} {gb / found[row[0]]:6.0f} GB/s  " + "  ".join(f"{w} {found[w]:.1f}" + (f" (was {was[w]:.1f})" if w in was else "") for w in row))
