import sys; sys.path[:0]=["scratch","."]
from fit_terms import *
D={"softcap":{((1,32,8192,128),"full"):7701,((1,32,8192,128),"sliding"):590,((16,12,2048,64),"full"):1785,((16,12,2048,64),"sliding"):518},
"alibi":{((1,32,8192,128),"full"):5215,((1,32,8192,128),"sliding"):421,((16,12,2048,64),"full"):1350,((16,12,2048,64),"sliding"):409},
"relative":{((1,32,8192,128),"full"):5633,((1,32,8192,128),"causal"):2931,((1,32,8192,128),"sliding"):447.7,((16,12,2048,64),"full"):1454,((16,12,2048,64),"causal"):832,((16,12,2048,64),"sliding"):454,((8,12,512,64),"full"):53.5,((8,12,512,64),"causal"):43,((8,12,512,64),"sliding"):26.3}}
for k,v in D.items():
    for (shape,m),us in v.items():
        c=case(shape,m,k)
        for x in candidates(c):
            if name_of(x) in ("blockwise 4x16s2q1b2","blockwise 4x16s1q0b2"):
                lo,hi=0.01,20
                print(k,shape,m,name_of(x),us,"predicted",round(Times(c,Constants()).of(x).us,1),"term",round(solve(c,x,us,"score_clk")-1.047,2))
