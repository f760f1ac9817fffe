"""Compile FlexAttention for bench_attention's cells in many processes, into Inductor's cache."""
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def compile_one(cell):
    import attention_cells, attention_peers, cupy, torch
    (b, h, s, d), name = cell
    start = time.time()
    try:
        shape = (b, h, h, s, s, d)
        q, k, v = attention_cells._inputs(shape)
        mask = attention_cells._mask(name, s, s)
        made = attention_cells.Cell(shape, q, k, v, cupy.empty_like(q), mask)
        with torch.no_grad():
            attention_peers.flex(made)()
        torch.cuda.synchronize()
    except Exception as error:
        return cell, f"{type(error).__name__}: {error}"[:100]
    torch.cuda.empty_cache(); attention_cells._inputs.cache_clear(); attention_cells._mask.cache_clear()
    cupy.get_default_memory_pool().free_all_blocks()
    return cell, time.time() - start

if __name__ == "__main__":
    from shapes import ATTENTION, ATTENTION_MASKS, SMALL_ATTENTION, ELEMENT_SIZES
    cells = [(s, n) for s in (*ATTENTION, *SMALL_ATTENTION) for n in ATTENTION_MASKS if n != "full"] + [((1, 12, s, 64), "elements0.01") for s in ELEMENT_SIZES]
    start = time.time()
    with ProcessPoolExecutor(int(sys.argv[1]), mp_context=get_context("spawn")) as pool:
        took = list(pool.map(compile_one, cells))
    print("flex warm", len(cells), f"{time.time()-start:.0f} s", [t for t in took if isinstance(t[1], str)], max(t[1] for t in took if not isinstance(t[1], str)))
