"""Host time of a packed run by function on the GPU's machine, us, medians: python scratch/host_gpu.py [bert-base]"""
import importlib, os, sys, time
from collections import defaultdict
sys.path[:0] = [os.getcwd(), "benchmarks"]
import cupy, numpy as np
from bench_ragged import Runs
runs = Runs("cuda", sys.argv[1] if sys.argv[1:] else "bert-base")
wait = cupy.cuda.get_current_stream().synchronize
for batch in runs.batches * 6: runs("ours packed", batch)
wait()
took, order = defaultdict(list), []
def plain(n=6):
    out = []
    for _ in range(n):
        for batch in runs.batches:
            t = time.perf_counter(); made = runs("ours packed", batch); e = time.perf_counter(); wait(); out.append((e - t) * 1e6)
    return round(float(np.median(out)))
print("to return, nothing wrapped", plain())
clock = time.perf_counter
N = 20000
x = runs.batches[0][0]
t = clock(); [len(a) for _ in range(300) for a in x]; a1 = (clock() - t) / 300 * 1e6
t = clock(); [a.data.ptr for _ in range(300) for a in x]; a2 = (clock() - t) / 300 * 1e6
t = clock(); [a.strides[0] for _ in range(300) for a in x]; a3 = (clock() - t) / 300 * 1e6
t = clock(); [a.device.id for _ in range(300) for a in x]; a4 = (clock() - t) / 300 * 1e6
t = clock(); [a.dtype for _ in range(300) for a in x]; a5 = (clock() - t) / 300 * 1e6
t = clock(); [a.ndim for _ in range(300) for a in x]; a6 = (clock() - t) / 300 * 1e6
t = clock(); s = 0
for i in range(1000000): s += i
a7 = (clock() - t) * 1e3
print("64 arrays, us: len", round(a1, 1), "ptr", round(a2, 1), "strides", round(a3, 1), "device", round(a4, 1), "dtype", round(a5, 1), "ndim", round(a6, 1), "; a million additions", round(a7), "ms")
def wrap(owner, name, label):
    function = getattr(owner, name)
    def call(*a, **k):
        t = clock()
        try: return function(*a, **k)
        finally: took[label].append((clock() - t) * 1e6)
    setattr(owner, name, call)
for where, names in (("stof_cupy.engine", "is_list run_list"), ("stof_cupy.models.lists", "cupy_origins _near _imported _tokens _types _packed_inputs _exported integers"),
                     ("stof_cupy.runtime.documents", "lengths_of PackedArrays"), ("stof_cupy.runtime.packed_arrays", "pack"), ("stof_cupy.runtime.packed_arrays:PackedArrays", "write look"), ("stof_cupy.runtime.program", "sizes_of"), ("stof_cupy.runtime.documents:PackedProgram", "run _documents _mask"),
                     ("stof_cupy.ops.packing:Table", "__init__ add add_counted launch numbers _place_each"), ("stof_cupy.runtime.program:Program", "_run _for"), ("stof_cupy.graph.recorder:Recordings", "run _find"),
                     ("stof_cupy.graph.cuda_recorder:_CudaRecording", "replay"), ("stof_cupy.jit.launch:Kernel", "__call__ pack"), ("cupy", "asarray empty"), ("cupy.cuda.stream:_BaseStream", "record wait_event"), ("stof_cupy.graph.recorder", "copied")):
    module, _, of = where.partition(":")
    owner = importlib.import_module(module); owner = getattr(owner, of) if of else owner
    for name in names.split():
        if hasattr(owner, name):
            try: wrap(owner, name, f"{of or module.split('.')[-1]}.{name}")
            except Exception as e: print("not", where, name, e)
print("to return, wrapped", plain())
took.clear(); R = 10 * len(runs.batches); plain(10)
for name, times in took.items():
    per = round(len(times) / R, 2)
    print(f"{name:34} {per:5} calls: {sum(sorted(times)[: int(len(times) * .9)]) / max(int(R * .9), 1):7.1f} us a run")
