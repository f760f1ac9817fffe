import time, numpy as np, cupy as cp, cProfile, pstats
from stof_cupy import attention, masks
import emulated_gpu
emulated_gpu.ndarray.__array_function__ = lambda self, func, types, args, kwargs: getattr(cp, func.__name__)(*args, **kwargs)
q=[cp.asarray(np.zeros((1,12,512,64),np.float16)) for _ in range(64)]
m=masks.causal(512).tobsr()
for sel in ("sm80","sm90","sm80","sm90"):
    for i in range(50): attention(q[i%8],q[i%8],q[i%8],m,select=sel,out=None)
    t=time.perf_counter()
    for i in range(400): attention(q[i%64],q[(i+1)%64],q[(i+2)%64],m,select=sel)
    print(sel,(time.perf_counter()-t)/400*1e6,"us a call")
p=cProfile.Profile(); p.enable()
for i in range(400): attention(q[i%64],q[(i+1)%64],q[(i+2)%64],m,select="sm90")
p.disable(); pstats.Stats(p).sort_stats("cumtime").print_stats(22)
