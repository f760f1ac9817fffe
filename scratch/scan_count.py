"""All of Hopper's attention kernels with score terms that a case can reach: (config, dtype)."""
from dataclasses import replace
from itertools import product
from stof_cupy.jit.attention_sm90 import *
def combos(dtypes=("stof::f16","stof::bf16","float")):
    for cap, dist, bias in product((0,1),("","Alibi","Relative"),("",*dtypes)):
        t=(("Softcap",) if cap else ())+((dist,) if dist else ())+((f"Additive<{bias}>",) if bias else ())
        if t: yield t
def reach(terms,a,b):
    f=[c for c in SM90_CONFIGS if (c.dim_qk,c.dim_v)==(a,b)]
    if not f: f=[replace(c,dim_qk=a,dim_v=b) for c in SM90_CONFIGS if c.dim_qk==c.dim_v==max(a,b)]
    if terms: f=[c.roomy(terms) for c in f]
    f=list(dict.fromkeys(f)); f+=list(dict.fromkeys(replace(c,packed=True,halves=False) for c in f))
    return [c for c in f if c.fault() is None]
def everything(dtypes=("stof::f16","stof::bf16","float")):
    out=[]
    for a in SM90_DIMS:
        for b in SM90_DIMS:
            for t in [(),*combos(dtypes)]:
                out+= [c for c in reach(t,a,b) if c not in out]
    return list(dict.fromkeys(out))
if __name__=="__main__":
    from collections import Counter
    e=everything(); print(len(e)); print(Counter((len(c.scores)>0,c.packed) for c in e))
    e1=everything(("float",)); print(len(e1)); print(Counter((c.scores) for c in e1))
    print(Counter((c.dim_v,c.m,c.n) for c in e1 if c.scores))
