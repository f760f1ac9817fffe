"""Compile in parallel, check, then time attention on this GPU beside torch. Seconds: --budget.

    PYTHONPATH=. python .gpu/attention.py --budget 420 [--no-tests] [--no-flex] [--cells full,causal] [--scores]
"""
import argparse, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import numpy as np, cupy as cp
from stof_cupy import attention, env, masks, RelativeBias
from stof_cupy.jit import catalogue as C, device, nvrtc
from stof_cupy.jit.attention_kernels import FEW_ROWS, PLAIN, SHAPES, ScoreKind, Shape, attention_combine, attention_sm80
from stof_cupy.jit.cache import Store
from stof_cupy.jit.launch import kernel
from stof_cupy.ops import reference
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_config import Config, choose, cut, legal
from stof_cupy.ops.attention_cuda import kind_of, launches
from stof_cupy.testing import assert_close, random_array, rng

P = argparse.ArgumentParser(); P.add_argument("--budget", type=int, default=420); P.add_argument("--no-tests", action="store_true")
P.add_argument("--no-flex", action="store_true"); P.add_argument("--cells", default=""); P.add_argument("--scores", action="store_true"); P.add_argument("--jobs", type=int, default=os.cpu_count())
P.add_argument("--all-shapes", action="store_true", help="also shapes that are not in the catalogue")
A = P.parse_args(); T0 = time.time()
left = lambda: A.budget - (time.time() - T0)
F = device.facts(); print(F.name, "sm_" + F.arch, "NVRTC", nvrtc.load().version, "SMs", F.sm_count)

# shapes to try beside the catalogue's
MORE = {64: [Shape(4, 32, 3, True, 2), Shape(4, 16, 2, True, 4), Shape(2, 32, 3, True, 4), Shape(8, 16, 2, True, 1)],
        128: [Shape(4, 16, 2, True, 3), Shape(4, 16, 1, True, 3), Shape(8, 16, 2, True, 1), Shape(2, 32, 2, False, 2)]}

def precompile():
    specs = [s for s in C.catalogue() if s.name.startswith("attention")]
    if A.all_shapes: specs += [attention_sm80("float16", d, s) for d in MORE for s in MORE[d]]
    if not A.no_tests:  # what tests/ops/test_attention_scores.py asks for
        kinds = [ScoreKind(softcap=True), *(ScoreKind(bias=b) for b in ("float16", "bfloat16", "float32")), ScoreKind(alibi=True), ScoreKind(distances=True), ScoreKind(True, "float32", True)]
        for t in ("float16", "bfloat16"):
            for d in C.HEAD_DIM_CLASSES:
                for k in kinds if d == 32 or t == "float16" else []:
                    if d > 128 and k.alibi and k.bias: k = ScoreKind(True, "float32")
                    specs.append(attention_sm80(t, d, SHAPES[d][-1], k))
            specs += [attention_sm80(t, 32, s, k, p) for k in kinds for s, p in ((FEW_ROWS[32], True), (FEW_ROWS[32], False), (SHAPES[32][-1], True))]
            specs += [attention_sm80(t, d, FEW_ROWS[d], PLAIN, True) for d in C.HEAD_DIM_CLASSES] + [attention_combine(t, d, s, p) for d in (32, 64, 128) for s in (*SHAPES[d], FEW_ROWS[d]) for p in (False, True)]
            specs += [attention_sm80(t, d, s, PLAIN, True) for d in (32,) for s in SHAPES[d]]
    specs = list(dict.fromkeys(specs)); store = Store(env.cache_dir("kernels")); bad = []
    def one(s):
        try: store.get(s, F.arch)
        except Exception as e: bad.append((s.name, str(e)[:300]))
    with ThreadPoolExecutor(A.jobs) as pool: list(pool.map(one, specs))
    print(f"compiled {len(specs) - len(bad)} of {len(specs)} in {time.time() - T0:.0f} s"); [print("FAILED", *b) for b in bad]

def tests():
    limit = max(60, min(left() * 0.5, 240))
    try: r = subprocess.run([sys.executable, "-m", "pytest", "-q", "--maxfail=15", "-p", "no:cacheprovider", "tests/ops/test_attention.py", "tests/ops/test_attention_scores.py", "tests/ops/test_attention_device_masks.py", "-m", "gpu"], timeout=limit, capture_output=True, text=True); print("\n".join(r.stdout.splitlines()[-25:]))
    except subprocess.TimeoutExpired as e: print("tests: out of time;", (e.stdout or b"")[-600:].decode())

def dense(name, S):
    w, g = (256, 64) if S >= 1024 else (64, 16); nb = -(-S // 64); r = np.random.default_rng(0)
    rb = r.random((nb, nb)) < min(1, 3 / nb); docs = np.sort(r.integers(0, max(2, S // 512), S)); b10 = (r.random((nb, nb)) < 0.1) | np.eye(nb, dtype=bool)
    q, k = np.arange(S)[:, None], np.arange(S)[None]; up = lambda x: x.repeat(64, 0).repeat(64, 1)[:S, :S]
    return {"causal": lambda: q >= k, "sliding": lambda: abs(q - k) <= w, "causal-sliding": lambda: (q >= k) & (q - k <= w), "longformer": lambda: (abs(q - k) <= w) | (q < g) | (k < g),
            "bigbird": lambda: (abs(q // 64 - k // 64) <= 1) | (q < 128) | (k < 128) | up(rb), "document": lambda: (docs[:, None] == docs) & (q >= k), "block10": lambda: up(b10), "elements1": lambda: r.random((S, S)) < 0.01}[name](), (rb, docs, b10, w, g)

flush = cp.empty(64 << 20, np.int32)
def timed(fn, most=0.05):
    fn(); cp.cuda.Device().synchronize(); time.sleep(0.1); ts = []; t = time.time()
    while len(ts) < 6 or (len(ts) < 40 and time.time() - t < most * 4):
        a, b = cp.cuda.Event(), cp.cuda.Event(); flush.fill(0); a.record(); fn(); b.record(); b.synchronize(); ts.append(cp.cuda.get_elapsed_time(a, b))
    return float(np.median(ts))

def ours(config, problem, arrays, mask, scores):
    every, used = launches(config, problem, arrays, mask, scores, cp)
    calls = [(kernel(s), b, kernel(s).pack(**f)) for s, b, f in every]
    def run(keep=used):
        for k, b, p in calls: k((b,), p)
    return run

def torch_peers(q, k, v, name, extra, S):
    try: import torch
    except ImportError: return {}
    out = {}; tq, tk, tv = (torch.from_dlpack(x) for x in (q, k, v)); kw = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    from torch.nn.attention import SDPBackend, sdpa_kernel
    ext = torch.cuda.ExternalStream(cp.cuda.get_current_stream().ptr) if cp.cuda.get_current_stream().ptr else torch.cuda.default_stream()
    with torch.cuda.stream(ext), torch.no_grad():
        if name in ("full", "causal"):
            for label, b in (("FA2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
                def f(b=b):
                    with sdpa_kernel(b): return torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, is_causal=name == "causal", **kw)
                try: out[label] = timed(f)
                except Exception as e: out[label] = float("nan")
        elif not A.no_flex and left() > 40:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention
            rb, docs, b10, w, g = extra; dev = lambda x: torch.from_numpy(np.ascontiguousarray(x)).cuda(); rb, docs, b10 = map(dev, (rb, docs, b10))
            el = dev(dense(name, S)[0]) if name == "elements1" else None
            rule = {"sliding": lambda b, h, q, k: (q - k).abs() <= w, "causal-sliding": lambda b, h, q, k: (q >= k) & (q - k <= w), "longformer": lambda b, h, q, k: ((q - k).abs() <= w) | (q < g) | (k < g),
                    "bigbird": lambda b, h, q, k: ((q // 64 - k // 64).abs() <= 1) | (q < 128) | (k < 128) | rb[q // 64, k // 64], "document": lambda b, h, q, k: (docs[q] == docs[k]) & (q >= k), "block10": lambda b, h, q, k: b10[q // 64, k // 64], "elements1": lambda b, h, q, k: el[q, k]}[name]
            try:
                torch._dynamo.reset(); bm = create_block_mask(rule, None, None, S, S, device="cuda", _compile=True); fx = torch.compile(flex_attention); out["Flex"] = timed(lambda: fx(tq, tk, tv, block_mask=bm))
            except Exception as e: print("  flex:", str(e)[:200])
    return out

def cell(shape, name, Hk=None, Sk=None, dtype="float16"):
    B, H, S, D = shape; Hk, Sk = Hk or H, Sk or S; g = rng(0)
    q, k, v = (cp.random.default_rng(i).standard_normal((B, h, s, D), dtype=np.float32).astype(dtype) for i, (h, s) in enumerate(((H, S), (Hk, Sk), (Hk, Sk))))
    mask, extra, kept = None, None, S * Sk
    if name != "full": d, extra = dense(name, S); mask = masks.BsrMask(d); kept = int(d.sum()); del d
    _, problem, mask, scores = validate(q, k, v, mask, Scores(), None, None); out = cp.empty_like(q); arrays = (q, k, v, out, None, None)
    chosen = choose(problem, PLAIN, mask, F); flop = 4 * kept * D * B * H; rows = []
    candidates = [("chosen", chosen)]
    if S > 64:
        for s in (*SHAPES[D], *(MORE.get(D, []) if A.all_shapes else [])):
            if legal(s, D, F):
                c = Config(D, s, mask_rows=max(s.rows, 64) if mask is not None else s.rows); candidates.append((s.name, cut(c, problem, mask, F)))
                if candidates[-1][1].splits > 1: candidates.append((s.name + " uncut", c))
    else: candidates.append(("uncut", replace(chosen, splits=1, long_slots=0)))
    first = None; peers = torch_peers(q, k, v, name, extra, S); best = min((t for t in peers.values() if t == t), default=float("nan"))
    for label, c in candidates:
        if left() < 15: print("out of time"); return
        try: run = ours(c, problem, arrays, mask, scores)
        except Exception as e: print('  ', label, str(e)[:120]); continue
        run(); got = out.astype(np.float32)
        if first is None: first = got
        err = float(cp.abs(got - first).max()); run(); same = bool((out.astype(np.float32) == got).all())
        rows.append((label, timed(run), c, err, same))
    print(f"{shape} Hk={Hk} Sk={Sk} {name} kept {kept / S / Sk:.3f}  peers: " + ", ".join(f"{n} {t:.4f} ms ({flop / t / 1e9:.0f})" for n, t in peers.items()))
    for label, t, c, err, same in rows: print(f"   {label:24} {c.shape.name:12} splits {c.splits:3} long {c.long_slots:4} {t:8.4f} ms {flop / t / 1e9:6.0f} TF  x{best / t:5.2f}  diff {err:.1e} {'' if same else 'NOT THE SAME TWICE'}", flush=True)

def score_cells():
    B, H, S, D = 4, 12, 2048, 64; q, k, v = (cp.random.default_rng(i).standard_normal((B, H, S, D), dtype=np.float32).astype("float16") for i in range(3)); mask = masks.causal(S).tobsr()
    for name, how in {"plain": {}, "softcap": {"softcap": 30.0}, "alibi": {"alibi": cp.ones(H, np.float32) * 0.1}, "t5": {"bias": RelativeBias(cp.ones((32, H), np.float32), bidirectional=True)}, "bias f16": {"bias": cp.zeros((H, S, S), np.float16)}, "bias keys": {"bias": cp.zeros((1, 1, S), np.float32)}}.items():
        for mk, m in (("full", None), ("causal", mask)):
            print(f"   {name:10} {mk:7} {timed(lambda: attention(q, k, v, m, **how)):.4f} ms (host cost included)")

precompile()
if not A.no_tests: tests()
want = set(A.cells.split(",")) - {""}
for shape in ((1, 32, 8192, 128), (16, 12, 2048, 64), (1, 12, 512, 64)):
    for name in ("full", "causal", "sliding", "longformer", "bigbird", "document", "block10"):
        if (not want or name in want) and left() > 20: cell(shape, name)
if (not want or "elements1" in want) and left() > 20: cell((1, 12, 4096, 64), "elements1")
if (not want or "decode" in want) and left() > 20:
    for B, H, Hk, Sk, D in ((1, 32, 8, 32768, 128), (16, 32, 8, 8192, 128), (1, 12, 12, 8192, 64)): cell((B, H, 1, D), "full", Hk, Sk)
if A.scores: score_cells()
print(f"{time.time() - T0:.0f} s")
