from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.attention_sm90 import *
from dataclasses import replace
lib=nvrtc.load()
for a,b in ((192,192),(96,192)):
    for q in (1,2):
        c=Sm90Config(a,b,n=64,warpgroups=2,queries=q,scores=("Alibi",))
        for dt in ("float16","bfloat16"):
            if c.fault(): print(c.name,c.fault()); continue
            r=compile_cubin(attention_sm90(dt,c),"90a",lib,strict=False); print(c.name,dt,r.spill_bytes,"C75" in r.log,flush=True)
c=Sm90Config(192,96,n=112,warpgroups=2,queries=1,scores=("Relative",))
for dt in ("float16","bfloat16"): print(c.name,dt,compile_cubin(attention_sm90(dt,c),"90a",lib,strict=False).spill_bytes,flush=True)
c2=replace(c,n=64); print(c2.name,c2.fault())
