"""Sections on extreme shapes against a brute-force simulation of what find() gives: every row once. PYTHONPATH=$PWD python scratch/hostile_order.py"""
import numpy as np
from stof_cupy.ops.attention_sm90_launches import _order
from stof_cupy.ops.attention_sm90 import Config
from stof_cupy.ops.attention_args import Problem
from tests.ops.hopper_case import SMALL,BIG,THREE
g=np.random.default_rng(0); n=0
for _ in range(4000):
    kv=int(g.choice([1,2,3,8])); grp=int(g.choice([1,2,5,125])); B=int(g.choice([1,2,3,7])); sq=int(g.choice([1,64,100,500,1000])); sk=int(g.choice([1,64,1000,10**6])); d=int(g.choice([1,64,256]))
    shape=[SMALL,BIG,THREE][g.integers(3)]; p=Problem("float16",B,kv*grp,kv,sq,sk,d,d); slots=-(-sq//shape.m)
    ls=int(g.integers(0,slots+1)); sp=int(g.choice([1,2,5,64])) if ls else 1
    L=None if g.random()<.2 else -np.sort(-g.integers(0,int(g.choice([1,3,1000])),slots))
    c=Config(shape,ls,sp); first,sec=_order(c,p,L,int(g.choice([1,16,132,396])),int(g.choice([0,1,1<<16,1<<20,50<<20,10**12])))
    sec=min(sec,p.heads*B)
    assert 0<=first<=ls and (sp==1 or first==ls) and sec>=1 and sec%grp==0,(p,c,first,sec)
    ah=p.heads*B; total=(slots+first*(sp-1))*ah
    if total>200000: continue
    assert total==c.rows(p)-(ls-first)*(sp-1)*ah
    t=np.arange(total); rest=t-first*ah*sp; per=max(sec*(slots-first),1)
    slot=np.where(rest<0,t//sp//ah,first+rest%per//np.minimum(sec,ah-rest//per*sec).clip(1)); of=np.where(rest<0,t//sp%ah,rest//per*sec+rest%per%np.minimum(sec,ah-rest//per*sec).clip(1))
    key=(slot*ah+of)*(sp+1)+np.where(rest<0,t%sp,sp); assert len(np.unique(key))==total and slot.max()<slots and of.max()<ah,(p,c,first,sec)
    n+=1
print(n)
