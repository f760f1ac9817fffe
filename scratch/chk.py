from pathlib import Path
import numpy as np, json
from summary_attention import read, UNMASKED
from summary_hopper import goal_of, MASKS
gm=lambda x: float(np.exp(np.mean(np.log(list(x)))))
R="benchmarks/results/"
h1=read(Path(R+"attention_hopper_h100_2026-11-28.json")); h2=read(Path(R+"attention_hopper_h200_2026-11-29.json"))
by={(c.group,c.shape,c.mask,c.dtype):c for c in h1}
d=[]
for k,c in by.items():
    if k[3]=="float16": continue
    o=by[(*k[:3],"float16")]
    d.append((o.ratio()[0]/c.ratio()[0]-1,k))
d.sort(); print("fp16/bf16 ratio", d[:4], d[-4:])
print("A,B,C only", [x for x in d if x[1][0]=="table"][:2], [x for x in d if x[1][0]=="table"][-2:])
dense=[c for c in h1 if c.group in("table","dims") and c.mask in UNMASKED]
r=[c.ratio()[0] for c in dense]; print("dense",gm(r),min(r),max(r),len(r))
rb=[c.ratio()[0] for c in dense if c.dtype=="bfloat16"]; print("dense bf16",gm(rb),min(rb),max(rb))
rt=[c.ratio()[0] for c in dense if c.group=="table"]; print("dense table",gm(rt),min(rt),max(rt))
sp=[c for c in h1 if c.group=="table" and c.mask not in UNMASKED]
r=[c.ratio()[0] for c in sp]; print("sparse",gm(r),min(r),max(r))
sm=[c for c in h1 if c.group=="small"]; r=[c.ratio()[0] for c in sm]; print("small",gm(r),min(r),max(r), sum(x<1 for x in r))
# times that were set would come to
g=[]; 
for dt in ("bfloat16","float16",None):
    x=[min(t for n,t in c.times.items() if not n.startswith("ours"))/goal_of(c) for c in sp if dt in (None,c.dtype)]
    print("set times ratio",dt,gm(x),min(x),max(x))
for n,h in (("h200",h2),):
    dn=[c.ratio()[0] for c in h if c.mask in UNMASKED]; s=[c.ratio()[0] for c in h if c.mask not in UNMASKED]
    print(n,gm(dn),min(dn),max(dn),gm(s),min(s),max(s))
    x=[min(t for n,t in c.times.items() if not n.startswith("ours"))/goal_of(c) for c in h if c.mask not in UNMASKED]
    print("set", gm(x))
# h200 vs h100 of ours
for c in h2:
    o=by[(c.group,c.shape,c.mask,c.dtype)]
    print(c.shape,c.mask, f"ours h200/h100 {c.times['ours']/o.times['ours']-1:+.3f}", {k:round(v,4) for k,v in c.times.items()}, "H100:", {k:round(v,4) for k,v in o.times.items()}, c.kernels.get('ours'), o.kernels.get('ours'), c.with_host)
print("small", [(c.shape[3],c.mask,c.dtype,round(c.times['ours']*1e3,3),{k:round(v*1e3,3) for k,v in c.times.items() if k=='cuDNN-sparse'}) for c in sm if c.mask in("bigbird","block10")])
print("host", [(c.group,c.mask,c.with_host) for c in h1 if c.with_host][:10])
for c in h1:
    if c.group=="dims": print(c.shape,c.mask,c.dtype, c.ratio(), {k:round(v,4) for k,v in c.times.items()})
print(set((c.shape,c.mask,c.kernels.get("ours")) for c in h1 if c.group in ("table","small") ))
