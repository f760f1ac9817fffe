"""Compiles Hopper attention kernels of pairs of head dims that are not compiled ahead."""
import sys, time, random
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.attention_sm90 import *
from stof_cupy.ops.attention_sm90 import shapes, Config, _scattered
from stof_cupy.ops.attention_args import Problem
from dataclasses import replace
lib=nvrtc.load(); print(lib, flush=True)
known={c for c in SM90_CONFIGS}; todo=[]
for a in SM90_DIMS:
  for b in SM90_DIMS:
    found=[c for c in SM90_CONFIGS if (c.dim_qk,c.dim_v)==(a,b)]
    if not found:
        found=[replace(c,dim_qk=a,dim_v=b) for c in SM90_CONFIGS if c.dim_qk==c.dim_v==max(a,b)]
    for terms in ((),("Softcap",),("Alibi",),("Relative",),("Additive<stof::f16>",),("Softcap","Additive<float>"),("Alibi","Additive<float>"),("Softcap","Alibi","Additive<float>"),("Softcap","Relative","Additive<float>")):
        f=[c.roomy(terms) for c in found] if terms else list(found)
        f=list(dict.fromkeys(f)); f+= [p for c in f if (p:=replace(c,packed=True,halves=False))]
        for c in f:
            if c.fault() is None and c not in known and c not in todo: todo.append(c)
print(len(todo)); random.Random(int(sys.argv[1])).shuffle(todo); t0=time.time(); n=0
#todo.sort(key=lambda c: bool(c.scores))
for c in todo:
    if time.time()-t0>float(sys.argv[2]): break
    try: r=compile_cubin(attention_sm90("bfloat16" if n%2 else "float16",c),"90a",lib); n+=1
    except Exception as e: n+=1; print("BAD",c.name,str(e)[:300].replace("\n"," "),flush=True)
print("compiled",n,"of",len(todo),flush=True)
