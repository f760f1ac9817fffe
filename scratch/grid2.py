"""engine_grid.py's cells on several GPUs at once: each process takes the next group (a stack and a size) that nobody has.

    CUDA_VISIBLE_DEVICES=1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton python3 scratch/grid2.py BUDGET_S COMMIT [SIZE ...]

Lines go to /tmp/engine_kept/engine_grid_h200.jsonl, which begins as benchmarks/results' file. Cells that have all ways are left out.
"""
import json, os, sys, time
from pathlib import Path

sys.path[:0] = [os.getcwd(), "benchmarks"]
began = time.time()
budget, commit, sizes = float(sys.argv[1]), sys.argv[2], sys.argv[3:] or ["16x2048", "8x512", "1x128", "1x8192"]
kept = Path("/tmp/engine_kept"); kept.mkdir(exist_ok=True)
out = kept / "engine_grid_h200.jsonl"
try:
    with open(out, "x") as f:
        there = Path("benchmarks/results/engine_grid_h200.jsonl")
        f.write(there.read_text() if there.exists() else "")
except FileExistsError:
    pass

import engine_grid as grid
from engine_stacks import ANCHORS, GRID
from engine_table import results, row
from stof_cupy.runtime import Options

WAYS = grid.WAYS


def lacking(cells):
    there = results(out)
    if os.environ.get("AGAIN"):  # what an older commit measured
        return [c for c in cells if there.get(str(c), {}).get("commit") != commit]
    return [c for c in cells if not set(WAYS) <= there.get(str(c), {}).get("known", set()) or "matmul_tflops" not in there[str(c)]]


groups = {}
for cell in dict.fromkeys([*ANCHORS, *GRID]):
    groups.setdefault(str(cell).rsplit(":", 1)[0], []).append(cell)
order = [g for size in sizes for g in groups if g == size or g.endswith(":" + size)]
for group in order:
    if time.time() - began > budget:
        break
    if not lacking(groups[group]):
        continue
    claim = kept / ("claim." + group.replace(":", "_"))
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        continue
    try:
        for cell in lacking(groups[group]):
            if time.time() - began > budget:
                break
            line = grid.run(cell, WAYS, Options(tune="fast", fold_norms=False), "cuda") | {"fold": False, "commit": commit}
            with out.open("a") as f:
                f.write(json.dumps(line) + "\n")
            cold = " ".join(f"{w}:{x.get('cold_s', 0):.0f}" for w, x in line["ways"].items())
            print(f"{time.time() - began:4.0f} s gpu {os.environ.get('CUDA_VISIBLE_DEVICES')}: {row(line)} cold {cold} {line['matmul_tflops']:.0f} TF", flush=True)
    finally:
        claim.unlink()
