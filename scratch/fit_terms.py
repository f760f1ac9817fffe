import sys, re; sys.path[:0]=["."]
import numpy as np
from dataclasses import replace
from tests.ops import gpus
from stof_cupy import masks
from stof_cupy.masks import as_masks
from stof_cupy.jit.attention_kernels import ScoreKind
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case, Given
from stof_cupy.ops.attention_constants import Constants
from stof_cupy.ops.attention_times import Times
from stof_cupy.ops.attention_candidates import candidates, name_of
def mask_of(n,s):
    w=256 if s>1000 else 64
    return {"full":None,"causal":masks.causal(s),"sliding":masks.sliding_window(s,window=w),"longformer":masks.sliding_window(s,window=32)|masks.global_tokens(s,32)}[n]
KINDS={"relative":ScoreKind(distances=True),"alibi":ScoreKind(alibi=True),"softcap":ScoreKind(softcap=True),"array":ScoreKind(bias="bfloat16")}
def case(shape,m,kind):
    b,h,s,d=shape
    return Case(Problem("bfloat16",b,h,h,s,s,d,d),None if m=="full" else as_masks(mask_of(m,s),(b,h,s,s)),gpus.H200,KINDS[kind],(13,0),Given(True,False,False))
def solve(c,cand,us,field):
    lo,hi=-3,20
    for _ in range(40):
        mid=(lo+hi)/2
        t=Times(c,replace(Constants(),**{field:mid})).of(cand).us
        lo,hi=(mid,hi) if t<us else (lo,mid)
    return mid
if __name__=="__main__":
    for line in open("/work/.device/1/choice.txt"):
        if not line.startswith("C"): continue
        m=re.match(r"C (\(.*?\)) (\w+) chosen (.*?) \(([\d.]+), ([\d.]+)\) (.*)",line)
        shape=eval(m[1]); c=case(shape,m[2],"relative"); byname={name_of(x):x for x in candidates(c)}
        for n,us,_ in re.findall(r"([\w ./]+?) \(([\d.]+), ([\d.]+)\)",m[6]):
            n=n.strip("; ").strip()
            if "sm90" in n and n in byname: print(shape,m[2],n,us,"predicted",round(Times(c,Constants()).of(byname[n]).us,1),"term",round(solve(c,byname[n],float(us),"wg_term_clk"),2))
    for shape,vals in {(1,32,8192,128):{"softcap":2610,"alibi":2016,"array":5027},(16,12,2048,64):{"softcap":1021,"alibi":767,"array":1536},(1,16,8192,192):{"softcap":1501,"alibi":1392,"array":2578}}.items():
        for k,us in vals.items():
            c=case(shape,"full",k)
            for x in candidates(c):
                if x.kernel=="sm90" and "/" not in name_of(x): print(shape,k,name_of(x),us,"term",round(solve(c,x,us,"wg_term_clk"),2))
    for shape,vals in {(1,32,8192,128):{"softcap":235,"alibi":198,"array":347},(16,12,2048,64):{"softcap":288,"alibi":227,"array":394}}.items():
        for k,us in vals.items():
            c=case(shape,"sliding",k)
            for x in candidates(c):
                if x.kernel=="sm90" and "/" not in name_of(x): print(shape,"sliding",k,name_of(x),us,"term",round(solve(c,x,us,"wg_term_clk"),2))
