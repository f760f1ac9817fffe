"""Where the model's choice should grow with work. PYTHONPATH=$PWD python scratch/hostile_mono.py"""
import numpy as np
from dataclasses import replace
from stof_cupy import masks
from stof_cupy.ops.attention_model import explain, predict
from stof_cupy.ops.attention_sm90 import configs
from tests.ops import gpus
H=gpus.H100
def best(**k):
    e=explain(gpus.case(k.pop("seq"),k.pop("mask",None),k.pop("facts",H),**k),select=k.pop("select","model") if "select" in k else "model"); return e[0]
def show(name,xs):
    us=[x.us for x in xs]; bad=[i for i in range(len(us)-1) if us[i+1]<us[i]*.995]
    print(("NOT MONOTONE " if bad else "ok ")+name,[round(u,1) for u in us],[x.name for i,x in enumerate(xs) if i in bad or i-1 in bad])
for dim in (64,128,192,256):
    show(f"heads d{dim} 2048 causal",[best(seq=2048,mask=masks.causal(2048).tobsr(),dim=dim,heads=h) for h in (1,2,3,4,6,8,11,12,13,16,24,33,44,64,132,133,1000)])
    show(f"seq unmasked d{dim}",[best(seq=s,dim=dim,heads=8) for s in (1,64,65,128,129,192,193,256,500,512,513,1000,1024,2000,2048,4096,8192,16384,32768)])
    show(f"keys of 1 query d{dim}",[best(seq=1,seq_k=s,dim=dim,heads=8) for s in (1,64,128,1000,2048,4096,8192,32768,131072,2**20)])
    show(f"window d{dim} 4096",[best(seq=4096,mask=masks.sliding_window(4096,window=w).tobsr(),dim=dim) for w in (0,1,8,31,63,64,100,128,200,256,512,1000,2048,4095)])
    g=np.random.default_rng(0); r=g.random((2048,2048))
    show(f"random d{dim} 2048",[best(seq=2048,mask=masks.BsrMask(r<p),dim=dim) for p in (0,1e-5,1e-4,.0003,.001,.003,.01,.02,.05,.1,.3,.7,1.)])
    show(f"globals d{dim} 4096",[best(seq=4096,mask=masks.longformer(4096,window=64,global_tokens=n).tobsr(),dim=dim) for n in (1,2,8,32,64,65,128,256,512)])
    show(f"random blocks d{dim}",[best(seq=4096,mask=masks.BsrMask(np.kron(g.random((64,64))<p,np.ones((64,64),bool))),dim=dim) for p in (.01,.05,.1,.2,.4,.6,.8,1)])
    for dv in (64,128,192,256): pass
    show(f"dv d{dim}",[best(seq=2048,dim_qk=dim,dim_v=v) for v in (8,64,96,128,192,256)])
    show(f"sms d{dim} (fewer)",[best(seq=4096,mask=masks.causal(4096).tobsr(),dim=dim,facts=replace(H,sm_count=n)) for n in (144,132,114,78,60,32,16,7,1)])
    show(f"clock d{dim}",[best(seq=4096,mask=masks.causal(4096).tobsr(),dim=dim,facts=replace(H,clock_khz=n*1000)) for n in (1980,1755,1410,1000,345)])
    show(f"l2 d{dim}",[best(seq=4096,mask=masks.causal(4096).tobsr(),dim=dim,facts=replace(H,l2_bytes=n<<20)) for n in (60,50,40,25,6,1)])
