"""Host time of a packed run of 64 sequences of 10 to 512 tokens, on the fake CUDA."""
import os, sys, time, tempfile, cProfile, pstats
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
sys.path[:0] = [os.getcwd(), "benchmarks"]
from tests.runtime import fake_cuda, cuda_path
fake_cuda.install(cuda_path.H100)
import numpy as np, cupy
from stof_cupy import TransformerEngine, models
c = {**cuda_path.BERT, "num_hidden_layers": 6}
e = TransformerEngine(models.random_weights(c), config=c, backend="cuda", dtype="bfloat16", cuda_graphs=bool(os.environ.get("G")))
r = np.random.default_rng(0)
def batch():
    return [cupy.asarray(r.integers(0, 50, n).astype(np.int32)) for n in r.integers(10, 513, 64)]
for _ in range(90): e.run(batch())
bs = [batch() for _ in range(10)]
t = time.perf_counter()
for b in bs: e.run(b)
print("new lengths", (time.perf_counter() - t) / 10 * 1e3, "ms")
t = time.perf_counter()
for _ in range(10): e.run(bs[0])
print("same lengths", (time.perf_counter() - t) / 10 * 1e3, "ms")
bs = [batch() for _ in range(10)]
sys.exit() if not os.environ.get('P') else None
pr = cProfile.Profile(); pr.enable()
for b in bs: e.run(b)
pr.disable(); pstats.Stats(pr).sort_stats("cumtime").print_stats(45)
