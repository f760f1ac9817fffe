"""Random cases on chosen configurations with slices, few CTAs, sections, NaN where nobody looks. PYTHONPATH=$PWD python scratch/hostile_core.py SECONDS SEED"""
import sys,time, numpy as np
from dataclasses import replace
from stof_cupy.testing import poison, rng
from stof_cupy.ops.attention_sm90 import Config, legal
from stof_cupy.ops import reference
from tests.ops.hopper_case import *
from tests.ops.on_hopper import attend
from stof_cupy import masks
SH=[HALVES,THREE_HALVES,ODD,PACKED,SMALL,IN_SEQUENCE,HALVES,THREE_HALVES]
t0=time.time(); n=0; seed=int(sys.argv[2])
while time.time()-t0<float(sys.argv[1]):
    seed+=1; g=rng(seed)
    shape=SH[g.integers(len(SH))]
    c=Case.draw(seed,shape,"float16" if seed%2 else "bfloat16",(1,15,64,65,127,128,129,200,300,500))
    B,H,sq,_=c.q.shape; sk=c.k.shape[2]
    if g.random()<.5:  # empty halves of all kinds
        half=np.kron(g.random((-(-sq//64),-(-sk//64)))<.5,np.ones((64,64)))[:sq,:sk]>0
        if g.random()<.5: half&=g.random((sq,sk))<g.choice([.01,.5])
        c.mask=masks.BsrMask(half)
    if shape.packed:
        c.kv_lengths=None
        if c.mask is None: continue
    if g.random()<.3: c.terms["sinks"]=g.normal(size=H).astype(np.float32)
    keep=np.ones((B,H,sq,sk),bool)
    if c.mask is not None:
        d=c.mask.toarray(); keep&=d if d.ndim!=3 else d[None]
    if c.kv_lengths is not None: keep&=np.arange(sk)<c.kv_lengths[:,None,None,None]
    grp=H//c.k.shape[1]
    unseen=~keep.reshape(B,c.k.shape[1],grp,sq,sk).any((2,3))
    if g.random()<.7:
        for x in(c.k,c.v): x[unseen]=np.nan if g.random()<.5 else np.inf
    if g.random()<.3: c.scale=float(g.choice([5.,20.,1e-20,0.]))
    out=poison((*c.q.shape[:3],c.v.shape[3]),c.q.dtype)
    args=replace(c.args(out),lse=poison(c.q.shape[:3],np.float32))
    p=args.problem; slots=Config(shape).slots(p)
    ls=int(g.integers(0,slots+1)); sp=int(g.choice([1,1,2,3,7,64]))
    heads=p.heads*p.batch; sec=int(g.integers(0,heads+1)); ctas=int(g.integers(1,9))
    try:
        attend(Config(shape,ls,sp),args,ctas=ctas,section=sec,ahead=bool(g.random()<.5),seed=seed)
        compare(c,out,args.lse)
    except AssertionError as e:
        print("WRONG",seed,shape.name,p,c.mask,ls,sp,sec,ctas,c.scale,c.kv_lengths,str(e)[:500],flush=True)
    n+=1
print(n)
