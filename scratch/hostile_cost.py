"""What choosing costs on the host. PYTHONPATH=$PWD python scratch/hostile_cost.py (2 min)"""
import time, tracemalloc, resource, sys
import numpy as np
from stof_cupy import masks
from stof_cupy.masks import BsrMask, MaskStack
from stof_cupy.ops.attention_model import choose, explain
from stof_cupy.masks.schedule import Schedule
from tests.ops import gpus
g=np.random.default_rng(0)
made=[]
of=Schedule.of.__func__
def counted(cls,*a,**k):
    t=time.time(); r=of(cls,*a,**k); made.append((k,round(time.time()-t,2))); return r
Schedule.of=classmethod(counted)
def rand(S,p):
    rows=[]
    n=int(S*S*p)
    from scipy.sparse import csr_array
    flat=np.unique(g.integers(0,S*S,n))
    return BsrMask.from_scipy(csr_array((np.ones(len(flat),bool),np.divmod(flat,S)),(S,S))) if hasattr(BsrMask,"from_scipy") else BsrMask(csr_array((np.ones(len(flat),bool),np.divmod(flat,S)),(S,S)))
def blocks(S,p):
    d=g.random((S//64,S//64))<p
    return BsrMask(np.kron(d,np.ones((64,64),bool))) if S<=8192 else masks.from_blocks(d) if hasattr(masks,"from_blocks") else None
which=sys.argv[1:]
cases={"0.1%":lambda:rand(32768,.001),"1%":lambda:rand(32768,.01),"0.01%":lambda:rand(32768,.0001),"1% 8k":lambda:rand(8192,.01),
"stack12 1% 8k":lambda:MaskStack([rand(8192,.01) for _ in range(12)],np.arange(12)) ,"stack12 .1% 4k":lambda:MaskStack([rand(4096,.001) for _ in range(12)],np.arange(12)),
"causal32k":lambda:masks.causal(32768).tobsr(),"longformer32k":lambda:masks.longformer(32768,window=256,global_tokens=64).tobsr()}
for name,make in cases.items():
    if which and name not in which: continue
    try: t=time.time(); m=make(); t=time.time()-t
    except Exception as e: print(name,repr(e)); continue
    S=m.shape[-1]
    for kw in ({"dim":int(d),"heads":12} for d in __import__("os").environ.get("DIMS","128,64").split(",")):
        for lens in (False,):
            c=gpus.case(S,m,**kw); made.clear()
            tracemalloc.start(); t1=time.time()
            c1=choose(c); t1=time.time()-t1
            peak=tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
            t2=time.time(); c2=choose(gpus.case(S,m,**kw,batch=2)); t2=time.time()-t2
            t3=time.time(); c2=choose(gpus.case(S,m,**kw)); t3=time.time()-t3
            print(f"{name:16} {kw} mask made {t:.1f} s, choice {t1:.2f} s peak {peak/2**20:.0f} MiB, other batch {t2:.3f}, again {1e6*t3:.0f} us -> {c1.kernel} {c1.name}; lists made {made}",flush=True)
