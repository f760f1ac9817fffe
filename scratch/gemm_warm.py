"""torch.compile's kernels for the peers of bench_gemm.py into Triton's cache, in processes, while the GPU has nothing to time:

    timeout 150 python3 scratch/gemm_warm.py [PROCESSES] &

What is the fastest is not kept (processes disturb each other): the benchmark finds it anew, of kernels that are there. The order is that of gemm.sh.
"""
import os, sys, time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

sys.path[:0] = [os.getcwd(), "benchmarks"]
BERT = ((3072, 768), (768, 768), (2304, 768))
LN = ((768, 768), (768, 3072), (1024, 4096), (2048, 8192), (1728, 576), (576, 1536))
FOLD = ((3072, 768), (2304, 768), (768, 768), (3072, 1024), (1728, 576))
ORDER = [(kind, m, w) for m in (32768, 4096, 512) for kind, ws in (("layer_norm", LN), ("fold", FOLD)) for w in ws]
ORDER += [("bias_gelu", 32768, w) for w in (*BERT, (3072, 1024), (1728, 576))]


def one(cell):
    import torch
    import gemm_peers
    kind, m, (n, k) = cell
    if kind == "layer_norm" and n > 2048:
        return cell, 0.0
    start = time.time()
    config = torch._inductor.config
    config.autotune_local_cache = config.fx_graph_cache = False
    torch._dynamo.config.cache_size_limit = 256
    new = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    normed = k if kind == "fold" else n
    tensors = [new(m, k), new(n, k), new(n), new(m, n), new(normed), new(normed)]
    with torch.no_grad():
        torch.compile(gemm_peers.written(kind), mode="max-autotune-no-cudagraphs", dynamic=False)(*tensors)
    torch.cuda.synchronize()
    return cell, time.time() - start


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "3")
    start, done = time.time(), 0
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for each in as_completed([pool.submit(one, cell) for cell in ORDER]):
            try:
                cell, seconds = each.result()
                done += 1
                print(f"warm {done}: {cell} {seconds:.1f} s, at {time.time() - start:.0f} s", flush=True)
            except Exception as error:
                print("warm:", type(error).__name__, str(error)[:150], flush=True)
