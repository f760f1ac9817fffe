"""Host time of engine.run(64 CuPy arrays of other lengths) up to the graph, with CuPy's own ndarray and no GPU.

    OMP_NUM_THREADS=1 PYTHONPATH=$PWD nice -n 19 /tmp/venv/bin/python scratch/host_lists.py [profile] [int64]

CUDA does nothing; what CuPy would compute or copy (max, copies, uploads, memory) is taken off and counted: `asked`.
"""
import ctypes, dataclasses, os, subprocess, sys, tempfile, time
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
import numpy as np
import cupy
from cupy.cuda import MemoryPointer, UnownedMemory
PROFILE = "profile" in sys.argv
DTYPE = np.int64 if "int64" in sys.argv else np.int32
where = tempfile.mkdtemp()
open(f"{where}/c.c", "w").write("int cuLaunchKernelEx(void*a,void*b,void*c,void*d){return 0;} int cuTensorMapEncodeTiled(){return 0;}")
subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", f"{where}/libfake.so", f"{where}/c.c"], check=True)
FAKE = ctypes.CDLL(f"{where}/libfake.so")
ROOM = np.zeros(512 << 20, np.uint8)
BASE = -(-ROOM.ctypes.data // 512) * 512
MEM = UnownedMemory(BASE, (512 << 20) - 512, ROOM, 0)
AT = [1 << 26]
spent, depth, ASKED = [0.0], [0], []
def off(name, function):
    def call(*args, **how):
        depth[0] += 1
        start = time.perf_counter()
        try:
            if depth[0] == 1: ASKED.append(name)
            return function(*args, **how)
        finally:
            depth[0] -= 1
            if not depth[0]:
                spent[0] += time.perf_counter() - start
    return call
class Pointer(MemoryPointer):
    def copy_from_device_async(self, *a): ASKED.append('d2d')
    def copy_from_host_async(self, *a): ASKED.append('h2d')
    def memset_async(self, value, size, stream=None): ASKED.append("memset")
    def __add__(self, n): return Pointer(MEM, self.ptr - MEM.ptr + n)
def at(size):
    if AT[0] + size > (500 << 20): AT[0] = 1 << 26
    p = Pointer(MEM, AT[0]); AT[0] += -(-size // 512) * 512
    return p
def empty(shape, dtype=float, order="C"):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    return cupy.ndarray(shape, dtype, at(int(np.prod(shape)) * dtype.itemsize))
def host(a):
    raw = (ctypes.c_char * max(a.nbytes, 1)).from_address(a.data.ptr)
    return np.ndarray(a.shape, a.dtype, raw, 0, a.strides)
def own(x, dtype=None):
    if isinstance(x, cupy.ndarray): return x if dtype is None or x.dtype == dtype else own(host(x).astype(dtype))
    x = np.asarray(x, dtype); made = empty(x.shape, x.dtype)
    if x.size: host(made)[...] = x
    return made
class Device:
    def __init__(self, n=0): self.id = 0 if n is None else n
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def use(self): pass
class Event:
    done = True
    def __init__(self, *a, **k): pass
    def synchronize(self): pass
    def record(self, s=None): pass
class Stream:
    ptr = 0
    capturing = False
    def __init__(self, *a, **k): pass
    def is_capturing(self): return self.capturing
    def synchronize(self): pass
    def record(self, e=None): ASKED.append("record"); return Event()
    def wait_event(self, e): ASKED.append("wait")
    def begin_capture(self, mode=None): self.capturing = True
    def end_capture(self): self.capturing = False; return Graph()
    def __enter__(self): CUR.append(self); return self
    def __exit__(self, *_): CUR.pop()
    def use(self): return self
LAUNCHED = []
class Graph:
    def launch(self, stream=None): LAUNCHED.append((time.perf_counter(), spent[0], len(ASKED)))
    def upload(self, stream=None): pass
CUR = [Stream()]
class Pool:
    def malloc(self, n): return at(n)
    def total_bytes(self): return 0
    def free_all_blocks(self): pass
class Nothing:
    def __enter__(self): pass
    def __exit__(self, *_): pass
cupy.cuda.Device, cupy.cuda.Stream, cupy.cuda.Event, cupy.cuda.MemoryPool = Device, Stream, Event, Pool
cupy.cuda.get_current_stream = lambda *a: CUR[-1]
cupy.cuda.runtime.getDevice = lambda: 0
cupy.cuda.runtime.getDeviceCount = lambda: 1
cupy.cuda.using_allocator = lambda a=None: Nothing()
cupy.cuda.alloc_pinned_memory = off("pinned", lambda n: bytearray(n))
cupy.cuda.alloc = at
cupy.empty = off("empty", empty)
cupy.zeros = lambda s, d=float: own(np.zeros(s, d))
cupy.asarray = off("asarray", own)
def contiguous(x, dtype=None): return own(x, dtype)
cupy.ascontiguousarray = contiguous
N = cupy.ndarray
N.copy = off("copy", lambda s, order="C": empty(s.shape, s.dtype))
N.get = off("get", lambda s, out=None, blocking=True, **k: host(s).copy() if out is None else out.__setitem__(..., host(s)))
N.max = off("max", lambda s, **k: own(np.zeros((), s.dtype)))
N.__setitem__ = off("setitem", lambda s, k, v: None)
N.fill = off("fill", lambda s, v: None)

from stof_cupy.jit import dependent, device, launch, tensormap, clusters
from tests.runtime.cuda_path import H100, BERT, recorded_ahead
FACTS = dataclasses.replace(H100, driver=13000)
device._facts = lambda n: FACTS
dependent._launcher = lambda: FAKE.cuLaunchKernelEx
tensormap._encoder = lambda: FAKE.cuTensorMapEncodeTiled
clusters.active_clusters = lambda kernel, device, sm_count: max(1, sm_count // kernel.spec.cluster)
from stof_cupy.ops import gemm_sm90
gemm_sm90.active_clusters = clusters.active_clusters
class F: ptr = 1
def load(spec, n):
    function = off(spec.name.split("<")[0], lambda grid, block, args, shared_mem=0: None)
    function.ptr = 1
    return launch.Kernel(spec, function)
launch._load = load
recorded_ahead()
from stof_cupy import TransformerEngine, models
from stof_cupy.masks.device import mask as device_mask
# Masks of documents are built by the stand-in of nothing: what a launch left out made is not read.
engine = TransformerEngine(models.random_weights(BERT), config=BERT, backend="cuda", dtype="bfloat16", cuda_graphs=True)
rng = np.random.default_rng(0)
lists = [rng.multinomial(16_500, np.ones(64) / 64) for _ in range(50)]  # others each time, one number when padded
if "same" in sys.argv: lists = lists[:1] * 50
xs = [[own(np.zeros(k, DTYPE)) for k in n] for n in lists]
for x in xs: engine.run(x)
def once(x):
    LAUNCHED.clear(); ASKED.clear()
    t, s = time.perf_counter(), spent[0]
    engine.run(x)
    e, f = time.perf_counter(), spent[0]
    at, of, asked = LAUNCHED[0]
    return (at - t - (of - s)) * 1e6, (e - t - (f - s)) * 1e6, asked
if "parts" in sys.argv:  # inclusive times of functions, the least of all runs, without what is taken off
    import importlib
    from collections import defaultdict
    took = defaultdict(list)
    def part(owner, name):
        function = getattr(owner, name)
        def call(*a, **k):
            t, s = time.perf_counter(), spent[0]
            try: return function(*a, **k)
            finally: took[name].append((time.perf_counter() - t - (spent[0] - s)) * 1e6)
        setattr(owner, name, staticmethod(call) if "." in getattr(owner, "__module__", "") and False else call)
    for where, names in (("stof_cupy.engine", "is_list can_be_packed run_list"), ("stof_cupy.models.lists", "cupy_origins _near _imported _tokens _types packed_mask _packed_inputs _exported integers"),
                         ("stof_cupy.runtime.documents", "lengths_of PackedArrays on_device is_capturing"), ("stof_cupy.runtime.packed_arrays", "pack"), ("stof_cupy.runtime.packed_arrays:PackedArrays", "write look"), ("stof_cupy.ops.packing", "packing"), ("stof_cupy.runtime.program", "sizes_of shapes_class stays where is_capturing dtype_name on_device"), ("stof_cupy.runtime.packing:Sequences", "alike"), ("stof_cupy.runtime.documents:PackedProgram", "run _documents _mask"),
                         ("stof_cupy.ops.packing:Table", "__init__ add add_counted launch numbers _place_each _place_together"), ("stof_cupy.runtime.program:Program", "_run _for _writes _open"), ("stof_cupy.graph.recorder:Recordings", "run")):
        module, _, of = where.partition(":")
        owner = importlib.import_module(module)
        owner = getattr(owner, of) if of else owner
        for name in names.split():
            if not hasattr(owner, name): continue
            function = getattr(owner, name)
            def wrapped(function=function, label=f"{of or module.split('.')[-1]}.{name}"):
                def call(*a, **k):
                    t, s = time.perf_counter(), spent[0]
                    try: return function(*a, **k)
                    finally: took[label].append((time.perf_counter() - t - (spent[0] - s)) * 1e6)
                return call
            setattr(owner, name, wrapped())
    for _ in range(20):
        for x in xs: engine.run(x)
    for name, times in took.items():
        per = len(times) // (20 * len(xs))
        each = np.array(times).reshape(-1, per).sum(1)
        print(f"{name:34} {per} calls: {each.min():7.1f} us, median {np.median(each):7.1f}")
elif PROFILE:
    import cProfile, pstats
    p = cProfile.Profile(); p.enable()
    for _ in range(20):
        for x in xs: engine.run(x)
    p.disable()
    pstats.Stats(p).sort_stats("tottime").print_stats(60)
else:
    every = [once(x) for _ in range(20) for x in xs]
    up, whole = np.array([e[0] for e in every]), np.array([e[1] for e in every])
    print(f"to the graph {up.min():.0f} us (median {np.median(up):.0f}), whole {whole.min():.0f} us (median {np.median(whole):.0f}); asked before: {' '.join(ASKED[:every[-1][2]])}")
