"""Hopper's tiles whose width 64 does not divide, on the CPU, random problems; seconds as argument."""
import sys, time, random
import numpy as np
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import Sm90Gemm
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops import gemm_sm90
from tests.ops.test_gemm_sm90 import Case, run_on_cpu, Plan
r=random.Random(int(sys.argv[2])); end=time.time()+float(sys.argv[1]); n=0
configs=[Sm90Gemm(128,144),Sm90Gemm(128,144,pingpong=True),Sm90Gemm(128,96)]
kinds=[EpilogueKind(),EpilogueKind(residual=True),EpilogueKind(bias=True,activation='gelu',residual=True),EpilogueKind(bias=True,scale=True)]
while time.time()<end:
    c=r.choice(configs); k=r.choice(kinds)
    size=(r.choice([1,17,63,65,128,200,300]),r.choice([8,40,72,96,97,100,128,143,144,145,160,208,209,225,288,300,433]),r.choice([8,40,64,72,136]))
    case=Case.draw(n,Problem(r.choice(['float16','bfloat16']),*size,k),padded_out=r.random()<.4)
    place=k.residual and not k.activation and r.random()<.6
    if place:
        case.out=case.residual.copy(); given,case.residual=case.residual,case.out
    try:
        out=run_on_cpu(Plan(c),case,ctas=r.choice([1,2,3,7]),seed=n)
        if place: case.residual=given
        case.compare(out)
    except Exception as e:
        print('FAIL',c.name,k,size,place,type(e).__name__,str(e)[:300]); break
    n+=1
print(n,'problems right')
