"""Spills of Hopper attention kernels with score terms where head dims differ: part i of n."""
import sys, time
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.attention_sm90 import *
from dataclasses import replace
i,n,secs=int(sys.argv[1]),int(sys.argv[2]),float(sys.argv[3])
lib=nvrtc.load(); todo=[]
T=((("Alibi",),("Relative",),("Additive<stof::f16>",),("Softcap",),("Softcap","Alibi"),("Softcap","Relative"),("Additive<float>",),("Softcap","Additive<float>"),("Alibi","Additive<float>"),("Softcap","Alibi","Additive<float>"),("Softcap","Relative","Additive<float>")))
for terms in T:
  for b in (192,128,256,96,64):
    for a in SM90_DIMS:
      if a==b or (a,b)==(192,128): continue
      for c in SM90_CONFIGS:
        if c.dim_qk==c.dim_v==max(a,b):
            c=replace(c,dim_qk=a,dim_v=b).roomy(terms)
            if c.fault() is None and c not in todo: todo.append(c)
pri=[c for c in todo if c.dim_v>c.dim_qk and c.dim_v>=128]; todo=pri+[c for c in todo if c not in pri]
print(len(pri),len(todo),flush=True); t0=time.time(); k=0
for j,c in enumerate(todo):
    if j%n!=i: continue
    if time.time()-t0>secs: break
    for dt in ("float16",):
        r=compile_cubin(attention_sm90(dt,c),"90a",lib,strict=False); k+=1
        if r.spill_bytes or "C75" in r.log: print("SPILL",c.name,dt,r.spill_bytes,r.registers,"C75" in r.log,flush=True)
print("done",k,"last",j,flush=True)
