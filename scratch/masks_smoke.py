import time, sys, traceback
import numpy as np, cupy as cp
sys.path.insert(0,'benchmarks')
from stof_cupy import masks
rng=np.random.default_rng(0)
def sync(): cp.cuda.Stream.null.synchronize()
def check(name, make, ref=None):
    try:
        p=make()
        m=p.to("cuda")
        got=m.to("cpu")
        want=(ref or make()).tobsr() if not isinstance(ref, masks.BsrMask) else ref
        ok=got.equals(want)
        n=m.check()
        print(("ok  " if ok else "BAD ")+name, n, m.capacity)
        m2=make().to("cuda", tiles=n[0], bitmaps=n[1]); 
        if not m2.to("cpu").equals(want): print("BAD stated", name)
        if n[0]:
            m3=make().to("cuda", tiles=n[0]-1, bitmaps=n[1])
            try: m3.check(); print("BAD no overflow", name)
            except masks.MaskError if hasattr(masks,'MaskError') else Exception as e: pass
        for tile,layout in (((64,64),"words"),((128,128),"accumulator"),((64,128),"accumulator")):
            a=m.schedule(tile,layout=layout); b=want.schedule(tile,layout=layout)
            rp=a.row_ptr.get().ravel()
            t=rp[-1]
            assert (rp==b.row_ptr).all(),(name,tile,"row_ptr")
            assert (a.full_ptr.get().ravel()==b.full_ptr).all(),(name,tile,"full_ptr")
            assert (a.cols.get()[:t]==b.cols).all(),(name,tile,"cols")
            assert (a.order.get().ravel()==b.order).all(),(name,tile,"order")
            ia,ib=a.bitmap_id.get()[:t],b.bitmap_id
            assert ((ia<0)==(ib<0)).all(),(name,tile,"ids")
            ba=a.bitmaps.get()[ia[ia>=0]]; bb=b.bitmaps[ib[ib>=0]]
            if len(ba): assert (ba.reshape(len(ba),-1).view(np.uint8)==bb.reshape(len(bb),-1).view(np.uint8)).all(),(name,tile,"bitmaps")
    except Exception as e:
        print("EXC "+name); traceback.print_exc(limit=4)
s=1000
doc=np.repeat(np.arange(10),100)
cdoc=cp.asarray(doc)
for name,make in {
 "causal":lambda:masks.causal(s),"full":lambda:masks.full(s,700),"br":lambda:masks.causal(300,1000,align="bottom-right"),
 "sliding":lambda:masks.sliding_window(s,window=100),"longformer":lambda:masks.longformer(s,window=100,global_tokens=64),
 "lf pos":lambda:masks.longformer(s,window=100,global_tokens=[5,77,900]),"bigbird":lambda:masks.bigbird(s),"hf":lambda:masks.bigbird_hf(s),
 "dilated":lambda:masks.dilated(s,window=20,dilation=7),"strided":lambda:masks.strided(s,stride=30),"fixed":lambda:masks.fixed(s,stride=32,summary=4),
 "vs":lambda:masks.vertical_slash(s,vertical=[3,77,500],slash=[0,1,200]),"blocks":lambda:masks.blocks((s,s),[0,3,5],[1,2,60],block=16),
 "doc":lambda:masks.document([100,300,600],causal=True),"nb":lambda:masks.neighborhood((25,40),window=(7,9)),
 "nb3":lambda:masks.neighborhood((5,10,20),window=(3,3,5),dilation=(1,2,3)),"pyfn":lambda:masks.predicate((s,s),lambda q,k:(q+k)%3==0),
 "crop":lambda:masks.longformer(s,window=100,global_tokens=64)[13:900,70:777],"shift":lambda:masks.neighborhood((25,40),window=(7,9)).shift(100,-30),
 "stored":lambda:masks.BsrMask(np.random.default_rng(5).random((s,s))<.001)._pattern & masks.causal(s),
 "formula":lambda:masks.predicate((s,s),"i >= j && doc[i] == doc[j]",arrays={"doc":doc}),
 "tiny":lambda:masks.causal(1),"63":lambda:masks.sliding_window(63,127,window=5,align="top-left"),"empty":lambda:masks.causal(5000)&~masks.causal(5000),
}.items(): check(name,make)
check("cupy doc formula",lambda:masks.predicate((s,s),"i >= j && doc[i] == doc[j]",arrays={"doc":cdoc}),masks.document([100]*10,causal=True).tobsr())
check("cupy ids",lambda:masks.document_ids(cdoc,causal=True),masks.document([100]*10,causal=True).tobsr())
d=rng.random((s,700))<.02; cd=cp.asarray(d)
check("dense",lambda:masks.dense(cd),masks.BsrMask(d))
check("dense strided",lambda:masks.dense(cd[::-1,3:]),masks.BsrMask(np.ascontiguousarray(d[::-1,3:])))
sc=rng.standard_normal((16,16)).astype(np.float32)
check("scores",lambda:masks.score_blocks(cp.asarray(sc),top=3),masks.score_blocks(sc,top=3).tobsr())
check("thr",lambda:masks.score_blocks(cp.asarray(sc),threshold=.5),masks.score_blocks(sc,threshold=.5).tobsr())
# timing
def wall(f,n=30):
    f();f();f(); ts=[]
    for _ in range(n):
        sync(); t=time.perf_counter(); f(); sync(); ts.append(time.perf_counter()-t)
    return np.median(ts)*1e3
def ev(f,n=30):
    f();f(); a,b=cp.cuda.Event(),cp.cuda.Event(); a.record()
    for _ in range(n): f()
    b.record(); b.synchronize(); return cp.cuda.get_elapsed_time(a,b)/n
for s in (8192,32768):
    r=np.random.default_rng(0); nb=s//64
    rnd=(r.random((nb,nb))<3/nb); docs=np.sort(r.integers(0,s//512,s)); b10=(r.random((nb,nb))<.1)|np.eye(nb,dtype=bool)
    rn,bn=rnd.nonzero(),b10.nonzero(); cdocs=cp.asarray(docs); cden=cp.zeros((s,s),bool); cden[:,::97]=True
    sc=cp.random.standard_normal((nb,nb),dtype=np.float32)
    for name,make in {"causal":lambda:masks.causal(s),"sliding":lambda:masks.sliding_window(s,window=256),"causal-sliding":lambda:masks.sliding_window(s,window=256,causal=True),
      "longformer":lambda:masks.longformer(s,window=256,global_tokens=64),"bigbird":lambda:masks.bigbird(s,random_blocks=0)|masks.blocks((s,s),*rn),
      "document":lambda:masks.document_ids(docs,causal=True),"document cupy":lambda:masks.document_ids(cdocs,causal=True),"block10":lambda:masks.blocks((s,s),*bn),
      "formula":lambda:masks.predicate((s,s),"i >= j && doc[i] == doc[j]",arrays={"doc":cdocs}),"formula all":lambda:masks.predicate((s,s),"doc[i] == doc[j]",arrays={"doc":cdocs}),
      "formula within":lambda:masks.predicate((s,s),"doc[i] == doc[j]",arrays={"doc":cdocs},within=masks.causal(s)),
      "dense":lambda:masks.dense(cden),"top":lambda:masks.score_blocks(sc,top=8)}.items():
        try:
            m=make().to("cuda"); n=m.check()
            print(f"{s:6} {name:15} make {wall(make):.3f} default {wall(lambda:make().to('cuda')):.3f} stated {wall(lambda:make().to('cuda',tiles=n[0],bitmaps=n[1])):.3f} rebuild wall {wall(m.rebuild):.3f} gpu {ev(m.rebuild):.3f} ms  {n} {m.nbytes/2**20:.2f} MiB",flush=True)
        except Exception: traceback.print_exc(limit=3)

import sys; sys.exit()
for nm,mk in {"longformer":lambda:masks.longformer(8192,window=256,global_tokens=64)}.items():
    n=mk().to("cuda").check()
    pr=cProfile.Profile(); pr.enable()
    for _ in range(200): mk().to("cuda",tiles=n[0],bitmaps=n[1])
    pr.disable(); pstats.Stats(pr).sort_stats("tottime").print_stats(28)
