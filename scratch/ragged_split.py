"""Where a packed run's time goes, the benchmark's batches: python scratch/ragged_split.py [bert-base]   (GPU, 40 s)

Per batch: tokens, padded, waited (p50), the recorded graph alone (one after a rest, in a row), host until the launch and after it. Then per operator.
"""
import os, sys, time
sys.path[:0] = [os.getcwd(), "benchmarks"]
import cupy, numpy as np
import bench_ragged
from bench_ragged import Runs
from stof_cupy.graph import cuda_recorder
from stof_cupy.runtime.documents import padded_tokens
model = sys.argv[1] if sys.argv[1:] else "bert-base"
print(cupy.cuda.runtime.getDeviceProperties(0)["name"], flush=True)
runs = Runs("cuda", model)
marks = {}
was = cuda_recorder._CudaRecording.replay
def replay(self):
    s = cupy.cuda.get_current_stream()
    marks["before"] = time.perf_counter(); marks["a"] = s.record(cupy.cuda.Event())
    was(self)
    marks["b"] = s.record(cupy.cuda.Event()); marks["after"] = time.perf_counter()
cuda_recorder._CudaRecording.replay = replay
wait = cupy.cuda.get_current_stream().synchronize
for batch in runs.batches * 6: runs("ours packed", batch); runs("ours padded", batch)
wait()
def p50(x): return float(np.median(x))
rows = {"ours packed": [], "ours padded": []}
for _ in range(12):
    for way in rows:
        for i, batch in enumerate(runs.batches):
            first = cupy.cuda.Event(); last = cupy.cuda.Event()
            t = time.perf_counter(); first.record()
            made = runs(way, batch)
            back = time.perf_counter(); last.record(); wait(); end = time.perf_counter()
            el = cupy.cuda.get_elapsed_time
            rows[way].append((i, (end - t) * 1e3, (marks["before"] - t) * 1e3, (back - t) * 1e3, el(first, marks["a"]), el(marks["a"], marks["b"]), el(marks["b"], last)))
            del made
for way, r in rows.items():
    a = np.array(r)
    print(way, "p50 waited", round(p50(a[:, 1]), 3), "host to launch", round(p50(a[:, 2]), 3), "host to return", round(p50(a[:, 3]), 3), "gpu before", round(p50(a[:, 4]), 3), "graph", round(p50(a[:, 5]), 3), "after", round(p50(a[:, 6]), 3))
    for i in range(len(runs.batches)):
        b = a[a[:, 0] == i]; n = int(runs.lengths[i].sum())
        print("   ", n, padded_tokens(n), *(round(p50(b[:, k]), 3) for k in range(1, 7)), flush=True)
packed = runs.engine._program.packed()
for name, program in (("packed", packed), ("padded", runs.engine._program)):
    out = []
    for key, entry in list(program._recordings._entries.items()):
        e = entry.recording
        a, b = cupy.cuda.Event(), cupy.cuda.Event(); wait()
        with e.turn():
            was(e); a.record()
            for _ in range(10): was(e)
            b.record()
        wait(); out.append(round(cupy.cuda.get_elapsed_time(a, b) / 10, 3))
    print(name, "graphs alone, in a row:", out, flush=True)
import json, tempfile
from collections import defaultdict
from torch.profiler import ProfilerActivity, profile
def kernels(call, count, title, lines=14):
    call(); wait()
    with profile(activities=[ProfilerActivity.CUDA]) as told:
        for _ in range(count): call(); wait()
    path = os.path.join(tempfile.mkdtemp(), "t.json"); told.export_chrome_trace(path)
    every = json.load(open(path))["traceEvents"]
    found = sorted((float(e["ts"]), float(e["dur"]), e) for e in every if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))if False else sorted(((float(e["ts"]), float(e["dur"]), e) for e in every if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=lambda x: x[:2])
    by = defaultdict(list)
    for s, d, e in found:
        n = e["name"].removeprefix("stof_"); n = n if len(n) < 100 else n[:66] + ".." + n[-30:]
        by[n, "x".join(map(str, e.get("args", {}).get("grid", ())))].append(d)
    size = len(found) // count
    spans = [found[(i + 1) * size - 1][0] + found[(i + 1) * size - 1][1] - found[i * size][0] for i in range(count)]
    print(title, "kernels", size, "span", round(float(np.median(spans))), "sum", round(sum(map(sum, by.values())) / count), "us")
    for (n, g), t in sorted(by.items(), key=lambda x: -sum(x[1]))[:lines]:
        print(f"   {sum(t) / count:8.1f} us, {len(t) / count:5.1f} x {np.median(t):7.1f}  grid {g:14} {n}", flush=True)
    return found[:size]
for i in (0, 5):
    batch = runs.batches[i]
    seq = kernels(lambda: runs("ours packed", batch), 5, f"packed {int(runs.lengths[i].sum())}")
    if i == 0: print("first and last:", [(e["name"][:40], round(d, 1)) for _, d, e in seq[:14]], [(e["name"][:40], round(d, 1)) for _, d, e in seq[-4:]])
kernels(lambda: runs("ours padded", runs.batches[0]), 5, "padded")
