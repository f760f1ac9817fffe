"""Random calls of attention as a stranger makes them, on an emulated H100.

    PYTHONPATH=$PWD python scratch/emulated_gpu.py scratch/hostile_api.py SEED SECONDS choose       choice alone (launch left out)
    PYTHONPATH=$PWD EMULATE=run python scratch/emulated_gpu.py scratch/hostile_api.py SEED SECONDS run    run beside the oracle
"""
import sys, time, traceback, collections
import numpy as np, cupy as cp
from stof_cupy import attention, attention_varlen, masks, RelativeBias
from stof_cupy.masks import BsrMask, MaskStack
from stof_cupy.errors import StofError
from stof_cupy.ops import attention_cuda, reference
from stof_cupy.ops.attention_candidates import legal
from stof_cupy.testing import random_array, rng, assert_close
import emulated_gpu


def as_cupy(self, func, types, args, kwargs):
    return getattr(cp, func.__name__)(*args, **kwargs)


emulated_gpu.ndarray.__array_function__ = as_cupy  # np.broadcast_to of a CuPy array is CuPy's
seed0, seconds, way = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
only = sys.argv[4] if len(sys.argv)>4 else ""
RUN = way=="run"
seen=collections.Counter(); chosen=[]
original=attention_cuda.prepared
def prepared(candidate,args):
    case,_=attention_cuda._case(args)
    why=legal(candidate,case)
    assert not why, ("illegal",candidate.name,why)
    chosen.append(candidate)
    every,used=attention_cuda.launches(candidate,args)
    for spec,blocks,fields in every: assert 0<blocks<2**31
    return original(candidate,args)
attention_cuda.prepared=prepared

ANY=bool(__import__("os").environ.get("ANY"))  # not what is best, but any candidate
if ANY:
    import random
    from stof_cupy.ops.attention_model import explain as explained
    def any_of(case,constants,select):
        every=[e.candidate for e in explained(case,constants,select=select)]
        cut=[e for e in every if getattr(e,"splits",1)>1]
        return random.choice(cut if cut and random.random()<.6 else every)
    attention_cuda.choose=any_of

def lay(g,x,kinds):
    """cupy array like x, lying strangely"""
    k=str(g.choice(kinds))
    if k=="": return cp.asarray(x),k
    *lead,rows,cols=x.shape
    if k=="rows": base=cp.zeros((*lead,2*rows+1,cols),x.dtype); v=base[...,:2*rows:2,:]
    elif k=="slice": base=cp.zeros((*lead,rows,3*cols),x.dtype); v=base[...,cols:2*cols]
    elif k=="pad8": base=cp.zeros((*lead,rows,-(-cols//8)*8+8),x.dtype); v=base[...,:cols]
    elif k=="off1": base=cp.zeros((*lead,rows,cols+1),x.dtype); v=base[...,1:]
    elif k=="trans": base=cp.zeros((*lead[:-1],rows,lead[-1],cols),x.dtype); v=base.swapaxes(-2,-3)
    elif k=="rev": base=cp.zeros(x.shape,x.dtype); v=base[...,::-1,:]
    elif k=="step2": base=cp.zeros((*lead,rows,2*cols),x.dtype); v=base[...,::2]
    elif k=="colmajor": base=cp.zeros((*lead,cols,rows),x.dtype); v=base.swapaxes(-1,-2)
    elif k=="repeat":  # one head, repeated
        y=cp.asarray(np.ascontiguousarray(x[:,:1])); return cp.broadcast_to(y,x.shape),k
    v.host[...]=x
    return v,k

def rule(g,sq,sk):
    i,j=np.arange(sq)[:,None],np.arange(sk)
    k=g.integers(9)
    if k==0: return g.random((sq,sk))<g.choice([.002,.01,.05,.3,.99])
    if k==1: return j<=i+int(g.choice([0,sk-sq]))
    if k==2: return abs(i-j)<=int(g.integers(0,100))
    if k==3: return (abs(i-j)<=16)|(i<3)|(j<3)
    if k==4: return np.repeat(g.random((1,sk))<.05,sq,0)
    if k==5: return np.repeat(g.random((sq,1))<.5,sk,1)
    if k==6: return np.zeros((sq,sk),bool)
    if k==7: return np.ones((sq,sk),bool)
    return np.kron(g.random((-(-sq//64),-(-sk//64)))<.4,np.ones((64,64)))[:sq,:sk]>0

def pattern(g,sq,sk):
    k=g.integers(5)
    if k==0: return masks.causal(sq,sk,align="bottom-right")
    if k==1 and sq==sk: return masks.sliding_window(sq,window=int(g.integers(1,60)))
    if k==2 and sq==sk: return masks.longformer(sq,window=8,global_tokens=min(3,sq))
    if k==3: return masks.key_padding(g.random(sk)<.7,sq)
    keep=g.random(sk)<.7
    return masks.key_padding(cp.asarray(keep),sq),masks.key_padding(keep,sq)

def one(seed):
    g=rng(seed); chosen.clear()
    dt=str(g.choice(["float16","bfloat16"]))
    sq,sk=(int(g.choice([1,1,2,17,63,64,65,100,128,130,193,257,300]+([] if RUN else [1000,2000]))) for _ in '  ')
    if g.random()<.5: sk=sq
    if g.random()<.03: sq=0
    if g.random()<.03: sk=0
    batch=int(g.choice([1,1,2,3]+[0]*(g.random()<.1))); kv=int(g.choice([1,1,2,3])); grp=int(g.choice([1,1,2,4]))
    if RUN: 
        batch=min(batch,2)
    heads=kv*grp
    dims=[8,40,64,64,64,80,7,33]+([] if RUN else [96,128,128,136,192,256,1])
    dqk=int(g.choice(dims)); dv=dqk if g.random()<.7 else int(g.choice(dims))
    spread=float(g.choice([1,1,1,3,.1]))
    q=random_array(g,(batch,heads,sq,dqk),dt,spread); k=random_array(g,(batch,kv,sk,dqk),dt,spread); v=random_array(g,(batch,kv,sk,dv),dt)
    kinds=["","","","rows","slice","pad8","off1","trans","rev","step2","colmajor"]
    if g.random()<.4: kinds=[""]
    (Q,a),(K,b),(V,c)=(lay(g,x,kinds) for x in (q,k,v))
    if g.random()<.05 and kv>1:
        K,b=lay(g,k,["repeat"]); k=np.broadcast_to(k[:,:1],k.shape)
    how={}; desc=[seed,dt,q.shape,k.shape,v.shape,a,b,c]
    dense=None; m=None; n4=(batch,heads,sq,sk)
    form=str(g.choice(["none","pattern","bsr","dense","stack","gpu","gpustack","copied","copiedstack","scipy","mask.to","ones"]))
    lead=tuple([(batch,heads),(heads,),(batch,1),(1,heads)][g.integers(4)])
    if 0 in n4 and form not in("none","dense"): form="dense"
    if form=="pattern":
        m=pattern(g,sq,sk); dense=(m[1] if isinstance(m,tuple) else m).toarray(); m=m[0] if isinstance(m,tuple) else m
    elif form!="none":
        if form in("stack","gpustack","copiedstack") or (form=="dense" and g.random()<.5):
            pool=np.stack([rule(g,sq,sk) for _ in range(2)]); dense=pool[g.integers(0,2,lead)]
        else: dense=rule(g,sq,sk)
        if form=="bsr": m=BsrMask(dense)
        elif form=="dense": m=dense
        elif form=="stack": m=MaskStack.from_dense(dense)
        elif form in("gpu","gpustack"): m=cp.asarray(dense)
        elif form=="copied": m=BsrMask(dense).to("cuda")
        elif form=="copiedstack": m=MaskStack.from_dense(dense).to("cuda")
        elif form=="scipy":
            from scipy.sparse import csr_array
            m=csr_array(dense)
        elif form=="mask.to":
            m=cp.asarray(dense)
        elif form=="ones": dense=np.ones((sq,sk),bool); m=dense
    desc.append(form+str(lead if dense is not None and dense.ndim>2 else ""))
    keep=np.ones((1,1,sq,sk),bool) if dense is None else np.broadcast_to(dense,(batch,heads,sq,sk)) if dense.ndim!=3 else np.broadcast_to(dense[None],(batch,heads,sq,sk))
    keep=np.array(np.broadcast_to(keep,n4))
    if g.random()<.25:
        L=g.integers(-3,sk+5,batch).astype(g.choice(["int32","int64","uint8","int16"])); how["kv_lengths"]=L
        keep&=np.arange(sk)<L.astype(np.int64)[:,None,None,None]
    rh={}
    if g.random()<.3:
        how["scale"]=float(g.choice([0.,-.3,.3,-0.,5.,1e-30,1.,-1e-20]))
    if g.random()<.2: how["sinks"]=np.where(g.random(heads)<.2,-np.inf,g.normal(size=heads)).astype(np.float32)
    if g.random()<.12: how["softcap"]=float(g.choice([.5,3.,50.,1e6]))
    if g.random()<.12: how["alibi"]=np.exp2(-g.uniform(1,6,heads)).astype(np.float32)
    r=g.random()
    if r<.08: how["bias"]=RelativeBias(random_array(g,(8,heads)),bidirectional=True,max_distance=40)
    elif r<.25:
        bdt=str(g.choice(["float16","float32","bfloat16","float64"]))
        bs=tuple(x if g.random()<.7 else 1 for x in n4)[int(g.integers(4)):]
        B=random_array(g,bs,"float32" if bdt=="float64" else bdt)
        if bdt=="float64": B=B.astype(np.float64)
        if g.random()<.4 and B.size: B[g.random(B.shape)<.2]=-np.inf
        how["bias"]=B
    desc.append({n:(x if not isinstance(x,np.ndarray) else (x.dtype.name,x.shape)) for n,x in how.items()})
    # NaN in keys that nobody sees
    if g.random()<.5 and k.size and b!="repeat":
        kk=keep if not isinstance(how.get("bias"),np.ndarray) else keep&(np.broadcast_to(how["bias"],n4)>-np.inf)
        unseen=~kk.reshape(batch,kv,grp,sq,sk).any((2,3))
        for x,X in((k,K),(v,V)):
            X.host[unseen]=x[unseen]=np.nan
    gpu={}
    for n,x in how.items():
        if isinstance(x,RelativeBias): x=RelativeBias(cp.asarray(x.table),bidirectional=x.bidirectional,max_distance=x.max_distance)
        elif isinstance(x,np.ndarray):
            x=cp.asarray(x)
        gpu[n]=x
    out=None; ok=""
    if g.random()<.4:
        out,ok=lay(g,np.full((batch,heads,sq,dv),7,q.dtype),["","rows","slice","pad8","off1","trans","rev"])
    sel=str(g.choice(["model"]*5+["sm80","sm90","sm90","stof-eq1","stof-eq1-64"])) if not only else only
    lse=bool(g.random()<.5)
    desc+=["out "+ok if out is not None else "",sel]
    try:
        est=attention(Q,K,V,m,**gpu,select=sel,explain=True,out=out,return_lse=lse)
        first=est[0].candidate
    except StofError as e:
        first=None; err=str(e)
        if sel!="sm90": return "ERROR",desc,err
    try:
        res=attention(Q,K,V,m,**gpu,select=sel,return_lse=lse,out=out)
    except StofError as e:
        if first is not None: return "RUN RAISED",desc,str(e)
        if str(e)!=err: return "OTHER ERROR",desc,err,str(e)
        seen["unsupported "+str(e).split("expected")[-1][:40]]+=1
        return None
    if first is None: return "EXPLAIN RAISED",desc,err
    got,gl=res if lse else (res,None)
    if out is not None and got is not out: return "NOT OUT",desc
    if got.shape!=(batch,heads,sq,dv) or got.dtype!=q.dtype: return "SHAPE",desc
    if not ANY and got.size and (not chosen or chosen[0]!=first): return "EXPLAIN!=RUN",desc,first,chosen
    if sel=="sm90" and first.kernel!="sm90" or sel=="sm80" and first.kernel=="sm90": return "WRONG KERNEL",desc
    first=chosen[0] if chosen else first
    seen[sel+" "+first.kernel+(" split" if getattr(first,"splits",1)>1 else "")+(" packed" if first.kernel=="sm90" and first.packed else "")+(" halves" if first.kernel=="sm90" and first.shape.halves else "")]+=1
    if RUN and got.size:
        if emulated_gpu.STATE.left_out: 
            emulated_gpu.STATE.left_out=0; seen["left out"]+=1; return None
        rhow={n:x for n,x in how.items() if n!="kv_lengths"}
        exact,el=reference.attention(q,k,v,keep,return_lse=True,**rhow)
        low,_=reference.attention(q,k,v,keep,return_lse=True,precision=dt,**rhow)
        try:
            o=got.get()
            few=o.size<4096
            if few:
                np.testing.assert_allclose(o.astype(np.float64),exact,rtol=.06 if dt=="bfloat16" else .02,atol=.06 if dt=="bfloat16" else .02)
            else: assert_close(o,exact,low)
            if lse:
                e=np.isneginf(el); assert np.array_equal(np.isneginf(gl.get()),e)
                np.testing.assert_allclose(gl.get()[~e],el[~e],rtol=1e-5,atol=2e-4*max(1,spread**2))
            else: e=np.isneginf(el)
            assert not o.astype(np.float32)[e].any()
        except AssertionError as e:
            return "WRONG",desc,chosen[0].kernel,chosen[0].name,str(e)[:600]
t0=time.time(); seed=seed0; n=0
while time.time()-t0<seconds:
    try: r=one(seed)
    except Exception as e:
        r=("EXC",seed,repr(e)[:400],traceback.format_exc(limit=-5)[:1800])
    if r: print(*r,flush=True)
    seed+=1; n+=1
print(n,"calls", emulated_gpu.STATE.ran, "kernels run"); [print("  ",k,c) for k,c in sorted(seen.items())]
