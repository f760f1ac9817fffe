"""Odd cases of the Hopper attention on the CPU: python scratch/odd_hopper.py SEED0 SECONDS"""
import sys, time, traceback
from dataclasses import replace
import numpy as np
from stof_cupy import masks, RelativeBias
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS, Sm90Config
from stof_cupy.testing import random_array, rng
from stof_cupy.ops.attention_fields import kind_of
from stof_cupy.ops.attention_rowwise import stages
from tests.ops.hopper_case import Case, compare, run_on_cpu, SMALL, PACKED
ALL = list(SM90_CONFIGS)
PK = [p for c in ALL if (p := replace(c, packed=True, halves=False)).fault() is None]
seed0, secs = int(sys.argv[1]), float(sys.argv[2])
t0=time.time(); n=0; bad=0; ref=0; seed=seed0
only = sys.argv[3] if len(sys.argv)>3 else ""
while time.time()-t0 < secs:
    g=rng(seed); 
    pool = PK if seed%5==0 else ALL
    c = pool[int(g.integers(len(pool)))]
    try:
        group=int(g.choice([1,2,3,5,7])); kvh=int(g.integers(1,3)); b=int(g.integers(1,3)); h=kvh*group
        sq,sk=(int(g.choice([1,2,7,63,65,113,127,129,191,193,257,385])) for _ in "qk")
        dq=int(g.choice([c.dim_qk, 8*int(g.integers(1,c.dim_qk//8+1))])); dv=int(g.choice([c.dim_v, 8*int(g.integers(1,c.dim_v//8+1))]))
        dt=str(g.choice(["float16","bfloat16"]))
        q=random_array(g,(b,h,sq,dq),dt);k=random_array(g,(b,kvh,sk,dq),dt);v=random_array(g,(b,kvh,sk,dv),dt)
        kind=int(g.integers(9))
        at=np.arange(sk)-np.arange(sq)[:,None]
        dense=[None, np.abs(at)<=int(g.integers(0,70)), at<=int(g.integers(-40,60)), g.random((sq,sk))<g.choice([.003,.03,.5]),
               np.kron(g.random((-(-sq//64),-(-sk//64)))<.4,np.ones((64,64),bool))[:sq,:sk],
               (at%int(g.integers(2,9))==0), (g.random(sk)<.05)|(at==0), np.repeat(g.random((sq,1))<.3,sk,1), "stack"][kind]
        if isinstance(dense,str):
            lead=(b if g.random()<.5 else 1, h if g.random()<.7 else 1)
            m=masks.MaskStack.from_dense(g.random((*lead,sq,sk))<.15)
        elif dense is None: m=None
        else:
            if g.random()<.4: dense=dense.copy(); dense[g.random(sq)<.4]=False
            m=masks.BsrMask(dense)
        if c.packed and m is None: m=masks.BsrMask(g.random((sq,sk))<.05)
        lens=None
        if not c.packed and g.random()<.3: lens=g.integers(0,sk+1,b).astype(np.int32)
        terms={}
        if g.random()<.5: terms["sinks"]=g.normal(size=h).astype(np.float32)*5
        r=g.random()
        if r<.25: terms["softcap"]=float(g.choice([.5,5.,50.]))
        elif r<.4: terms["alibi"]=np.exp2(-g.uniform(0,8,h)).astype(np.float32)
        elif r<.5: terms["alibi"]=np.exp2(-g.uniform(0,8,h)).astype(np.float32); terms["softcap"]=5.
        elif r<.6:
            bias=random_array(g,(b if g.random()<.5 else 1, h, sq if g.random()<.5 else 1, sk),str(g.choice(["float16","float32"]))); bias[...,g.random(sk)<.2]=-np.inf; terms["bias"]=bias
        elif r<.7: terms["bias"]=RelativeBias(random_array(g,(16,h)),bidirectional=bool(g.random()<.5),max_distance=30)
        scale=None if g.random()<.6 else float(g.uniform(.001,2.))
        case=Case(q,k,v,m,scale,lens,terms)
        kinds=stages(kind_of(case.args(None).scores)); s=c
        if kinds:
            s=c.roomy(kinds)
            if s.fault() is not None: ref+=1; seed+=1; continue
            if g.random()<.3: case.scale=-.1
        splits=int(g.choice([1,1,2,5])); ls=int(g.integers(0,4)) if splits==1 else int(g.integers(1,4))
        # poison what does not count
        if dense is not None and not isinstance(dense,str) and g.random()<.4:
            dead=~dense.any(0)
            case.k[:,:,dead]=np.nan; case.v[:,:,dead]=np.inf
        how=dict(ctas=int(g.integers(1,6)),section=int(g.integers(0,4)),seed=int(g.integers(0,100)))
        out,lse=run_on_cpu(s,case,ls,splits,**how)
        compare(case,out,lse); n+=1
    except Exception as e:
        bad+=1; print("BAD seed",seed,c.name,type(e).__name__,str(e)[:400].replace("\n"," "),flush=True)
        if bad<3: traceback.print_exc()
    seed+=1
print("ran",n,"bad",bad,"no such kernel",ref,"seeds",seed0,seed,flush=True)
