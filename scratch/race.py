"""Kernels without mbarriers, each a few launches of small arrays, for racecheck: python scratch/race.py sm80|pair|few|norms|statistics|late ...   (GPU; no kernel of CuPy runs)

`compute-sanitizer --tool racecheck python3 scratch/race.py PART`; run it once without, so that kernels are compiled.
"""
import sys, time
import numpy as np, cupy
sys.path[:0] = ["."]
from stof_cupy.dtypes import as_dtype
G = np.random.default_rng(5)
def up(shape, dtype="float16", scale=1.0): return cupy.asarray((G.standard_normal(shape) * scale).astype(as_dtype(dtype)))
def empty(shape, dtype="float16"): return cupy.empty(shape, as_dtype(dtype))
def sm80():
    from stof_cupy.jit.catalogue import GEMM_TILES
    from stof_cupy.ops import gemm as module, gemm_sm80
    from stof_cupy.ops.epilogue import Epilogue
    from stof_cupy.ops.gemm_args import validate
    for tile in GEMM_TILES:
        for (m, n, k), kind in (((130, 136, 200), dict(activation="silu", gated=True)), ((17, 72, 40), dict(activation="gelu"))):
            a, b = up((m, k)), up((2 * n if kind.get("gated") else n, k), scale=k ** -.5).T
            ep = Epilogue(bias=up((b.shape[1],)), residual=up((m, n)), **kind); out = empty((m, n))
            _, problem = validate(a, b, ep, out)
            module._launch(problem, a, b, ep, out, gemm_sm80.Config(tile))
    a, b, out = up((130, 72)), up((72, 136)), empty((130, 136))  # (K, N) in memory
    _, problem = validate(a, b, Epilogue(), out)
    for tile in GEMM_TILES: module._launch(problem, a, b, Epilogue(), out, gemm_sm80.Config(tile))
def pair():
    from stof_cupy.jit.gemm_pair import PAIR_TILES
    from stof_cupy.jit import device
    from stof_cupy.ops import gemm_gemm
    from stof_cupy.ops.epilogue import Epilogue
    from stof_cupy.ops.gemm_pair import fault
    for tile in PAIR_TILES:
        a, b, d, out = up((130, 72)), up((tile.hidden, 72), scale=.1).T, up((72, tile.hidden), scale=.1).T, empty((130, 72))
        between, end = Epilogue(bias=up((tile.hidden,)), activation="gelu"), Epilogue(bias=up((72,)), residual=up((130, 72)))
        _, problem = gemm_gemm.checked(a, b, d, between, end, out)
        if fault(tile, problem, device.facts()) is None: gemm_gemm.launch(tile, problem, a, b, d, between, end, out)
        else: print("does not fit", tile)
def few():
    from stof_cupy.ops import gemm_few_rows
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.jit.epilogues import EpilogueKind
    for rows in (1, 4, 16):
        for m, n, k in ((rows, 200, 1536), (max(rows - 1, 1), 31, 72)):
            a, b, out = up((m, k)), up((n, k), scale=k ** -.5), empty((m, n))
            problem = Problem("float16", m, n, k, EpilogueKind())
            for slices in (1, 4): gemm_few_rows.launch(gemm_few_rows.Config(rows, slices), problem, a, b, out)
def norms():
    from stof_cupy import layer_norm, rms_norm
    for n in (72, 768, 1000, 2047, 8200):
        x, r, w, s = up((7, n)), up((7, n)), up((n,)), up((n,)); out, total = empty((7, n)), empty((7, n))
        layer_norm(x, w, s, residual=r, sum_out=total, out=out, eps=1e-5); layer_norm(x, w, s, out=out, eps=1e-5)
        rms_norm(x, w, residual=r, sum_out=total, out=out, eps=1e-5); rms_norm(x, w, out=out, eps=1e-5)
def statistics():
    from stof_cupy.ops.gemm_fold import row_statistics
    for n in (72, 768, 1000, 3072, 8200):
        for m in (7, 300): row_statistics(up((m, n)), eps=1e-5)
def late():
    from stof_cupy.ops.gemm_norm import gemm_layer_norm
    from stof_cupy.ops.epilogue import Epilogue
    for m, n, k in ((130, 768, 72), (17, 1000, 40)):
        gemm_layer_norm(up((m, k)), up((n, k), scale=.1).T, up((n,)), up((n,)), eps=1e-5, epilogue=Epilogue(bias=up((n,)), residual=up((m, n))))
if __name__ == "__main__":
    for part in sys.argv[1:]:
        start = time.time()
        try: globals()[part](); cupy.cuda.Device().synchronize(); print(f"{part}: {time.time() - start:.1f} s", flush=True)
        except Exception as e: print(f"{part}: {type(e).__name__} {str(e)[:300]}", flush=True)
