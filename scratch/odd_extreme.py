import numpy as np, time
from dataclasses import replace
from stof_cupy import masks
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS
from stof_cupy.testing import random_array, rng
from tests.ops.hopper_case import Case, compare, run_on_cpu
t0=time.time(); n=bad=0
for seed in range(1000):
    if time.time()-t0>150: break
    g=rng(seed+5000); c=SM90_CONFIGS[seed%len(SM90_CONFIGS)]
    sq,sk=int(g.choice([65,129,193])),int(g.choice([129,300,385]))
    dt=["float16","bfloat16"][seed%2]
    q=random_array(g,(1,2,sq,c.dim_qk),dt);k=random_array(g,(1,1,sk,c.dim_qk),dt);v=random_array(g,(1,1,sk,c.dim_v),dt)
    step=float(g.choice([2.,8.,40.]))
    ramp=(1+np.arange(sk)//int(g.choice([16,64,100])))
    if g.random()<.3: ramp=ramp[::-1]
    k*=(step*ramp)[:,None].astype(k.dtype)
    m=[None, masks.causal(sq,sk,align="bottom-right"), masks.BsrMask(g.random((sq,sk))<.2), masks.BsrMask(np.abs(np.arange(sk)-np.arange(sq)[:,None]*(sk/sq))<40)][int(g.integers(4))]
    lens=np.array([int(g.integers(1,sk+1))],np.int32) if g.random()<.3 else None
    terms={"sinks":g.normal(size=2).astype(np.float32)*100} if g.random()<.4 else {}
    case=Case(q,k,v,m,None,lens,terms)
    try: compare(case,*run_on_cpu(c,case,int(g.integers(0,3)),int(g.choice([1,2,3])),seed=seed)); n+=1
    except Exception as e: bad+=1; print("BAD",seed,c.name,dt,step,type(e).__name__,str(e)[:300].replace("\n"," "),flush=True)
print("ran",n,"bad",bad)
