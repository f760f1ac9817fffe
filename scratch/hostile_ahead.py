"""ahead=True on random cases: results, and that what is brought is of the inputs. PYTHONPATH=$PWD python scratch/hostile_ahead.py SECONDS"""
import sys,time, numpy as np
from dataclasses import replace
from stof_cupy.testing import poison, rng, random_array
from stof_cupy.ops.attention_sm90 import Config, legal
from tests.ops.hopper_case import SMALL, PACKED, IN_SEQUENCE, Case, compare
from tests.ops.on_hopper import attend
t0=time.time(); n=0; brought_any=0; seed=int(sys.argv[2]) if len(sys.argv)>2 else 0
while time.time()-t0<float(sys.argv[1]):
    seed+=1; g=rng(seed)
    shape=[SMALL,IN_SEQUENCE,PACKED][g.integers(3)]
    c=Case.draw(seed,shape,"float16" if seed%2 else "bfloat16",(1,15,64,65,100,200,300))
    if shape.packed:
        c.kv_lengths=None
        if c.mask is None: continue
    # sliced rows
    if g.random()<.6:
        for nme in "qkv":
            x=getattr(c,nme); base=poison((*x.shape[:2],2*x.shape[2]+1,x.shape[3]+24),x.dtype); v=base[:,:,1:2*x.shape[2]+1:2,8:8+x.shape[3]]; v[...]=x; setattr(c,nme,v)
    out=poison((*c.q.shape[:3],c.v.shape[3]),c.q.dtype)
    args=replace(c.args(out),lse=poison(c.q.shape[:3],np.float32))
    p=args.problem; slots=Config(shape).slots(p)
    ls=int(g.integers(0,slots+1)); sp=int(g.choice([1,1,2,5]))
    heads=p.heads*p.batch; sec=int(g.integers(1,heads+1)); ctas=int(g.integers(1,9))
    b=attend(Config(shape,ls,sp),args,ctas=ctas,section=sec,ahead=True,seed=seed)
    compare(c,out,args.lse)
    ok=set()
    for x in(c.q,c.k,c.v):
        B,H,R,D=np.meshgrid(*(np.arange(k) for k in (*x.shape[:3],-(-x.shape[3]//16))),indexing="ij")
        ok|=set((x.ctypes.data+B*x.strides[0]+H*x.strides[1]+R*x.strides[2]+32*D).ravel().tolist())
    assert b<=ok,(seed,len(b-ok))
    want=set()
    for x,grp in((c.q,1),(c.k,p.heads//p.kv_heads),(c.v,p.heads//p.kv_heads)):
        for of_all in range(sec,heads):
            if of_all%p.heads%grp: continue
            bb,h=divmod(of_all,p.heads)
            want|={x.ctypes.data+bb*x.strides[0]+h//grp*x.strides[1]+r*x.strides[2]+32*d for r in range(x.shape[2]) for d in range(-(-x.shape[3]//16))}
    if ls<slots: 
        if b!=want: print("DIFF",seed,shape.name,p,ls,sp,sec,ctas,len(b),len(want))
    else: assert not b
    n+=1; brought_any+=bool(b)
print(n,brought_any)
