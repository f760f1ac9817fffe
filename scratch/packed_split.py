"""Where a packed run's time goes: python scratch/packed_split.py   (25 s; GPU). Waited for each time, many in a row, the recorded graph alone, the host's functions."""
import os, sys, time, cProfile, pstats, io
sys.path.insert(0, os.getcwd()); sys.path.insert(0, "scratch")
import cupy, numpy as np
from ragged import config, p50
from stof_cupy import TransformerEngine, models
rng = np.random.default_rng(0)
def alone(entry, n=30):
    a, b = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(3): entry.recording.replay()
    a.record()
    for _ in range(n): entry.recording.replay()
    b.record(); b.synchronize()
    return cupy.cuda.get_elapsed_time(a, b) / n
def row(call, n=30):
    for _ in range(3): call()
    cupy.cuda.Device().synchronize(); t = time.perf_counter()
    for _ in range(n): call()
    host = time.perf_counter() - t; cupy.cuda.Device().synchronize()
    return host / n * 1e3, (time.perf_counter() - t) / n * 1e3
for name, c in (("minilm", config(6, 384, 12, 1536)), ("bert-base", config(12, 768, 12, 3072))):
    e = TransformerEngine(models.random_weights(c), config=c, backend="cuda", dtype="bfloat16")
    n = rng.integers(10, 513, 64)
    seqs = [cupy.asarray(rng.integers(0, 30522, k, dtype=np.int32)) for k in n]
    hosts = [s.get() for s in seqs]
    whole = cupy.zeros((64, 512), np.int32)
    for i, q in enumerate(seqs): whole[i, : len(q)] = q
    lengths = cupy.asarray(n.astype(np.int32))
    one = cupy.asarray(rng.integers(0, 30522, (1, 128), dtype=np.int32))
    ways = {"packed": lambda: e.run(seqs), "packed from the host": lambda: e.run(hosts), "padded": lambda: e.run(whole, lengths=lengths), "1x128": lambda: e.run(one)}
    for what, call in ways.items():
        for _ in range(5): call()
        waited = p50([call]); host, each = row(call)
        program = e._program.packed() if what.startswith("packed") else e._program
        entry = list(program._recordings._entries.values())[-1]
        print(f"{name:10} {what:22} waited {waited:.3f} ms; host {host:.3f}, in a row {each:.3f}; graph alone {alone(entry):.3f} ms ({len(n)} sequences, {n.sum()} tokens)", flush=True)
    if name == "minilm":
        for what in ("packed", "1x128"):
            p = cProfile.Profile(); p.enable()
            for _ in range(30): ways[what]()
            p.disable(); cupy.cuda.Device().synchronize()
            text = io.StringIO(); pstats.Stats(p, stream=text).sort_stats("tottime").print_stats(28)
            print(what, "\n".join(line[:120] for line in text.getvalue().splitlines() if line.strip())[:4200], flush=True)
    e.close()
