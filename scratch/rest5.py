"""What issue 5's reviewer asked for: python scratch/rest5.py terms|blocks|small|gqa ...   (us; GPU)"""
import sys, numpy as np, cupy
sys.path[:0] = ["benchmarks"]
import device_time
from stof_cupy import masks, attention, RelativeBias
from stof_cupy.dtypes import as_dtype
from stof_cupy.ops.gemm_timing import normal
def qkv(b, h, s, d, hk=None, dtype="bfloat16", sk=None):
    return [normal((b, n, t, d), dtype, i) for i, (n, t) in enumerate(((h, s), (hk or h, sk or s), (hk or h, sk or s)))]
def us(run): return device_time.ours(run, small=False).p50 * 1e3
SHAPES = ((1, 32, 8192, 128), (16, 12, 2048, 64), (1, 16, 8192, 96), (1, 16, 8192, 192))
def warm():
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    with ProcessPoolExecutor(8, mp_context=get_context("spawn")) as pool:
        list(pool.map(terms, [(x,) for x in SHAPES for _ in range(2)], [False, True] * 4))
def terms(shapes=SHAPES, once=None):
    for (b, h, s, d) in shapes:
        q, k, v = qkv(b, h, s, d); out = cupy.empty_like(q)
        bias = normal((1, 1, s, s), "bfloat16", 7); slopes = cupy.asarray(2.0 ** (-8 * np.arange(1, h + 1) / h), np.float32)
        kinds = {"none": {}, "softcap": dict(softcap=30.0), "alibi": dict(alibi=slopes), "bias array": dict(bias=bias), "sinks": dict(sinks=cupy.zeros(h, np.float32))}
        try: kinds["relative"] = dict(bias=RelativeBias(normal((32, h), "float32", 9), bidirectional=True))
        except Exception as e: print("relative:", type(e).__name__, str(e)[:120])
        for mask_name, mask in (("full", None), ("sliding", masks.sliding_window(s, window=256))):
            if once is not None and once != (mask is None): continue
            row = {}
            for name, how in kinds.items():
                if once is not None: attention(q, k, v, mask, out=out, select="sm90", **how); continue
                try: row[name] = us(lambda: attention(q, k, v, mask, out=out, select="sm90", **how))
                except Exception as e: row[name] = f"{type(e).__name__} {str(e)[:60]}"
            if once is not None: continue
            base = row["none"]
            print(f"terms {(b,h,s,d)} {mask_name}: none {base:.1f}; " + ", ".join(f"{n} {t:.1f} ({t/base:.2f})" if not isinstance(t, str) else f"{n} {t}" for n, t in row.items() if n != "none"), flush=True)
        del bias
def blocks():
    g = np.random.default_rng(0)
    for (b, h, s, d), probe in (((1, 32, 8192, 128), 402), ((16, 12, 2048, 64), 133)):
        n = s // 128; layout = (g.random((h, n, n)) < .25) | np.eye(n, dtype=bool)
        stack = masks.block_layout(layout, block=128)
        q, k, v = qkv(b, h, s, d, dtype="float16"); out = cupy.empty_like(q)
        t = us(lambda: attention(q, k, v, stack, out=out, select="sm90"))
        share = layout.mean()
        print(f"blocks {(b,h,s,d)} random 128-blocks 25 %, per head, fp16: {t:.1f} us, the probe on an H100 {probe} us; density {share:.4f}", flush=True)
def small():
    from regret_cells import make_mask
    from stof_cupy.jit import device
    from stof_cupy.ops.attention_args import Problem
    from stof_cupy.ops.attention_candidates import candidates, name_of
    from stof_cupy.ops.attention_cuda import prepared
    from stof_cupy.ops.attention_demand import Case
    from stof_cupy.ops.attention_model import explain
    from stof_cupy.ops.attention_timing import graph_us, inputs_of
    from stof_cupy.jit.cache import Store
    from stof_cupy import env
    from concurrent.futures import ThreadPoolExecutor
    store, facts, todo = Store(env.cache_dir("kernels")), device.facts(), []
    for (b, h, s, d) in ((1, 12, 128, 64), (8, 12, 512, 64)):
        for name in ("block10", "bigbird", "causal"):
            mask = make_mask(name, s); case = Case(Problem("bfloat16", b, h, h, s, s, d, d), mask, facts)
            every = [e.candidate for e in explain(case, among=list(candidates(case))) if e.us < 60]
            todo.append(((b, h, s, d), name, case, every))
    specs = {c.spec(case.problem): 0 for _, _, case, every in todo for c in every}
    specs |= {c.combine_spec(case.problem): 0 for _, _, case, every in todo for c in every if getattr(c, "splits", 1) > 1}
    with ThreadPoolExecutor(16) as pool: list(pool.map(lambda x: store.get(x, facts.arch), specs))
    for shape, name, case, every in todo:
        args = inputs_of(case); times = {}
        for c in every:
            try: times[name_of(c)] = graph_us(prepared(c, args))
            except Exception as e: print("!", name_of(c), type(e).__name__, str(e)[:80])
        best = sorted(times, key=times.get)
        print(f"small {shape} {name}: chosen {name_of(every[0])} {times.get(name_of(every[0]), 0):.2f}; " + ", ".join(f"{n} {times[n]:.2f}" for n in best[:8]), f"({len(times)} timed)", flush=True)
def terms80():
    for (b, h, s, d) in SHAPES[:2]:
        q, k, v = qkv(b, h, s, d); out = cupy.empty_like(q)
        bias = normal((1, 1, s, s), "bfloat16", 7); slopes = cupy.asarray(2.0 ** (-8 * np.arange(1, h + 1) / h), np.float32)
        kinds = {"softcap": dict(softcap=30.0), "alibi": dict(alibi=slopes), "bias array": dict(bias=bias), "relative": dict(bias=RelativeBias(normal((32, h), "float32", 9), bidirectional=True))}
        for mask_name, mask in (("full", None), ("sliding", masks.sliding_window(s, window=256))):
            print(f"terms80 {(b,h,s,d)} {mask_name}: " + ", ".join(f"{n} {us(lambda: attention(q, k, v, mask, out=out, select='sm80', **how)):.1f}" for n, how in kinds.items()), flush=True)
def gqa():
    for (b, h, hk, sq, sk, d) in ((1, 32, 8, 4096, 4096, 128), (8, 32, 8, 1, 16384, 128), (8, 32, 8, 16, 16384, 128), (8, 32, 8, 64, 16384, 128), (1, 32, 8, 128, 32768, 128)):
        q, k, v = qkv(b, h, sq, d, hk, sk=sk); out = cupy.empty_like(q); row = {}
        for select in ("model", "sm90", "sm80"):
            try: row[select] = us(lambda: attention(q, k, v, out=out, select=select))
            except Exception as e: row[select] = str(e)[:50]
        print(f"gqa {(b,h,hk,sq,sk,d)}: ", row, flush=True)
if __name__ == '__main__':
    for part in sys.argv[1:]: globals()[part]()
