"""torch.compile's kernels for engine_grid.py into Triton's cache, in processes, while the GPU has nothing to time:

    TORCHINDUCTOR_CACHE_DIR=/tmp/inductor_warm TRITON_CACHE_DIR=/tmp/triton timeout 300 python3 scratch/engine_warm.py [PROCESSES] [FIRST] [LAST]

Stacks of two layers (kernels are of shapes, not of layers), the cells FIRST to LAST of those that are left (60 in all). What is the fastest is not kept: the grid finds it anew, of kernels that are there.
Then: `bash scratch/engine_gpu.sh peers` with the same TRITON_CACHE_DIR and another TORCHINDUCTOR_CACHE_DIR. /tmp/triton may be packed into $OUT (tar, xz -1) and carried to the next session.
"""
import os, sys, time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context

sys.path[:0] = [os.getcwd(), "benchmarks"]


def one(job):
    import torch
    import engine_peers as peers
    import engine_stacks as stacks
    name, way = job
    start = time.time()
    torch._inductor.config.autotune_local_cache = torch._inductor.config.fx_graph_cache = False
    cell = stacks.Cell.parse(name)
    cell = replace(cell, stack=replace(cell.stack, layers=2))
    try:
        tensors = peers.placed(stacks.weights(cell.stack), "cuda", torch.bfloat16)
        x = peers.tensor(stacks.hidden_states(cell), "cuda")
        peers.model(cell, way, tensors, torch.bfloat16)(x)
        torch.cuda.synchronize()
    except Exception as error:
        return job, f"{type(error).__name__} {str(error)[:120]}"
    torch.cuda.empty_cache()
    return job, time.time() - start


if __name__ == "__main__":
    from engine_stacks import GRID, ANCHORS
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    cells = list(dict.fromkeys([*map(str, ANCHORS), *map(str, GRID)]))
    cells = cells[int(sys.argv[2]) if len(sys.argv) > 2 else 0 : int(sys.argv[3]) if len(sys.argv) > 3 else None]
    seen, order = set(), []
    for cell in cells:  # of a stack and a size all products, once; then attention under each mask
        size = cell.rsplit(":", 1)[0]
        order += [] if size in seen else [(cell, "compiled")]
        seen.add(size)
    order += [(cell, "flex") for cell in cells]
    start, done = time.time(), 0
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for each in as_completed([pool.submit(one, job) for job in order]):
            job, took = each.result()
            done += 1
            print(f"warm {done} of {len(order)}: {job} {took if isinstance(took, str) else f'{took:.1f} s'}, at {time.time() - start:.0f} s", flush=True)
