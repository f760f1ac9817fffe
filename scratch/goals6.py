"""Issue 6's goals out of a results file: python3 scratch/goals6.py [benchmarks/results/gemm_h200_2026-11-29.json]"""
import json,math,sys
from collections import defaultdict,Counter
d=json.load(open(sys.argv[1] if sys.argv[1:] else "benchmarks/results/gemm_h200_2026-11-29.json"))
c=defaultdict(dict); plain=defaultdict(dict)
for b in d["benchmarks"]:
    if "copy" in b["name"]: copy=b["extra_info"]["gbytes_per_s"]; continue
    p=b["params"]; e=b["extra_info"]
    t=c if "compiled" in b["name"] else plain
    t[p["kind"],tuple(p["shape"])][p["way"]]=e["device_p50_ms"]*1e3
def gm(x): x=list(x); return math.exp(sum(map(math.log,x))/len(x)) if x else 0
print("copy",copy, Counter(k for k,_ in c), Counter(k for k,_ in plain))
for kind in("bias_gelu","swiglu","layer_norm","fold"):
    r={s:min(t for w,t in v.items() if w not in("ours","templates","apart"))/v["ours"] for (k,s),v in c.items() if k==kind and "ours" in v and len(v)>1}
    rc={s:v["compile"]/v["ours"] for (k,s),v in c.items() if k==kind and "compile" in v}
    print(kind,len(r),"best peer",round(gm(r.values()),3),"compile alone",len(rc),round(gm(rc.values()),3),"below .98:",{s:(round(x,3), {w:round(t,1) for w,t in c[kind,s].items()}) for s,x in r.items() if x<.98})
    print("   M=32768 K<=1024", round(gm(x for s,x in r.items() if s[0]==32768 and s[2]<=1024),3))
    q={s:min(t for w,t in v.items() if w not in("ours","templates","apart"))/v["ours"] for (k,s),v in plain.items() if k==kind and s[0]>=512 and len(v)>1}
    if q: print("   without torch.compile",len(q),round(gm(q.values()),3),"min",round(min(q.values()),3))
q={s:v["matmul"]/v["ours"] for (k,s),v in plain.items() if k=="plain"}
print("plain",len(q),round(gm(q.values()),3),round(min(q.values()),3),min(q,key=q.get), "won", sum(x>=1 for x in q.values()))
t={s:v["matmul"]/v.get("templates",v["ours"]) for (k,s),v in plain.items() if k=="plain" and s[0]>=512}
print("templates",round(gm(t.values()),3),round(min(t.values()),3))
for (k,s),v in sorted(plain.items()):
    if k=="plain" and s[0]<=16:
        gb=(2*(s[0]+s[1])*s[2]+2*s[0]*s[1])/v["ours"]/1e3
        print(s, round(2*s[1]*s[2]/2**20,1),"MiB", round(gb), round(gb/copy,3), {w:round(t,2) for w,t in v.items()})
