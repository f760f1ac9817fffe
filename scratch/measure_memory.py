"""Bytes that gemm_timing.measure holds at once, by its own rules, on an H200 (nothing allocated)."""
import math, sys
sys.path.insert(0,'benchmarks')
from pathlib import Path
import gemm_regret
from stof_cupy.ops import gemm_timing, gemm_ways
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout, Plan
cells,facts=gemm_regret.read([Path('benchmarks/results/gemm_h200_2026-11-29.json')])
worst=[]
for m in (1,5,16,17,32,64,128,256,512):
    for n in (576,768,1024,2048,3072,4096,8192,16384,32768):
        for k in (256,576,768,1024,2048,4096,8192,16384):
            p=Problem('bfloat16',m,n,k)
            bts=2*n*k; total=2*(m*k+n*k+m*n); l2=facts.l2_bytes
            sets=1+min(39,3*l2//bts) if m<=64 else (1+ -(-l2//total) if l2<2*total<4*l2 else 1)
            held=0
            for c in gemm_timing.to_time(p,Layout(),facts):
                if isinstance(c,Plan) and c.config.split:
                    pieces=c.pieces(p)
                    if pieces>1:
                        tiles=math.prod(c.tiles(p))
                        held+=tiles*pieces*c.config.m*c.config.n*4
            worst.append((held*sets/1e6,(m,n,k),sets,round(bts*sets/1e6)))
worst.sort(reverse=True)
for w in worst[:12]: print('partials %.0f MB'%w[0],w[1],'sets',w[2],'operands MB',w[3])
