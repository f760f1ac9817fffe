"""Host time of a BERT call of 12 layers on the fake CUDA: PYTHONPATH=. python scratch/host_time.py (40 s)."""
import os, sys, tempfile, time
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
import numpy as np
from tests.runtime import fake_cuda, cuda_path
fake_cuda.install(cuda_path.H100)
import cupy
from stof_cupy import TransformerEngine, models, masks
config = {**cuda_path.BERT, "num_hidden_layers": 12}
weights = models.random_weights(config)
cuda_path.recorded_ahead()

def timed(call, n):
    for _ in range(4): call()
    best = 1e9
    for _ in range(5):
        fake_cuda.LOG.clear()
        t = time.perf_counter()
        for _ in range(n): call()
        best = min(best, (time.perf_counter() - t) / n)
    return best * 1e6

def lists(engine):
    rng = np.random.default_rng(0)
    xs = [[cupy.asarray(np.zeros(n, np.int64)) for n in rng.multinomial(1000, np.ones(9) / 9)] for _ in range(8)]
    it = iter(range(10**9))
    return lambda: engine.run(xs[next(it) % 8])

x = cupy.asarray(np.zeros((2, 64), np.int64))
window = masks.sliding_window(64, window=8).tobsr()
stack = masks.stack([window, masks.causal(64).tobsr()])
for graphs in (True, False):
    engine = TransformerEngine(weights, config=config, backend="cuda", dtype="bfloat16", cuda_graphs=graphs)
    cases = {"none": {}, "lengths": {"lengths": cupy.asarray(np.array([64, 9]))}, "spec": {"mask": "sliding:w=8"}, "bsr": {"mask": window}, "stack": {"mask": stack}}
    for name, how in cases.items():
        print(f"graphs={graphs!s:5} {name:8} {timed(lambda: engine.run(x, **how), 60 if graphs else 8):9.1f} us", flush=True)
    print(f"graphs={graphs!s:5} lists    {timed(lists(engine), 30 if graphs else 8):9.1f} us", flush=True)
engine = TransformerEngine(weights, config=config, backend="numpy")
t = time.perf_counter(); engine.run(np.zeros((1, 8), int)); print("first numpy", time.perf_counter() - t)
n = np.zeros((1, 8), int)
w = masks.sliding_window(8, window=2).tobsr()
print(f"numpy none {timed(lambda: engine.run(n), 20):9.1f} us, bsr {timed(lambda: engine.run(n, mask=w), 20):9.1f} us")
