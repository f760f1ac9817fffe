"""Host time of a packed run of 64 sequences on the fake CUDA, of a checkout of any commit: PYTHONPATH=. python /tmp/sP/scratch/host_packed.py (20 s).

What the fake computes in the place of CuPy's operations and kernels is taken off; what is left is this package's Python and NumPy.
"""
import ctypes, os, sys, tempfile, time
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
import numpy as np
from tests.runtime import cuda_path, fake_cuda

spent, depth = [0.0], [0]
def off(function):
    """Return a function of the fake whose time is taken off."""
    def call(*args, **how):
        depth[0] += 1
        start = time.perf_counter()
        try:
            return function(*args, **how)
        finally:
            depth[0] -= 1
            if not depth[0]:
                spent[0] += time.perf_counter() - start
    return call

def packed(grid, params):  # zeros will do
    count = int(params["sequences"])
    words = np.frombuffer((ctypes.c_int64 * (count + grid[1] * (3 + 2 * count))).from_address(int(params["table"])), np.int64)
    for column in words[count:].reshape(grid[1], -1):
        ctypes.memset(int(column[0]), 0, int(params["size"]) * 4)

made_of = fake_cuda._made_of
fake_cuda._made_of = lambda name: off(made_of(name))
fake_cuda.packed = off(packed)
for name in ("empty", "asarray", "ascontiguousarray", "_computed"):
    setattr(fake_cuda, name, off(getattr(fake_cuda, name)))
for name in ("copy", "__setitem__", "get", "astype"):
    setattr(fake_cuda.ndarray, name, off(getattr(fake_cuda.ndarray, name)))
fake_cuda.install(cuda_path.H100)
import cupy
from stof_cupy import TransformerEngine, models
cuda_path.recorded_ahead()
engine = TransformerEngine(models.random_weights(cuda_path.BERT), config=cuda_path.BERT, backend="cuda", dtype="bfloat16", cuda_graphs=True)
rng = np.random.default_rng(0)
lists = [rng.multinomial(16_500, np.ones(64) / 64) for _ in range(50)]  # others each time, of one number when padded
cases = {"int32 there": (np.int32, True), "int64 there": (np.int64, True), "int64 here": (np.int64, False)}
at = []
launch = fake_cuda.Graph.launch
def noted(self, stream=None):
    at.append((time.perf_counter(), spent[0]))
    launch(self, stream)
fake_cuda.Graph.launch = noted
for name, (dtype, there) in cases.items():
    xs = [[cupy.asarray(np.zeros(k, dtype)) if there else np.zeros(k, dtype) for k in n] for n in lists]
    for x in xs: engine.run(x)
    to_graph, whole = [], []
    for turn in range(6):
        for x in xs:
            fake_cuda.LOG.clear()
            at.clear()
            begun = time.perf_counter(), spent[0]
            engine.run(x)
            end = time.perf_counter(), spent[0]
            to_graph.append(at[0][0] - begun[0] - (at[0][1] - begun[1]))
            whole.append(end[0] - begun[0] - (end[1] - begun[1]))
    asked = [" ".join(e) for e in fake_cuda.LOG if e[0] != "event"]
    asked = asked[: asked.index("graph launch")]
    print(f"{name:12} to the graph {np.min(to_graph) * 1e3:.3f} ms, whole {np.min(whole) * 1e3:.3f} ms; {len(asked)} before the graph: {', '.join(asked)}", flush=True)
