"""Host time of operators with CuPy's own ndarray, without a GPU: kernels are launched through ctypes in a libcuda that does nothing.

    OMP_NUM_THREADS=1 PYTHONPATH=$PWD python scratch/host_real.py [profile NAME]

What is not CuPy's: cupy.empty (memory that is not from a pool), Device as a context, streams, the driver.
"""
import ctypes, dataclasses, os, subprocess, sys, tempfile, time
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
import numpy as np
import cupy
from cupy.cuda import MemoryPointer, UnownedMemory

where = tempfile.mkdtemp()
open(f"{where}/c.c", "w").write("int cuLaunchKernelEx(void*a,void*b,void*c,void*d){return 0;} int cuTensorMapEncodeTiled(){return 0;}")
subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", f"{where}/libfake.so", f"{where}/c.c"], check=True)
FAKE = ctypes.CDLL(f"{where}/libfake.so")
ROOM = np.zeros(64 << 20, np.uint8)
BASE = -(-ROOM.ctypes.data // 512) * 512
MEM = UnownedMemory(BASE, 63 << 20, ROOM, 0)
AT = [0]

def empty(shape, dtype=float, order="C"):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return cupy.ndarray(shape, dtype, MemoryPointer(MEM, 0))

def arr(*shape, dtype=np.float16):
    at = AT[0]
    AT[0] = at + -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 512) * 512
    assert AT[0] < 32 << 20
    return cupy.ndarray(shape, dtype, MemoryPointer(MEM, at))

RealDevice = cupy.cuda.Device
class Device:
    id = 0
    def __init__(self, n=0): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
class Stream:
    ptr = 0
    def is_capturing(self): return False
    def synchronize(self): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
STREAM = Stream()
cupy.cuda.Device = Device
cupy.cuda.get_current_stream = lambda *a: STREAM
cupy.cuda.Stream = lambda **k: STREAM
cupy.empty = empty
cupy.zeros = empty
cupy.cuda.runtime.getDevice = lambda: 0
cupy.cuda.using_allocator = lambda a=None: STREAM
def asarray(x, dtype=None):
    return x if isinstance(x, cupy.ndarray) else arr(*x.shape, dtype=x.dtype)
cupy.asarray = asarray
cupy.ascontiguousarray = lambda x, dtype=None: x

from stof_cupy.jit import dependent, device, launch, tensormap, clusters
from tests.runtime.cuda_path import H100
FACTS = dataclasses.replace(H100, driver=13000)
device._facts = lambda n: FACTS
dependent._launcher = lambda: FAKE.cuLaunchKernelEx
tensormap._encoder = lambda: FAKE.cuTensorMapEncodeTiled
clusters.active_clusters = lambda kernel, device, sm_count: max(1, sm_count // kernel.spec.cluster)
from stof_cupy.ops import gemm_sm90
gemm_sm90.active_clusters = clusters.active_clusters
class F: ptr = 1
launch._load = lambda spec, n: launch.Kernel(spec, dependent.DependentLaunch(F()))

from stof_cupy import attention, attention_varlen, gemm, masks
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.norm import layer_norm

q = arr(1, 12, 512, 64)
q1 = arr(1, 12, 1, 64)
causal = masks.causal(512)
window = masks.sliding_window(512, window=64).tobsr()
stack = masks.stack([window, causal.tobsr()] * 6)
out = arr(1, 12, 512, 64)
p = arr(512, 12, 64)
a, b, bias = arr(512, 768), arr(768, 768), arr(768)
few = arr(4, 768)
alibi = arr(12, dtype=np.float32)
w = arr(768)
scattered = masks.BsrMask(np.random.default_rng(0).random((512, 512)) < 0.001)
CASES = {
    "none": lambda: attention(q, q, q),
    "pattern": lambda: attention(q, q, q, causal),
    "bsr": lambda: attention(q, q, q, window),
    "bsr sm80": lambda: attention(q, q, q, window, select="sm80"),
    "rowwise": lambda: attention(q, q, q, scattered),
    "stack": lambda: attention(q, q, q, stack),
    "lse out": lambda: attention(q, q, q, window, return_lse=True, out=out),
    "alibi": lambda: attention(q, q, q, window, alibi=alibi),
    "decode": lambda: attention(q1, q, q),
    "varlen": lambda: attention_varlen(p, p, p, [100, 200, 212], causal=True),
    "gemm": lambda: gemm(a, b),
    "gemm bias gelu": lambda: gemm(a, b.T, epilogue=Epilogue(bias=bias, activation="gelu")),
    "gemm few": lambda: gemm(few, b.T),
    "layer_norm": lambda: layer_norm(a, w, w, eps=1e-5),
}

def timed(call, n=200):
    for _ in range(20): call()
    best = 1e9
    for _ in range(15):
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
