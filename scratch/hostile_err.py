import numpy as np, cupy as cp
from stof_cupy import attention, masks
from stof_cupy.errors import StofError
import emulated_gpu
emulated_gpu.ndarray.__array_function__ = lambda self, func, types, args, kwargs: getattr(cp, func.__name__)(*args, **kwargs)
def z(*s,dt=np.float16): return cp.asarray(np.zeros(s,dt))
for sel in ("model","sm80","sm90","stof-eq1"):
  for name,call in {
   "D=300":lambda:attention(z(1,2,9,300),z(1,2,9,300),z(1,2,9,300),select=sel,explain=True),
   "Dv=300":lambda:attention(z(1,2,9,64),z(1,2,9,64),z(1,2,9,300),select=sel,explain=True),
   "D=200+alibi":lambda:attention(z(1,2,9,200),z(1,2,9,200),z(1,2,9,200),alibi=z(2,dt=np.float32),select=sel,explain=True)[0].name,
   "D=64 softcap neg":lambda:attention(z(1,2,9,64),z(1,2,9,64),z(1,2,9,64),softcap=2.,scale=-1,select=sel,explain=True)[0].name,
   "f32":lambda:attention(*(z(1,2,9,64,dt=np.float32),)*3,select=sel,explain=True),
   "empty":lambda:attention(z(1,2,0,64),z(1,2,9,64),z(1,2,9,64),select=sel).shape,
   "empty explain":lambda:[e.name for e in attention(z(1,2,0,64),z(1,2,9,64),z(1,2,9,64),select=sel,explain=True)],
   "Dv 12":lambda:attention(z(1,2,9,64),z(1,2,9,64),z(1,2,9,12),select=sel,explain=True)[0].name,
   "bias big":lambda:attention(z(1,2,9,192),z(1,2,9,192),z(1,2,9,192),bias=z(9,9),alibi=z(2,dt=np.float32),select=sel,explain=True)[0].name,
  }.items():
    try: r=call()
    except StofError as e: r=type(e).__name__+": "+str(e)
    except Exception as e: r="!!! "+repr(e)
    print(sel,name,"->",str(r)[:330])
for bad in (None,0,"SM90",["sm90"],"auto",b"model",("model",)):
    try: attention(z(1,2,9,64),z(1,2,9,64),z(1,2,9,64),select=bad); print("!!",bad)
    except StofError as e: print(e)
for bad in (None,1,"yes",np.bool_(True)):
    try: print(bad,len(attention(z(1,2,9,64),z(1,2,9,64),z(1,2,9,64),explain=bad)))
    except StofError as e: print(e)
for e in attention(z(1,2,900,64),z(1,2,900,64),z(1,2,900,64),masks.causal(900),explain=True)[:4]: print(e)
