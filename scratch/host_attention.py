"""Host time of ops with CuPy arrays on the emulated GPU: PYTHONPATH=$PWD python scratch/emulated_gpu.py scratch/host_attention.py [profile NAME]."""
import os, sys, tempfile, time
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
import numpy as np
import cupy
from stof_cupy import attention, attention_varlen, gemm, masks
from stof_cupy.ops.norm import layer_norm
import ml_dtypes

def arr(*shape, dtype=np.float16):
    return cupy.asarray(np.zeros(shape, dtype))

q = arr(1, 12, 512, 64)
q1 = arr(1, 12, 1, 64)
causal = masks.causal(512)
window = masks.sliding_window(512, window=64).tobsr()
stack = masks.stack([window] * 12)
out = arr(1, 12, 512, 64)
p = arr(512, 12, 64)
a, b, bias = arr(512, 768), arr(768, 768), arr(768)
alibi = cupy.asarray(np.ones(12, np.float32))
lens = cupy.asarray(np.array([300]))
x = arr(512, 768); w = arr(768)
CASES = {
    "none": lambda: attention(q, q, q),
    "pattern": lambda: attention(q, q, q, causal),
    "bsr": lambda: attention(q, q, q, window),
    "bsr sm80": lambda: attention(q, q, q, window, select="sm80"),
    "stack": lambda: attention(q, q, q, stack),
    "lse out": lambda: attention(q, q, q, window, return_lse=True, out=out),
    "alibi": lambda: attention(q, q, q, window, alibi=alibi),
    "lengths": lambda: attention(q, q, q, window, kv_lengths=lens),
    "decode": lambda: attention(q1, q, q),
    "varlen": lambda: attention_varlen(p, p, p, [100, 200, 212], causal=True),
    "gemm": lambda: gemm(a, b),
    "gemm bias gelu": lambda: gemm(a, b, bias=bias, activation="gelu"),
    "layer_norm": lambda: layer_norm(x, w, w),
}

def timed(call, n=200):
    for _ in range(4): call()
    best = 1e9
    for _ in range(9):
        t = time.process_time()
        for _ in range(n): call()
        best = min(best, (time.process_time() - t) / n)
    return best * 1e6

if len(sys.argv) > 2:
    import cProfile, pstats
    call = CASES[sys.argv[2]]
    for _ in range(5): call()
    pr = cProfile.Profile(); pr.enable()
    for _ in range(1000): call()
    pr.disable()
    pstats.Stats(pr).sort_stats("tottime").print_stats(45)
else:
    for name, call in CASES.items():
        try:
            print(f"{name:16} {timed(call):8.1f} us", flush=True)
        except Exception as e:
            print(name, type(e), e)
