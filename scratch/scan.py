"""Spills of every kernel scan_count lists: part i of n, seconds, dtype order."""
import sys, time, json
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.attention_sm90 import attention_sm90
from scan_count import everything
i,n,secs,dt,out=int(sys.argv[1]),int(sys.argv[2]),float(sys.argv[3]),sys.argv[4],sys.argv[5]
import os
lib=nvrtc.load(os.environ.get("NVRTC")); t0=time.time(); f=open(out,"a",buffering=1)
import glob
try: have={l.split("\t")[0] for f in glob.glob(out.rsplit(".",1)[0]+".*") for l in open(f)}
except OSError: have=set()
todo=[c for c in everything(("float",)) if c.name+dt not in have]
todo.sort(key=lambda c:(not c.scores, c.dim_qk==c.dim_v))
for j,c in enumerate(todo):
    if j%n!=i: continue
    if time.time()-t0>secs: break
    try:
        r=compile_cubin(attention_sm90(dt,c),"90a",lib,strict=False)
        f.write(f"{c.name}{dt}\t{r.spill_bytes}\t{r.registers}\t{'C75' in r.log}\t{c!r}\n")
    except Exception as e: f.write(f"{c.name}{dt}\tERR\t{str(e)[:200]!r}\n")
print("done",j,time.time()-t0)
