import time,sys
import os; sys.path.insert(0, os.getcwd())
from stof_cupy.jit.gemm_sm90 import *
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit import compile as c
from stof_cupy.jit.gemm_sm90 import gemm_sm90, Sm90Gemm
import tempfile
from pathlib import Path
from stof_cupy.jit.cache import Store
K={'plain':EpilogueKind(),'gelu':EpilogueKind(bias=True,activation='gelu'),'tanh':EpilogueKind(bias=True,activation='gelu_tanh'),'res':EpilogueKind(bias=True,residual=True),'fold':EpilogueKind(normed=True,bias=True,activation='gelu')}
with tempfile.TemporaryDirectory() as d:
    st=Store(Path(d))
    for n,cfg in (('pp',Sm90Gemm(128,192,pingpong=True)),('coop',Sm90Gemm(128,256)),('norm',Sm90Gemm(128,192,pingpong=True,across=4))):
        for k,e in K.items():
            try: s=gemm_sm90('bfloat16',cfg,e)
            except Exception as x: continue
            t=time.time(); st.get(s,'90a'); print(n,k,'%.2f'%(time.time()-t), flush=True)
