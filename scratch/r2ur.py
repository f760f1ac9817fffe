import sys,re,subprocess,tempfile,os
from concurrent.futures import ProcessPoolExecutor
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import Sm90Gemm, gemm_sm90
ND='/tmp/venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvdisasm'
B=dict(bias=True)
K={"plain":EpilogueKind(),"bias":EpilogueKind(**B),"tanh":EpilogueKind(bias=True,activation="gelu_tanh"),"erf":EpilogueKind(bias=True,activation="gelu"),"res":EpilogueKind(bias=True,residual=True),"resonly":EpilogueKind(residual=True),"swiglu":EpilogueKind(activation="silu",gated=True),"fold":EpilogueKind(normed=True,bias=True,activation="gelu"),"rot":EpilogueKind(rotary=64)}
C=[Sm90Gemm(128,192,pingpong=True),Sm90Gemm(128,192,pingpong=True,cluster=2),Sm90Gemm(128,128,pingpong=True),Sm90Gemm(128,256),Sm90Gemm(128,256,cluster=2),Sm90Gemm(256,128),Sm90Gemm(64,192,pingpong=True),Sm90Gemm(64,64,pingpong=True),Sm90Gemm(128,256,split=True),Sm90Gemm(128,64,split=True),Sm90Gemm(128,64,joined=8),Sm90Gemm(128,144,pingpong=True),Sm90Gemm(128,16,swapped=True,split=True)]
def one(a):
    c,k=a
    if c.fault(K[k]): return None
    s=gemm_sm90("bfloat16",c,K[k]); r=compile_cubin(s,"90a",nvrtc.load(),strict=False)
    f=tempfile.mktemp(); open(f,'wb').write(r.image); out=subprocess.run([ND,'-c',f],capture_output=True,text=True).stdout; os.remove(f)
    return c.name,k,out.count('R2UR'),out.count('HGMMA'),r.spill_bytes,'C75' in r.log
if __name__=="__main__":
    names=sys.argv[1].split(',') if len(sys.argv)>1 else list(K)
    cs=C if len(sys.argv)<3 else [c for c in C if c.name in sys.argv[2].split(',')]
    rows={}
    with ProcessPoolExecutor(2) as ex:
        for x in ex.map(one,[(c,k) for c in cs for k in names]):
            if x: rows.setdefault(x[0],[]).append(f"{x[1]} {x[2]}/{x[3]}{' SPILL%d'%x[4] if x[4] else ''}{' C75!' if x[5] else ''}")
    for n,v in rows.items(): print(f"{n:28}",' | '.join(v))
