"""Does the fastest way of a product stay the fastest when the card is at its power limit?   One GPU, 60 to 90 s.

    PYTHONPATH=$PWD python3 scratch/under_load.py [out.json]

Each way that may be the fastest is timed at rest (after 0.4 s of nothing, 3 ms of work) and under load (the last half of 0.5 s of nothing else). bf16, random normal.
"""
import json, os, statistics, subprocess, sys, time
import cupy
from stof_cupy.jit import device
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops import gemm, gemm_choice, gemm_timing
from stof_cupy.ops.attention_timing import _graph
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout

KINDS = {
    "plain": EpilogueKind(), "bias": EpilogueKind(bias=True), "gelu": EpilogueKind(bias=True, activation="gelu"), "tanh": EpilogueKind(bias=True, activation="gelu_tanh"),
    "residual": EpilogueKind(bias=True, residual=True), "swiglu": EpilogueKind(activation="silu", gated=True), "fold": EpilogueKind(normed=True, bias=True, activation="gelu_tanh"),
}
SHAPES = [  # columns are of the output
    ("plain", 8192, 8192, 8192), ("fold", 4096, 4096, 4096), ("bias", 32768, 2304, 768), ("residual", 32768, 768, 768), ("gelu", 32768, 3072, 768), ("tanh", 32768, 3072, 768), ("residual", 32768, 768, 3072),
    ("swiglu", 32768, 8192, 2048), ("plain", 32768, 2048, 8192), ("plain", 32768, 3072, 2048), ("gelu", 32768, 4096, 1024), ("residual", 32768, 1024, 4096),
]


def timed(graph, count, stream, seconds):
    """us of one, the median over the second half of `seconds`."""
    pairs, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds:
        pair = cupy.cuda.Event(), cupy.cuda.Event()
        pair[0].record(stream); graph.launch(stream); pair[1].record(stream)
        pairs.append(pair)
        if len(pairs) > 3:
            pairs[-3][1].synchronize()
    stream.synchronize()
    us = [1e3 * cupy.cuda.get_elapsed_time(*p) / count for p in pairs]
    return statistics.median(us[len(us) // 2:])


def main():
    facts, lines = device.facts(), []
    for kind, m, n, k in SHAPES:
        problem = Problem("bfloat16", m, n, k, KINDS[kind])
        sets, operands = gemm_timing._sets(problem, Layout()), gemm.operands_of(gemm_timing._epilogue(problem))
        found = []
        for choice in gemm_timing.to_time(problem, Layout(), facts):
            made = [gemm.prepared(choice, problem, a, b, out, operands) for a, b, out in sets]
            if any(run is None for run in made):
                continue
            run = gemm_timing._turns(made)
            with cupy.cuda.Stream(non_blocking=True) as stream:
                run(); stream.synchronize()
                start = time.perf_counter(); run(); stream.synchronize()
                count = max(1, min(40, int(2e-3 / (time.perf_counter() - start))))
                graph = _graph(run, count, stream)
                time.sleep(0.4)
                rest = timed(graph, count, stream, 0.004)
                load = timed(graph, count, stream, 0.5)
                for _ in range(int(0.7e6 / (load * count)) + 1):  # while it is asked
                    graph.launch(stream)
                state = subprocess.run(["nvidia-smi", "-i", os.environ.get("CUDA_VISIBLE_DEVICES", "0"), "--query-gpu=clocks.sm,power.draw,clocks_event_reasons.active", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout.strip()
                stream.synchronize()
            found.append((load, rest, gemm_choice.name_of(choice)))
            print('       ', gemm_choice.name_of(choice), state)
        first = found[0][2]
        found.sort()
        best_rest = min(found, key=lambda f: f[1])
        print(f"{kind} {m}x{n}x{k}: model {first}, best at rest {best_rest[2]}, under load {found[0][2]}: choosing at rest costs {best_rest[0] / found[0][0]:.3f}, the model's {next(f for f in found if f[2] == first)[0] / found[0][0]:.3f}", flush=True)
        for load, rest, name in found:
            print(f"    {name:34} rest {rest:8.1f} us {problem.flop / rest / 1e6 if hasattr(problem, 'flop') else 0:6.0f}  load {load:8.1f} us  {load / rest:.3f}", flush=True)
        lines.append({"kind": kind, "shape": [m, n, k], "ways": [{"name": name, "rest": rest, "load": load} for load, rest, name in found]})
        cupy.get_default_memory_pool().free_all_blocks()
    if len(sys.argv) > 1:
        json.dump(lines, open(sys.argv[1], "w"))


main()
