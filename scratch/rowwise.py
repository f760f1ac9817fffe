"""Row-wise attention on a GPU: tests, then times beside block-wise, torch SDPA and FlexAttention.

    PYTHONPATH=$PWD python3 .gpu/rowwise.py [seconds]    # 420 by default; parts that do not fit are left out

Writes $OUT/rowwise.json and prints a table. Times are device times of a captured graph of 20 launches.
"""

import json
import os
import subprocess
import sys
import time

START, LIMIT = time.time(), float(sys.argv[1]) if len(sys.argv) > 1 else 420.0
OUT = os.environ.get("OUT", ".")


def left():
    return LIMIT - (time.time() - START)


tests = ["tests/ops/test_attention_rowwise.py", "tests/masks/test_keylists.py", "tests/jit/test_device.py"]
done = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "--require-gpu", "-p", "no:cacheprovider",
     "--maxfail=10", *tests], capture_output=True, text=True, timeout=max(60, left() / 2))
print("\n".join(done.stdout.splitlines()[-25:]), done.stderr[-2000:], flush=True)
if done.returncode:
    sys.exit("tests fail: no times")

import cupy as cp  # noqa: E402
import numpy as np  # noqa: E402

from stof_cupy.jit.device import facts  # noqa: E402
from stof_cupy.masks import BsrMask, causal, longformer, sliding_window  # noqa: E402
from stof_cupy.ops import attention_calibration as calibration  # noqa: E402
from stof_cupy.ops import attention_rowwise as rowwise  # noqa: E402
from stof_cupy.ops import reference  # noqa: E402
from stof_cupy.ops.attention import attention  # noqa: E402
from stof_cupy.ops.attention_args import Scores, validate  # noqa: E402
from stof_cupy.ops.attention_candidates import Candidate, Kernels  # noqa: E402
from stof_cupy.ops.attention_constants import Constants  # noqa: E402
from stof_cupy.ops.attention_demand import Demand  # noqa: E402
from stof_cupy.ops.attention_model import choose, predict  # noqa: E402

try:
    import torch
except ImportError:
    torch = None
GPU = facts()
print(GPU, flush=True)


def graph_us(fn, launches=20, repeat=10):
    """Median device time of `fn` in microseconds, from replays of a graph of many launches."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        fn()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(launches):
            fn()
        graph = stream.end_capture()
        graph.launch(stream)
        events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(repeat)]
        for a, b in events:
            a.record(stream)
            graph.launch(stream)
            b.record(stream)
        stream.synchronize()
    return float(np.median([cp.cuda.get_elapsed_time(a, b) for a, b in events])) * 1e3 / launches


def torch_us(fn, launches=20, repeat=10):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            fn()
    graph.replay()
    times = []
    for _ in range(repeat):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return float(np.median(times)) * 1e3 / launches


def arrays(problem, seed=0):
    g = np.random.default_rng(seed)
    shapes = [(problem.batch, problem.heads, problem.seq_q, problem.dim_qk)]
    shapes += [(problem.batch, problem.kv_heads, problem.seq_k, d) for d in (problem.dim_qk, problem.dim_v)]
    return [cp.asarray(g.standard_normal(s, np.float32)).astype(np.float16) for s in shapes]


def ours(q, k, v, mask, pairs=None, out=None, rows=4):
    """A function that launches row-wise (`pairs`) or what attention() runs now."""
    _, problem, bsr, scores = validate(q, k, v, mask, Scores(), None, out)
    if pairs is None:
        return problem, lambda: attention(q, k, v, bsr, out=out)
    config = next(c for c in rowwise.configs(problem, bsr) if (c.pairs, c.block_rows) == (pairs, rows))
    return problem, lambda: rowwise.launch(config, problem, q, k, v, bsr, scores, None, False, out)


def rows_agree(q, k, v, mask, out):
    rows = np.random.default_rng(1).choice(q.shape[2], 32, replace=False)
    dense = mask.toarray()[np.sort(rows)]
    part = [x.get() for x in (q[:, :2, np.sort(rows)], k[:, :2], v[:, :2])]
    exact = reference.attention(*part, dense)
    return float(np.abs(out[:, :2, np.sort(rows)].get().astype(np.float64) - exact).max())


def peers(q, k, v, dense, want):
    """Times of torch's SDPA with a dense mask and of FlexAttention, results checked first."""
    found = {}
    if torch is None:
        return found
    import torch.nn.functional as F

    tq, tk, tv, tm = (torch.from_dlpack(x) for x in (q, k, v, dense))
    some = tm.any(1)
    wanted = torch.from_dlpack(want).float()

    def same(got):
        return float((got.float() - wanted)[:, :, some].abs().max())

    for name, run in peers_of(F, tq, tk, tv, tm).items():
        try:
            error = same(run())
            if error > 2e-2:
                found[name + " error"] = error
                continue
            found[name] = torch_us(run)
        except Exception as problem:  # a peer that cannot is no reason to stop
            found[name + " error"] = repr(problem)[:200]
    return found


def peers_of(F, q, k, v, mask):
    runs = {"sdpa": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])}
    if left() > 90:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        compiled = torch.compile(flex_attention, dynamic=False)
        block = create_block_mask(lambda b, h, i, j: mask[i, j], None, None, *mask.shape, device="cuda")
        runs["flex"] = lambda: compiled(q, k, v, block_mask=block)
    return runs


results = []
g = np.random.default_rng(0)
cases = [(f"random {d}", s, lambda s=s, d=d: BsrMask(g.random((s, s)) < d))
         for s in (1024, 2048, 4096, 8192) for d in (0.001, 0.005, 0.01, 0.02)]
cases += [(n, s, lambda s=s, m=m: m(s).tobsr()) for s in (128, 512) for n, m in (
    ("sliding", lambda s: sliding_window(s, window=64)), ("causal", causal),
    ("longformer", lambda s: longformer(s, window=64, global_tokens=16)))]
for name, seq, make in cases:
    if left() < 60:
        print("left out:", name, seq)
        continue
    mask = make()
    q, k, v = (cp.asarray(g.standard_normal((1, 12, seq, 64), np.float32)).astype(np.float16) for _ in "qkv")
    out = cp.empty_like(q)
    row = {"case": name, "seq": seq, "kept": mask.nnz}
    for pairs, rows in ((1, 4), (2, 4), (1, 16), (2, 16)):
        problem, run = ours(q, k, v, mask, pairs, out, rows)
        out.fill(cp.nan)
        run()
        if (pairs, rows) == (1, 4):
            row["error"] = rows_agree(q, k, v, mask, out)
            want = out.copy()
        else:
            assert float(cp.abs(want - out).max()) < 2e-2
        row[f"row{pairs}x{rows}"] = graph_us(run)
    problem, run = ours(q, k, v, mask, None, out)
    row["block"] = graph_us(run)
    demand = Demand(problem, mask)
    config = rowwise.configs(problem, mask)[0]
    row["row predicted"] = predict(Candidate("rowwise", rowwise=config), demand, GPU, Constants()).us
    row["block predicted"] = predict(Candidate("blockwise", (64, 64)), demand, GPU, Constants()).us
    row["chosen"] = choose(problem, mask, GPU, kernels=Kernels(((64, 64),), (1,))).candidate.kernel
    row["L2 TB/s"] = mask.nnz * 12 * 256 / min(x for n, x in row.items() if n.startswith("row") and "x" in n) / 1e6
    row.update(peers(q, k, v, cp.asarray(mask.toarray()), want))
    results.append(row)
    print({n: round(x, 4) if isinstance(x, float) else x for n, x in row.items()}, flush=True)

ratios = [min(r[p] for p in ("sdpa", "flex") if p in r) / min(x for n, x in r.items() if n.startswith("row") and "x" in n)
          for r in results if r["case"].startswith("random") and ("sdpa" in r or "flex" in r)]
if ratios:
    print(f"random: best peer over row-wise, geomean {np.exp(np.mean(np.log(ratios))):.2f}, worst {min(ratios):.2f}")


def timer(candidate, problem, mask):
    q, k, v = arrays(problem)
    out = cp.empty((*q.shape[:3], v.shape[3]), q.dtype)
    _, run = ours(q, k, v, mask, candidate.rowwise.pairs if candidate.rowwise else None, out,
                  candidate.rowwise.block_rows if candidate.rowwise else 4)
    return graph_us(run, launches=10, repeat=5)


if left() > 40:  # of the kernels that there are now
    kernels = Kernels(tiles=((64, 64),), splits=(1,))
    measured = [(p, timer(*p)) for p in calibration.probes(GPU, kernels)]
    fitted = calibration.fit(GPU, measured)
    print(fitted)
    for (c, p, m), us in measured:
        fit, default = (predict(c, Demand(p, m), GPU, x).us for x in (fitted, Constants()))
        print(f"{c.kernel:9} {p.batch}x{p.heads}x{p.seq_q}x{p.seq_k}x{p.dim_qk} {'full' if m is None else 'mask':4} "
              f"measured {us:9.1f}  fitted {fit:9.1f}  default {default:9.1f}")
json.dump(results, open(os.path.join(OUT, "rowwise.json"), "w"), indent=1)
