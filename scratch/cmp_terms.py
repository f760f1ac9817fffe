import sys; sys.path[:0]=["scratch","."]
from fit_terms import *
from stof_cupy.ops import attention_constants as ac
from stof_cupy.ops.attention_model import explain
import copy
old=dict(ac.TERMS); new={**old,"alibi":(3.6,0.7),"bias":(6.0,5.0)}
for shape in ((16,12,2048,64),(8,12,512,64),(1,12,128,64),(1,12,512,64),(1,32,8192,128),(1,16,8192,192),(1,16,8192,96),(8,16,1024,128),(1,8,4096,256),(1,16,4096,64)):
    for m in ("full","causal","sliding","longformer"):
        for k in ("alibi","array"):
            r=[]
            for t in (old,new):
                ac.TERMS.clear(); ac.TERMS.update(t)
                e=explain(case(shape,m,k),Constants()); r.append((name_of(e[0].candidate),round(e[0].us,1)))
            if r[0][0]!=r[1][0]: print(shape,m,k,r)
