"""Which cells of bench_gemm choose otherwise once close ways are told apart alone: python scratch/alone.py KIND [...]   (GPU; 60 s a kind)"""
import os, sys, time, json
sys.path[:0] = [os.getcwd(), "benchmarks"]
import cupy
import gemm_cells
from stof_cupy.jit.device import facts
from stof_cupy.ops import gemm_choice, gemm_timing
from stof_cupy.ops.gemm_sm90 import Layout
end = time.time() + float(os.environ.get("LIMIT", "300")) - 20
turn = {}
was_turn, was_alone = gemm_timing.in_turn_us, gemm_timing.alone_us
def in_turn(runs):
    times = was_turn(runs); turn["last"] = times; return times
def alone(runs, nbytes):
    times = was_alone(runs, nbytes); turn["alone"] = times; return times
gemm_timing.in_turn_us, gemm_timing.alone_us = in_turn, alone
cells = [(kind, s) for kind in sys.argv[1:] for s in gemm_cells.shapes(kind) if s[0] >= 512 and 2 * (s[0] * s[2] + s[1] * s[2] + s[0] * s[1]) > 29 << 20]
t = time.time(); gemm_cells.compile_all(cells); print(len(cells), "cells, compiled in", round(time.time() - t), "s", flush=True)
changed = []
for kind, shape in sorted(cells, key=lambda c: c[1][0]):
    if time.time() > end: print("out of time at", kind, shape); break
    turn.clear(); t = time.time()
    problem = gemm_cells.problem_of(kind, shape)
    times = (gemm_timing.measure_norm if kind == "layer_norm" else gemm_timing.measure)(problem, again=True)
    names = list(times); by_turn = dict(zip(names, turn["last"]))
    first = min(by_turn, key=by_turn.get); now = min(times, key=times.get)
    close = [n for n in names if by_turn[n] <= 1.06 * by_turn[first]]
    al = dict(zip(close, turn.get("alone", [])))
    mark = "" if first == now or not al else "CHANGED"
    if mark: changed.append([kind, shape, round(al[first] / al[now], 3)])
    if kind == "layer_norm": chosen = gemm_choice.norm(problem, Layout(), facts())
    else: chosen = gemm_choice.choices(problem, Layout(), facts())[0]
    print(kind, shape, mark, "chosen", gemm_choice.name_of(chosen), {n: (round(by_turn[n], 1), round(al.get(n, 0), 1)) for n in close}, f"{time.time() - t:.1f} s", flush=True)
    cupy.get_default_memory_pool().free_all_blocks()
print("changed", json.dumps(changed))
