import sys, re
from dataclasses import replace
from stof_cupy.jit import nvrtc
from stof_cupy.jit.attention_sm90 import *
from stof_cupy.jit.compile import compile_cubin
lib = nvrtc.load(None)
made=[]
for dq in SM90_DIMS:
  for dv in SM90_DIMS:
    base=[e for e in SM90_CONFIGS if (e.dim_qk,e.dim_v)==(dq,dv)] or [replace(e,dim_qk=dq,dim_v=dv) for e in SM90_CONFIGS if e.dim_qk==e.dim_v==max(dq,dv)]
    for b in base:
      for x in (("Relative",),("Alibi",)):
        r=b.roomy(x)
        made+=[r,replace(r,packed=True)]
made=[c for c in dict.fromkeys(made) if c.fault() is None]
made=made[int(sys.argv[1])::2]
bad=0
for c in made:
    for t in ("bfloat16","float16")[:1]:
        k=compile_cubin(attention_sm90(t,c),"90a",lib,strict=False)
        if k.spill_bytes or "C75" in k.log: print(c.name,t,k.spill_bytes,"C75" in k.log,flush=True); bad+=1
print(len(made),"compiled",bad,"bad")
