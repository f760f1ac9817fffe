"""The time model and the order of sections on injected facts. PYTHONPATH=$PWD python scratch/hostile_model.py (60 s)"""
import warnings; warnings.simplefilter("error")
import numpy as np, math, time, itertools, traceback
from dataclasses import replace
from stof_cupy import masks
from stof_cupy.ops.attention_model import explain, choose, predict
from stof_cupy.ops.attention_candidates import candidates, legal
from stof_cupy.ops.attention_sm90_launches import _order
from stof_cupy.ops.attention_sm90 import Config, configs
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Given
from stof_cupy.errors import StofError
from tests.ops import gpus
g=np.random.default_rng(0)
H=gpus.H100
FACTS=[H, replace(H,name="NVIDIA H200",sm_count=132,memory_clock_khz=3201000), replace(H,name="GH200",sm_count=144,l2_bytes=60<<20), replace(H,name="H100 PCIe",sm_count=114,clock_khz=1755000,memory_clock_khz=1593000),
  replace(H,name="MIG",sm_count=16,l2_bytes=6<<20), replace(H,name="one",sm_count=1,l2_bytes=1<<10), replace(H,name="nomem",memory_clock_khz=0)]
MASKS={}
def mask(kind,sq,sk):
    key=kind,sq,sk
    if key in MASKS: return MASKS[key]
    if kind=="none": m=None
    elif kind=="empty": m=masks.BsrMask(np.zeros((sq,sk),bool))
    elif kind=="full": m=masks.BsrMask(np.ones((sq,sk),bool))
    elif kind=="rand": m=masks.BsrMask(g.random((sq,sk))<.003)
    elif kind=="causal": m=masks.causal(sq,sk,align="bottom-right").tobsr()
    elif kind=="one": 
        d=np.zeros((sq,sk),bool); d[sq//2,sk//2]=True; m=masks.BsrMask(d)
    elif kind=="onerow":
        d=np.zeros((sq,sk),bool); d[sq//2]=True; m=masks.BsrMask(d)
    elif kind=="onecol":
        d=np.zeros((sq,sk),bool); d[:,sk//2]=True; m=masks.BsrMask(d)
    elif kind=="gpu": m=gpus.OnGpu((int(g.integers(1,50)),0))
    elif kind=="gpu0": m=gpus.OnGpu((0,0))
    elif kind=="gpubig": m=gpus.OnGpu((10**7,10**7),(3,))
    elif kind=="copied": m=gpus.Copied(masks.BsrMask(g.random((sq,sk))<.02))
    MASKS[key]=m
    return m
n=0; t0=time.time(); worst={}
SC=[gpus.ScoreKind(),gpus.ScoreKind(softcap=True),gpus.ScoreKind(alibi=True),gpus.ScoreKind(bias="float16"),gpus.ScoreKind(bias="float32",alibi=True),gpus.ScoreKind(softcap=True,bias="bfloat16",alibi=True)]
while time.time()-t0<100:
    sq,sk=(int(g.choice([1,2,63,64,65,129,500,1000,2048])) for _ in '  ')
    kind=str(g.choice(["none","empty","full","rand","causal","one","onerow","onecol","gpu","gpu0","gpubig","copied"]))
    heads=int(g.choice([1,1,8,12,64,1000])); kv=int(g.choice([d for d in (1,2,4,8,heads) if heads%d==0])); batch=int(g.choice([1,1,2,16,300]))
    dqk,dv=(int(g.choice([1,8,40,64,72,96,128,192,200,256])) for _ in '  ')
    facts=FACTS[g.integers(len(FACTS))]
    sel=str(g.choice(["model","model","model","sm80","sm90","stof-eq1","stof-eq1-64"]))
    given=Given(bool(g.random()<.85),bool(g.random()<.3),bool(g.random()<.2),0)
    desc=(sq,sk,kind,heads,kv,batch,dqk,dv,facts.name,sel,given)
    try:
        c=gpus.case(sq,mask(kind,sq,sk),facts,scores=SC[g.integers(len(SC))] if g.random()<.4 else SC[0],batch=batch,heads=heads,kv_heads=kv,seq_k=sk,dim_qk=dqk,dim_v=dv,dtype=str(g.choice(["float16","bfloat16"])))
        c=replace(c,given=given)
        ex=explain(c,select=sel)
    except StofError as e:
        if sel!="sm90": print("ERR",desc,e)
        continue
    except Exception as e:
        print("EXC",desc,repr(e)); traceback.print_exc(limit=-4); continue
    n+=1
    for e in ex:
        if not (math.isfinite(e.us) and e.us>0): print("NOTFINITE",desc,e)
        if (w:=legal(e.candidate,c)): print("ILLEGAL",desc,e,w)
    if choose(c,select=sel)!=ex[0].candidate:
        print("CHOOSE!=EXPLAIN",desc,choose(c,select=sel),ex[0],ex[1])
    names=[e.name for e in ex]
    if len(set(names))!=len(names): print("DUP",desc,[x for x in names if names.count(x)>1])
    if ex[0].us>1e5: worst[ex[0].us]=(desc,str(ex[0]))
    # sections
    for e in ex:
        if e.candidate.kernel=="sm90":
            from stof_cupy.ops.attention_demand import Demand
            m=c.mask
            lengths=None
            if kind not in("none","gpu","gpu0","gpubig"):
                src=m.to("cpu") if kind=="copied" else m
                lengths=src.tile_lengths(e.candidate.tile,e.candidate.packed)
            for l2 in (1,1<<10,1<<20,facts.l2_bytes,10**13):
                for ctas in (1,facts.sm_count*e.candidate.shape.blocks):
                    first,sec=_order(e.candidate,c.problem,lengths,ctas,l2)
                    group=heads//kv
                    if not(0<=first<=e.candidate.long_slots and (e.candidate.splits==1 or first==e.candidate.long_slots) and sec%group==0 and 1<=sec<=heads*batch): print("ORDER",desc,e.name,l2,ctas,first,sec)
print(n); print(sorted(worst.items())[-5:])
