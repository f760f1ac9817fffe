import time, numpy as np
from stof_cupy import masks
from stof_cupy.ops.attention_model import choose, explain
from tests.ops import gpus
g=np.random.default_rng(0); worst=[]
M={}
for seq in (512,2048,8192,32768):
    M[seq]=[None,masks.causal(seq).tobsr(),masks.longformer(seq,window=64,global_tokens=64).tobsr(),masks.sliding_window(seq,window=300).tobsr()]
    if seq<=8192:
        d=np.zeros((seq,seq),bool); d[::7,:]=True; M[seq].append(masks.BsrMask(d))
t0=time.time()
while time.time()-t0<40:
    seq=int(g.choice(list(M))); i=int(g.integers(len(M[seq]))); m=M[seq][i]
    heads=int(g.choice([1,2,4,12,32,64,1000])); b=int(g.choice([1,2,16,128,1000])); d=int(g.choice([64,128,192,256]))
    c=gpus.case(seq,m,dim=d,heads=heads,batch=b); 
    t=time.perf_counter(); e=choose(c); t=time.perf_counter()-t; worst.append((t,seq,i,heads,b,d,e.name))
worst.sort(key=lambda x:-x[0]); print(len(worst)); [print(w) for w in worst[:8]]
