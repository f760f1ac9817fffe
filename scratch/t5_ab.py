"""T5's relative bias on Hopper: python scratch/t5_ab.py warm|time|flex|choice|stack  (PYTHONPATH is the tree)."""
import sys, time, numpy as np, cupy, json
sys.path[:0] = ["benchmarks"]
import device_time
from stof_cupy import masks, attention, RelativeBias
from stof_cupy.ops import relative_bias
from stof_cupy.ops.gemm_timing import normal
Fixed = getattr(relative_bias, "FixedBias", None)
SHAPES = ((16, 12, 2048, 64), (8, 12, 512, 64), (1, 12, 128, 64), (1, 32, 8192, 128), (1, 16, 8192, 192))
def mask_of(name, s):
    return {"full": lambda: None, "causal": lambda: masks.causal(s), "sliding": lambda: masks.sliding_window(s, window=256 if s > 1000 else 64),
            "longformer": lambda: masks.longformer(s, window=32, global_tokens=[*range(32)]) if False else masks.sliding_window(s, window=32) | masks.global_tokens(s, 32),
            "bigbird": lambda: __import__("engine_masks", fromlist=["x"]) and masks.bigbird(s, block_size=64, seed=0)}[name]()
def data(shape):
    b, h, s, d = shape
    q, k, v = (normal(shape, "bfloat16", i) for i in range(3))
    return q, k, v, cupy.empty_like(q), normal((32, h), "float32", 9).astype("float32")
def ways(table):
    how = dict(bidirectional=True, max_distance=128)
    found = {"none": {}, "relative": dict(bias=RelativeBias(table, **how))}
    if Fixed: found["fixed"] = dict(bias=Fixed(table, **how))
    return found
def cells(): return [(x, m) for x in SHAPES for m in ("full", "causal", "sliding", "longformer")]
def warm():
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool: list(pool.map(once, cells()))
def once(cell):
    shape, m = cell; q, k, v, out, table = data(shape); mask = mask_of(m, shape[2])
    for how in ways(table).values():
        attention(q, k, v, mask, out=out, **how)
        try: attention(q, k, v, mask, out=out, select="sm90", **how)
        except Exception as e: print(e)
def timing():
    for shape, m in cells():
        q, k, v, out, table = data(shape); mask = mask_of(m, shape[2]); row = {}
        for n, how in ways(table).items():
            row[n] = round(device_time.ours(lambda: attention(q, k, v, mask, out=out, **how), small=shape[2] < 1000).p50 * 1e3, 2)
        print("T", shape, m, row, flush=True)
def choice():
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops import attention_cuda as ac
    from stof_cupy.ops.attention_candidates import candidates, name_of
    from stof_cupy.ops.attention_model import explain
    from concurrent.futures import ThreadPoolExecutor
    from stof_cupy.jit.cache import Store
    from stof_cupy import env
    from stof_cupy.jit import device
    store, facts, todo = Store(env.cache_dir("kernels")), device.facts(), []
    for shape, m in cells()[:8] + cells()[12:16]:
        q, k, v, out, table = data(shape)
        bias = ways(table)["fixed"]["bias"]
        _, problem, mask, scores = validate(q, k, v, mask_of(m, shape[2]), Scores(bias=bias), None, out)
        args = Args(problem, q, k, v, out, None, mask, scores, None)
        case, constants = ac._case(args)
        every = explain(case, constants, among=list(candidates(case)))
        todo.append((shape, m, args, every))
    specs = {e.candidate.spec(args.problem): 0 for _, _, args, every in todo for e in every if e.us < 3 * every[0].us}
    specs |= {e.candidate.combine_spec(args.problem): 0 for _, _, args, every in todo for e in every if getattr(e.candidate, "splits", 1) > 1}
    with ThreadPoolExecutor(16) as pool: list(pool.map(lambda x: store.get(x, facts.arch), specs))
    for shape, m, args, every in todo:
        times = {}
        for e in every:
            if e.us >= 3 * every[0].us: continue
            try: times[name_of(e.candidate)] = (round(device_time.ours(ac.prepared(e.candidate, args), small=shape[2] < 1000).p50 * 1e3, 1), round(e.us, 1))
            except Exception as err: print("!", name_of(e.candidate), str(err)[:80])
        best = sorted(times, key=times.get)
        print("C", shape, m, "chosen", name_of(every[0].candidate), times[name_of(every[0].candidate)], "; ".join(f"{n} {times[n]}" for n in best[:5]), flush=True)
def flex():
    import torch
    from torch.nn.attention.flex_attention import flex_attention, create_block_mask
    from attention_peers import tensor
    fa = torch.compile(flex_attention, dynamic=False)
    for shape in SHAPES[:3]:
        for m in ("full", "causal", "sliding", "longformer"):
            b, h, s, d = shape; w = 256 if s > 1000 else 64
            q, k, v, out, table = data(shape)
            q, k, v = map(tensor, (q, k, v))
            cols = tensor(cupy.ascontiguousarray(RelativeBias(table, bidirectional=True, max_distance=128).by_distance(128)).astype("float32"))
            full = torch.nn.functional.pad(cols[None], (s - 129, s - 129), mode="replicate")[0] if s > 129 else cols
            mid = full.shape[1] // 2
            rules = {"full": None, "causal": lambda b, h, i, j: i >= j, "sliding": lambda b, h, i, j: (i - j).abs() <= w, "longformer": lambda b, h, i, j: ((i - j).abs() <= 32) | (i < 32) | (j < 32)}
            bm = None if rules[m] is None else create_block_mask(rules[m], None, None, s, s, device="cuda")
            def mod(x, b, h, i, j): return x + full[h, j - i + mid]
            ours = attention(*data(shape)[:3], mask_of(m, s), bias=RelativeBias(table, bidirectional=True, max_distance=128))
            run = lambda: fa(q, k, v, score_mod=mod, block_mask=bm)
            run0 = lambda: fa(q, k, v, block_mask=bm)
            got = run(); diff = (got.float() - tensor(ours).float()).abs().max().item()
            print("F", shape, m, "bias", round(device_time.theirs(run, small=s < 1000).p50 * 1e3, 2), "none", round(device_time.theirs(run0, small=s < 1000).p50 * 1e3, 2), "diff", diff, flush=True)
def stack():
    from engine_measure import Shared
    from engine_stacks import Cell
    from stof_cupy.runtime import Options
    for name in sys.argv[2:]:
        made = Shared(Cell.parse(name), "cuda")
        call, found = made.checked("ours", Options(tune="fast"))
        count = made.rounds(call)
        for _ in range(3): call()
        made.wait()
        print("S", name, made.device_quantiles("ours", call, count), found.get("error"), flush=True)
        made.forget()
if __name__ == "__main__": {"warm": warm, "time": timing, "choice": choice, "flex": flex, "stack": stack}[sys.argv[1]]()
