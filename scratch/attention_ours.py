import json, sys, time
sys.path[:0] = ["benchmarks"]
import attention_cells, device_time
from shapes import *
out = {}
t0 = time.time()
for shape in SMALL_ATTENTION:
    b, h, s, d = shape
    for name in ATTENTION_MASKS:
        cell = attention_cells.cell((b, h, h, s, s, d), name)
        m = device_time.ours(attention_cells.ours(cell), small=cell.small)
        m2 = device_time.ours(attention_cells.ours(cell), small=cell.small)
        out[f"{b}x{h}x{s}x{d}-{name}"] = min(m.p50, m2.p50)
json.dump(out, open(sys.argv[1], "w"))
print("ab", round(time.time() - t0), "s", flush=True)
