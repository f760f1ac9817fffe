"""Host time of a replayed run, on the fake CUDA."""
import os, sys, time, tempfile, cProfile, pstats
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
sys.path[:0] = [os.getcwd(), "benchmarks"]
from tests.runtime import fake_cuda, cuda_path
fake_cuda.install(cuda_path.H100)
import numpy as np, cupy
from stof_cupy import TransformerEngine, models
c = {**cuda_path.BERT}
e = TransformerEngine(models.random_weights(c), config=c, backend="cuda", dtype="bfloat16", cuda_graphs=True)
g = {**cuda_path.LLAMA}
l = TransformerEngine(models.random_weights(g), config=g, backend="cuda", dtype="bfloat16", cuda_graphs=True)
x = cupy.asarray(np.zeros((1, 128), np.int32))
for name, eng in (("bert", e), ("llama", l)):
    for mask in (None, "causal"):
        for _ in range(5): eng.run(x, mask=mask)
        t = time.perf_counter()
        for _ in range(300): eng.run(x, mask=mask)
        print(name, mask, "engine.run", (time.perf_counter() - t) / 300 * 1e6, "us")
inputs = {"ids": x, "token_types": x}
p = e._program
for _ in range(5): p.run(inputs)
t = time.perf_counter()
for _ in range(1000): p.run(inputs)
print("program.run", (time.perf_counter() - t) / 1000 * 1e6, "us")
pr = cProfile.Profile(); pr.enable()
for _ in range(1000): p.run(inputs)
pr.disable(); pstats.Stats(pr).sort_stats("tottime").print_stats(18)
