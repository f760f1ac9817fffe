"""Random varlen calls on an emulated H100; as hostile_api.py."""
import sys, time, traceback, collections
import numpy as np, cupy as cp
from stof_cupy import attention_varlen, RelativeBias, masks
from stof_cupy.errors import StofError
from stof_cupy.ops import reference
from stof_cupy.testing import random_array, rng, assert_close
import emulated_gpu
emulated_gpu.ndarray.__array_function__ = lambda self, func, types, args, kwargs: getattr(cp, func.__name__)(*args, **kwargs)
from tests.ops.fuzz_case import sequences
from stof_cupy.ops import attention_cuda
from stof_cupy.ops.attention_candidates import legal
seed0, seconds, RUN = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]=="run"
seen=collections.Counter(); chosen=[]
original=attention_cuda.prepared
def prepared(candidate,args):
    case,_=attention_cuda._case(args); why=legal(candidate,case); assert not why,why
    chosen.append(candidate); return original(candidate,args)
attention_cuda.prepared=prepared
def one(seed):
    g=rng(seed); chosen.clear()
    dt=str(g.choice(["float16","bfloat16"])); n=int(g.integers(1,5)); kv=int(g.choice([1,2])); grp=int(g.choice([1,2,4])); heads=kv*grp
    ql=[int(g.choice([0,1,5,64,65,100])) for _ in range(n)]; kl=[int(g.choice([0,1,7,64,70,129])) for _ in range(n)] if g.random()<.5 else ql
    d=int(g.choice([8,40,64,64])); dv=d if g.random()<.8 else int(g.choice([16,64]))
    sq,sk=sum(ql),sum(kl)
    q=random_array(g,(sq,heads,d),dt); k=random_array(g,(sk,kv,d),dt); v=random_array(g,(sk,kv,dv),dt)
    lens={"q_lens":ql,"kv_lens":kl,"align":str(g.choice(["top-left","bottom-right"])),"causal":bool(g.random()<.5)}
    if g.random()<.3: lens["window"]=(int(g.integers(0,40)),int(g.integers(0,40)))
    keep,ahead=sequences(**lens); keep=keep[None,None]
    how={}; rhow={}
    m=None
    if g.random()<.3 and sq and sk:
        m=g.random((heads,sq,sk))<.7; keep=keep&m
    if g.random()<.3: how["alibi"]=np.exp2(-g.uniform(1,6,heads)).astype(np.float32); rhow["bias"]=-how["alibi"][:,None,None].astype(np.float64)*abs(ahead)
    elif g.random()<.4:
        t=RelativeBias(random_array(g,(8,heads)),bidirectional=True,max_distance=20); how["bias"]=RelativeBias(cp.asarray(t.table),bidirectional=True,max_distance=20)
        rhow["bias"]=t.by_distance(20)[:,np.clip(ahead,-20,20)+20]
    if g.random()<.2: how["softcap"]=rhow["softcap"]=3.
    if g.random()<.2: how["scale"]=rhow["scale"]=float(g.choice([-.2,.3]))
    if g.random()<.2: rhow["sinks"]=g.normal(size=heads).astype(np.float32); how["sinks"]=rhow["sinks"]
    gp={n:cp.asarray(x) if isinstance(x,np.ndarray) else x for n,x in how.items()}
    sel=str(g.choice(["model","sm90"]))
    out=cp.asarray(np.full((sq,heads,dv),7,q.dtype)) if g.random()<.4 else None
    desc=(seed,dt,lens,q.shape,k.shape,v.shape,list(how),m is not None,sel,out is not None)
    try: o,l=attention_varlen(*map(cp.asarray,(q,k,v)),mask=m,**lens,**gp,select=sel,return_lse=True,out=out)
    except StofError as e:
        if sel=="sm90": seen[str(e)[-60:]]+=1; return
        return "ERR",desc,str(e)
    if o.shape!=(sq,heads,dv): return "SHAPE",desc,o.shape
    seen[sel+" "+(chosen[0].kernel if chosen else "none")]+=1
    if RUN and o.size:
        if emulated_gpu.STATE.left_out: emulated_gpu.STATE.left_out=0; seen["left out"]+=1; return
        Q,K,V=(x.swapaxes(0,1)[None] for x in (q,k,v))
        exact,el=reference.attention(Q,K,V,np.array(np.broadcast_to(keep,(1,heads,sq,sk))),return_lse=True,**rhow)
        try:
            np.testing.assert_allclose(o.get().swapaxes(0,1)[None].astype(np.float64),exact,rtol=.06 if dt=="bfloat16" else .02,atol=.06 if dt=="bfloat16" else .02)
            L=l.get().T[None]; e=np.isneginf(el); assert np.array_equal(np.isneginf(L),e)
            np.testing.assert_allclose(L[~e],el[~e],rtol=1e-5,atol=2e-4)
        except AssertionError as e: return "WRONG",desc,chosen[0].name,str(e)[:500]
t0=time.time(); seed=seed0; n=0
while time.time()-t0<seconds:
    try: r=one(seed)
    except Exception as e: r=("EXC",seed,repr(e)[:300],traceback.format_exc(limit=-5)[:1500])
    if r: print(*r,flush=True)
    seed+=1; n+=1
print(n,"calls", emulated_gpu.STATE.ran, "kernels run"); [print("  ",k,c) for k,c in sorted(seen.items())]
