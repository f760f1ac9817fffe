import sys; sys.path[:0]=["scratch","."]
from fit_terms import *
D={"alibi":{((1,32,8192,128),"full"):1781,((1,32,8192,128),"causal"):876,((1,32,8192,128),"sliding"):177.4,((16,12,2048,64),"full"):600,((16,12,2048,64),"causal"):333.5,((16,12,2048,64),"sliding"):220,((1,16,8192,192),"full"):1339,((1,16,8192,96),"full"):824},
"relative":{((1,32,8192,128),"full"):1600,((1,32,8192,128),"causal"):800,((1,32,8192,128),"sliding"):184.6,((16,12,2048,64),"full"):535,((16,12,2048,64),"causal"):303.5,((16,12,2048,64),"sliding"):214},
"softcap":{((1,32,8192,128),"full"):2604,((1,32,8192,128),"causal"):1308,((16,12,2048,64),"causal"):537.5},
"array":{((1,32,8192,128),"full"):4716,((16,12,2048,64),"full"):1515,((1,16,8192,96),"full"):2302}}
for k,v in D.items():
    for (shape,m),us in v.items():
        c=case(shape,m,k); out=[]
        from stof_cupy.ops.attention_constants import TERMS
        name={"alibi":"alibi","relative":"distances","softcap":"softcap","array":"bias"}[k]
        for x in candidates(c):
            if x.kernel=="sm90" and "/" not in name_of(x):
                out.append((Times(c,Constants()).of(x).us, name_of(x), round(solve(c,x,us,"wg_term_clk")*TERMS[name][1],2)))
        print(k,shape,m,us,[(round(a),n[5:],t) for a,n,t in sorted(out)][:2])
for (shape,m),us in {((1,32,8192,128),"full"):6748,((1,32,8192,128),"sliding"):531,((16,12,2048,64),"full"):1754,((16,12,2048,64),"sliding"):505.5}.items():
    c=case(shape,m,"array")
    for x in candidates(c):
        if name_of(x) in ("blockwise 4x16s2q1b2","blockwise 4x16s1q0b2"): print("sm80 array",shape,m,round(solve(c,x,us,"term_clk")*5.0,2))
