"""all sm90 gemm specs of catalogue and gemm_specs.pkl made anew for the present sources: spills. argv: part parts"""
import sys,pickle,dataclasses
sys.path.insert(0,"scratch")
from concurrent.futures import ProcessPoolExecutor
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.epilogues import EpilogueKind, PLAIN
from stof_cupy.jit.gemm_sm90 import *
from stof_cupy.jit import gemm_sm90 as g
kinds=[PLAIN,EpilogueKind(bias=True),EpilogueKind(bias=True,residual=True),EpilogueKind(residual=True),EpilogueKind(bias=True,activation="gelu"),EpilogueKind(bias=True,activation="gelu_tanh"),EpilogueKind(activation="silu",gated=True),EpilogueKind(bias=True,activation="gelu",gated=True),EpilogueKind(normed=True,bias=True,activation="gelu"),EpilogueKind(normed=True,bias=True),EpilogueKind(normed=True,activation="silu",gated=True),EpilogueKind(bias=True,heads=True),EpilogueKind(bias=True,rotary=64,heads=True),EpilogueKind(bias=True,rotary=128,statistics=True,heads=True),EpilogueKind(normed=True,rotary=64),EpilogueKind(bias=True,residual=True,statistics=True),EpilogueKind(scale=True,bias=True,activation="silu",residual=True),EpilogueKind(bias=True,activation="gelu",residual=True),EpilogueKind(bias=True,rotary="neighbours")]
configs=list(GEMM_SM90_CONFIGS)+[Sm90Gemm(128,n,pingpong=t,across=-(-768//n)) for n in (64,128,192,256) for t in (False,True) if -(-768//n)<=8]
todo=[]
for c in configs:
    if c.swapped: continue
    for k in kinds:
        for ta,tb in ((False,False),(True,True)) if k in kinds[:3] else ((False,False),):
            cc=g.for_layout(c,ta,tb)
            if cc.fault(k) is None: todo.append((cc,k))
def one(a):
    c,k=a
    s=gemm_sm90("bfloat16",c,k)
    r=compile_cubin(s,"90a",nvrtc.load(),strict=False)
    return s.name,r.spill_bytes,'C75' in r.log
if __name__=="__main__":
    a,b=int(sys.argv[1]),int(sys.argv[2]); t=todo[a::b]; print(len(todo),len(t),flush=True); bad=0
    with ProcessPoolExecutor(int(sys.argv[3]) if len(sys.argv)>3 else 2) as ex:
        for n,sp,c in ex.map(one,t):
            if sp or c: print("BAD",n,sp,c,flush=True); bad+=1
    print("done",bad)
