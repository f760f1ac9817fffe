"""Compile FlexAttention for the paper's grid in many processes, into Inductor's cache.

    python scratch/flex_warm.py [12] [paper-]

on the device machine, from the repository root, with bench_gpu.sh's environment:

    export PYTHONPATH=$PWD:$PWD/benchmarks
    export TORCHINDUCTOR_CACHE_DIR=$PWD/.benchmarks/inductor
    export TRITON_CACHE_DIR=$PWD/.benchmarks/triton

About 126 cells x 4 s / 12 processes = 45 s, and 15 s until torch is there, by estimate. Whether the
benchmark then finds them shows in its seconds.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def compile_one(cell):
    """Compile a cell (mask, batch, tokens); return it and the seconds, or what went wrong."""
    import attention_cells
    import attention_peers
    import cupy
    import torch

    name, batch, seq = cell
    start = time.time()
    shape = (batch, 12, 12, seq, seq, 64)
    q, k, v = attention_cells._inputs(shape)
    mask = attention_cells._mask(name, seq, seq)
    made = attention_cells.Cell(shape, q, k, v, cupy.empty_like(q), mask)
    try:
        with torch.no_grad():
            attention_peers.flex(made)()
        torch.cuda.synchronize()
    except Exception as error:
        return cell, f"{type(error).__name__}: {error}"[:100]
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    return cell, time.time() - start


if __name__ == "__main__":
    import paper_masks
    from shapes import PAPER_BATCHES, PAPER_LENGTHS

    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    cells = [
        (name, batch, seq)
        for name in paper_masks.FORMS
        if part in name
        for seq in PAPER_LENGTHS["gpu"]
        for batch in PAPER_BATCHES["gpu"]
    ]
    start = time.time()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in pool.map(compile_one, cells):
            if isinstance(done[1], str):
                print(*done)
    print(f"{len(cells)} cells in {time.time() - start:.0f} s")
