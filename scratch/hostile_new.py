"""What choosing for a new mask at every call costs. PYTHONPATH=$PWD python scratch/hostile_new.py"""
import time, numpy as np
from stof_cupy import masks
from stof_cupy.masks import MaskStack
from stof_cupy.ops.attention_model import choose
from tests.ops import gpus
g=np.random.default_rng(0)
def fresh(kind,S,B):
    if kind=="pad": return MaskStack([masks.key_padding(np.arange(S)<g.integers(S//2,S),S).tobsr() for _ in range(B)],np.arange(B).reshape(B,1)) if B>1 else masks.key_padding(np.arange(S)<g.integers(S//2,S),S).tobsr()
    if kind=="doc": return masks.document(g.multinomial(S,np.ones(9)/9)).tobsr()
    if kind=="rand": return masks.BsrMask(g.random((S,S))<.01)
for kind,S,B in (("pad",128,1),("pad",512,16),("pad",512,64),("doc",2048,1),("doc",16384,1),("rand",1024,1),("rand",4096,1)):
    for facts in (gpus.H100,gpus.A100):
      for sel in ("model","sm80"):
        if facts is gpus.A100 and sel=="sm80": continue
        t=[]
        for _ in range(5):
            m=fresh(kind,S,B); c=gpus.case(S,m,facts,dim=64,batch=B)
            t0=time.perf_counter(); r=choose(c,select=sel); t.append(time.perf_counter()-t0)
        print(kind,S,B,facts.arch,sel,f"{1e3*sorted(t)[2]:.2f} ms",r.kernel)
