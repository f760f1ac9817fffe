"""FlexAttention's kernels for a grid into the caches on disk, in many processes, before anything is timed.

    python3 scratch/report_warm.py paper_attention [-k paper-] [--jobs 14] [--limit 120] [--results FILE] [--ways Flex,Flex+FA4]

paper_attention, paper_scaling or attention. What FILE has whole is left out; after --limit seconds none is begun. --jobs 0: here, without processes.
From the repository root, with report_gpu.sh's environment (caches of Inductor, Triton and FlashAttention 4; one compiling thread a process).
By estimate 4.5 s a Flex and 3 s a Flex+FA4 with 14 processes at work, and 20 s until all have torch: the grid's 252 in 90 s.
"""

import argparse
import importlib
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path


def wanted(bench, ways, part, results):
    """Return (node, shape, mask, way) of what is to be timed with FlexAttention; long sequences first."""
    import appending

    module = importlib.import_module(f"bench_{bench}")
    if bench == "attention":
        from shapes import ATTENTION, ATTENTION_MASKS, ELEMENT_DENSITIES, ELEMENT_SIZES, SMALL_ATTENTION

        named = {"bench_anchors": module.cases(ATTENTION, ATTENTION_MASKS), "bench_small": module.cases(SMALL_ATTENTION, ATTENTION_MASKS),
                 "bench_elements": module.cases([(1, 12, s, 64) for s in ELEMENT_SIZES], (f"elements{ELEMENT_DENSITIES[0]}",))}
        found = [(f, each.id, each.values[0], each.values[1], each.values[2]) for f, every in named.items() for each in every if each.values[1] != "full"]
    else:
        function, every = {"paper_attention": ("bench_paper", lambda: module.grid("gpu", ways)), "paper_scaling": ("bench_scaling", lambda: module.cases("gpu", ways))}[bench]
        found = []
        for each in every():
            *_, mask, batch, seq, way = each.values
            found.append((function, each.id, (batch, module.PAPER_HEADS, module.PAPER_HEADS, seq, seq, module.PAPER_DIM), mask, way))
    there = appending.settled(appending.read(results)) if results else set()
    nodes = [(f"benchmarks/bench_{bench}.py::{f}[{name}]", shape, mask, way) for f, name, shape, mask, way in found if way in ways]
    picked = [each for each in nodes if each[0] not in there and part in each[0]]
    return sorted(picked, key=lambda each: -each[1][0] * each[1][3])


def compile_one(node, shape, mask, way):
    """Compile and run it once; return what it was, the seconds, and what went wrong."""
    import attention_cells
    import attention_peers
    import cupy
    import torch

    start = time.time()
    try:
        q, k, v = attention_cells._inputs(tuple(shape))
        made = attention_cells.Cell(tuple(shape), q, k, v, cupy.empty_like(q), attention_cells._mask(mask, *shape[3:5]))
        torch.no_grad()(attention_peers.PEERS[way](made))()
        torch.cuda.synchronize()
        wrong = ""
    except Exception as error:
        wrong = f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
    made = q = k = v = None
    for cached in (attention_cells._inputs, attention_cells._mask, attention_peers._compiled):
        cached.cache_clear()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    return node, time.time() - start, wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("-k", default="")
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--ways", default="Flex,Flex+FA4")
    args = parser.parse_args()
    start, done, wrong = time.time(), [], {}
    every = wanted(args.bench, tuple(args.ways.split(",")), args.k, args.results)
    print(f"{len(every)} to compile", flush=True)
    if not args.jobs:
        for each in every:
            if time.time() - start < args.limit:
                done.append(compile_one(*each))
    elif every:
        pool = ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn"))
        futures = [pool.submit(compile_one, *each) for each in every]
        try:
            for each in as_completed(futures, timeout=args.limit):
                done.append(each.result())
        except TimeoutError:
            pass
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for node, _, why in done:
        if why:
            wrong.setdefault(why, []).append(node)
    for why, nodes in wrong.items():
        print(f"{len(nodes)}x {why}; the first: {nodes[0]}")
    seconds = sorted(took for _, took, why in done if not why)
    if seconds:
        print(f"{len(seconds)} of {len(every)} compiled in {time.time() - start:.0f} s, {seconds[len(seconds) // 2]:.1f} s one, {seconds[-1]:.1f} s at most")


if __name__ == "__main__":
    sys.path[:0] = ["", "benchmarks"]
    main()
