"""The Hopper attention on a GPU: python3 .gpu/sm90.py [simple] [cases] [time] [sections] [packed]; each stage is a process of its own.

simple: a ladder of cases with bounded waits; a hang becomes a fault with what was waited for. cases: the GPU tests. time: the anchors' shapes.
PYTHONPATH is the clone; device calls carry .gpu. simple about 1 minute, cases 3-5, time 2 (not yet run anywhere).
"""
import subprocess, sys, time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
LIMITS = {"simple": 150, "cases": 330, "time": 240, "sections": 120, "packed": 200}
WAITS = "? RowFull RowEmpty QFull QEmpty KFull KEmpty VFull VEmpty Landing".split()


def say(*words):
    print(*words, flush=True)


# ---------------------------------------------------------------- simple
def simple():
    import cupy, numpy as np
    from stof_cupy import masks
    from stof_cupy.jit.attention_sm90 import Sm90Config
    from stof_cupy.ops import attention_sm90, reference
    from stof_cupy.ops.attention_args import Problem
    from stof_cupy.testing import budget, poison, random_array, rng

    pinned = cupy.cuda.alloc_pinned_memory(16)
    report = np.frombuffer(pinned, np.uint32, 4)
    report[:] = 0
    one = Sm90Config(64, 64, n=64, warpgroups=1, blocks=3, queries=1)
    two, three = replace(one, queries=2), Sm90Config(64, 64, n=128, warpgroups=3)
    big, single = Sm90Config(128, 128, n=128, warpgroups=2), Sm90Config(128, 128, n=128, warpgroups=2, queries=1)
    rest = (Sm90Config(96, 96, n=128, warpgroups=2), Sm90Config(192, 192, n=112, warpgroups=2, queries=1),
            Sm90Config(256, 256, n=64, warpgroups=2, queries=1), Sm90Config(192, 128, n=128, warpgroups=2, queries=1))
    causal, window = masks.causal(700).tobsr(), masks.sliding_window(700, window=90).tobsr()
    ladder = [  # what, config, heads, kv heads, queries, keys, mask, lengths
        ("one tile", one, 1, 1, 64, 64, None, None), ("tails", one, 1, 1, 50, 40, None, None),
        ("two tiles", one, 1, 1, 64, 128, None, None), ("five tiles", one, 1, 1, 64, 320, None, None),
        ("many rows", one, 3, 1, 700, 700, None, None), ("two query buffers", two, 6, 2, 700, 700, None, None),
        ("bitmaps", two, 2, 2, 700, 700, causal, None), ("window", two, 2, 2, 700, 700, window, None),
        ("lengths", two, 2, 2, 700, 700, None, [333]), ("window, lengths", two, 2, 2, 700, 700, window, [333]),
        ("2 warpgroups", single, 1, 1, 128, 128, None, None), ("their turns", single, 1, 1, 128, 640, None, None),
        ("buffers", big, 8, 2, 700, 700, None, None), ("causal", big, 8, 2, 700, 700, causal, None), ("window", big, 8, 2, 700, 700, window, [500]),
        ("3 warpgroups", three, 8, 2, 700, 700, None, None), ("causal", three, 8, 2, 700, 700, causal, None),
        *((f"dim {c.dim_qk}, {c.dim_v}", c, 8, 2, 700, 700, mask, None) for c in rest for mask in (None, causal)),
    ]
    for what, config, heads, kv, sq, sk, mask, lengths in ladder:
        g = rng(1)
        q, k, v = (random_array(g, s, "bfloat16") for s in ((1, heads, sq, config.dim_qk), (1, kv, sk, config.dim_qk), (1, kv, sk, config.dim_v)))
        problem = Problem("bfloat16", 1, heads, kv, sq, sk, config.dim_qk, config.dim_v)
        n = None if lengths is None else cupy.asarray(lengths, np.int32)
        out = poison((1, heads, sq, config.dim_v), q.dtype, cupy)
        try:
            _, lse = attention_sm90.launch(replace(config, bounded=True), problem, *map(cupy.asarray, (q, k, v)), mask,
                                           config.dim_qk**-0.5, n, True, out, report=pinned.ptr)
            cupy.cuda.Device().synchronize()
        except Exception as error:
            say("BAD", what, config.name, repr(error)[:200])
            say("    waited for", WAITS[min(report[0], len(WAITS) - 1)], "block", report[1], "thread", report[2], "parity", report[3])
            sys.exit(1)
        exact, exact_lse = reference.attention(q, k, v, mask, kv_lengths=lengths, return_lse=True)
        low = reference.attention(q, k, v, mask, kv_lengths=lengths, precision="bfloat16")
        got = out.get().astype(np.float64)
        error, allowed = np.abs(got - exact), budget(exact, low, q.dtype)
        error = np.where(np.isnan(error), np.inf, error)
        seen = np.isfinite(exact_lse)
        lse_error = np.abs(lse.get() - exact_lse)[seen].max() if seen.any() else 0
        ok = error.max() <= allowed and lse_error < 1e-4
        say("ok " if ok else "BAD", f"{what:18} {config.name:28} error {error.max():.1e} of {allowed:.1e}, LSE {lse_error:.1e}")
        if not ok:
            rows, cols = (error[0, 0] > allowed).any(1).nonzero()[0], (error[0, 0] > allowed).any(0).nonzero()[0]
            say("    head 0: wrong rows", rows[:12], len(rows), "columns", cols[:12], len(cols), "NaN", np.isnan(got).sum())
            say("    got  ", got[0, 0, 0, :6], "\n    exact", exact[0, 0, 0, :6])


# ---------------------------------------------------------------- cases
def cases():
    command = "-m pytest -q --maxfail=25 -p no:cacheprovider -m gpu --require-gpu tests/ops/test_attention_sm90.py tests/jit/test_tensormap.py"
    run = subprocess.run([sys.executable, *command.split()], cwd=HERE.parent, capture_output=True, text=True)
    for line in run.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR", "E  ")) or " passed" in line or " failed" in line:
            say(line[:220])


# ---------------------------------------------------------------- time
def anchors(s):
    import numpy as np
    g, nb = np.random.default_rng(0), -(-s // 64)
    random = g.random((nb, nb)) < min(1.0, 3.0 / nb)
    w, glob = (256, 64) if s >= 1024 else (64, 16)
    docs = np.sort(g.integers(0, max(2, s // 512), s))
    sparse = (g.random((nb, nb)) < 0.1) | np.eye(nb, dtype=bool)
    q, k = np.arange(s)[:, None], np.arange(s)[None]
    near = np.abs(q - k) <= w
    yield "full", None
    yield "causal", q >= k
    yield "sliding", near
    yield "causal-sliding", (q >= k) & near
    yield "longformer", near | (q < glob) | (k < glob)
    yield "bigbird", (np.abs(q // 64 - k // 64) <= 1) | (q < 128) | (k < 128) | random[q // 64, k // 64]
    yield "document", (docs[:, None] == docs[None]) & (q >= k)
    yield "block10", sparse[q // 64, k // 64]


PROBE = {  # ms of the probe's best variant
    (32, 8192, 128): {"full": 1.47, "causal": 0.765, "sliding": 0.150, "causal-sliding": 0.111, "longformer": 0.235, "bigbird": 0.236, "document": 0.140, "block10": 0.265},
    (192, 2048, 64): {"full": 0.374, "causal": 0.239, "sliding": 0.146, "causal-sliding": 0.097, "longformer": 0.169, "bigbird": 0.159, "document": 0.121, "block10": 0.103},
    (16, 8192, 256): {"full": 1.361, "causal": 0.730}, (16, 8192, 192): {"full": 1.030, "causal": 0.609},
}
SHAPES = ((1, 32, 8192, 128), (16, 12, 2048, 64), (1, 16, 8192, 256), (1, 16, 8192, 192))


def prepared(shape):
    import cupy, numpy as np
    g = np.random.default_rng(1)
    import ml_dtypes
    return [cupy.asarray(g.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)) for _ in range(3)]


def median_ms(fn, flush):
    import cupy, numpy as np
    fn(); cupy.cuda.Device().synchronize(); time.sleep(0.2)
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(24)]
    for a, b in pairs:
        flush.fill(0); a.record(); fn(); b.record()
    cupy.cuda.Device().synchronize()
    return float(np.median([cupy.cuda.get_elapsed_time(*p) for p in pairs[4:]]))


def sampled_error(q, k, v, out, mask, scale):
    """Largest error of a few rows of the first and last head, relative to the largest result."""
    import numpy as np
    worst = 0.0
    b, h, s, _ = q.shape
    rows = np.unique(np.concatenate([np.arange(3), np.arange(s // 2 - 2, s // 2 + 2), [s - 130, s - 1]]))
    for i, j in ((0, 0), (b - 1, h - 1)):
        Q, K, V = (x[i, j].get().astype(np.float64) for x in (q, k, v))
        p = Q[rows] @ K.T * scale
        if mask is not None:
            p[~mask[rows]] = -np.inf
        p = np.exp(p - p.max(1, keepdims=True))
        want = p @ V / p.sum(1, keepdims=True)
        worst = max(worst, np.abs(out[i, j].get().astype(np.float64)[rows] - want).max() / np.abs(want).max())
    return worst


def timed():
    import cupy, numpy as np
    from stof_cupy import masks
    from stof_cupy.ops import attention_sm90
    from stof_cupy.ops.attention_args import Problem
    flush = cupy.empty(64 * 2**20, np.int32)
    say(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    for b, h, s, d in SHAPES:
        q, k, v = prepared((b, h, s, d))
        out, problem = cupy.empty_like(q), Problem("bfloat16", b, h, h, s, s, d, d)
        scale = d**-0.5
        probe = PROBE[b * h, s, d]
        for name, dense in anchors(s):
            if name not in probe:
                continue
            mask = None if dense is None else masks.BsrMask(dense)
            kept = (s * s if dense is None else int(dense.sum())) * b * h
            cells = []
            for config in attention_sm90.candidates(problem):
                try:
                    out.fill(0)
                    ms = median_ms(attention_sm90.prepare(config, problem, q, k, v, mask, scale, None, False, out), flush)
                    error = sampled_error(q, k, v, out, dense, scale)
                    cells.append(f"{config.m}x{config.n}b{config.blocks} {ms:.3f} ({4e-9 * kept * d / ms:.0f}){'' if error < 0.02 else f' WRONG {error:.1e}'}")
                except Exception as error:
                    cells.append(f"{config.m}x{config.n}b{config.blocks} {error!r:.60}")
            say(f"({b},{h},{s},{d}) {name:14} probe {probe[name]:.3f} | " + " | ".join(cells))


def sections():
    """Heads worked on at a time, for the causal mask and full attention."""
    import cupy, numpy as np
    from stof_cupy import masks
    from stof_cupy.ops import attention_sm90
    from stof_cupy.ops.attention_args import Problem
    flush = cupy.empty(64 * 2**20, np.int32)
    for b, h, s, d in SHAPES[:2]:
        q, k, v = prepared((b, h, s, d))
        out, problem = cupy.empty_like(q), Problem("bfloat16", b, h, h, s, s, d, d)
        for name, mask in (("full", None), ("causal", masks.causal(s).tobsr()), ("sliding", masks.sliding_window(s, window=256).tobsr()),
                           ("longformer", masks.longformer(s, window=256, global_tokens=64).tobsr())):
            row = []
            for heads in (1, 2, 4, 8, 16, b * h):
                config = attention_sm90.candidates(problem)[0]
                row.append(f"{heads}: {median_ms(attention_sm90.prepare(config, problem, q, k, v, mask, d**-0.5, None, False, out, section=heads), flush):.3f}")
            say(f"({b},{h},{s},{d}) {name:10} heads at a time: ms  " + "  ".join(row))


def packed():
    """Masks of scattered columns, with and without packing."""
    import cupy, numpy as np
    from stof_cupy import masks
    from stof_cupy.jit.attention_sm90 import Sm90Config
    from stof_cupy.ops import attention_sm90
    from stof_cupy.ops.attention_args import Problem
    flush = cupy.empty(64 * 2**20, np.int32)
    g = np.random.default_rng(0)
    plain = Sm90Config(128, 128, n=128, warpgroups=2), Sm90Config(128, 128, n=64, warpgroups=1, queries=1, blocks=2)
    slash = lambda s: masks.vertical_slash(s, vertical=np.sort(g.choice(s, 64, replace=False)).tolist(), slash=np.sort(g.choice(s, 64, replace=False)).tolist())
    elements = lambda s: masks.BsrMask(g.random((s, s), np.float32) < 0.01)
    for h, s, name, make in ((32, 8192, "elements 1 %", elements), (32, 8192, "vertical-slash", slash), (16, 32768, "vertical-slash", slash)):
        q, k, v = prepared((1, h, s, 128))
        out, problem = cupy.empty_like(q), Problem("bfloat16", 1, h, h, s, s, 128, 128)
        mask = make(s)
        mask = mask.tobsr() if hasattr(mask, "tobsr") else mask
        row = []
        for config in (*plain, *(replace(c, packed=True) for c in plain)):
            ms = median_ms(attention_sm90.prepare(config, problem, q, k, v, mask, 128**-0.5, None, False, out), flush)
            stats = mask.schedule((config.m, config.n), layout="accumulator", packed=config.packed).stats
            row.append(f"{config.m}x{config.n}{' packed' if config.packed else ''} {ms:.3f} ({4e-9 * stats.kept * h * 128 / ms:.1f} of {4e-9 * stats.visited * config.m * config.n * h * 128 / ms:.0f} TF)")
        say(f"(1,{h},{s},128) {name:14} " + " | ".join(row))


STAGES = {"simple": simple, "cases": cases, "time": timed, "sections": sections, "packed": packed}
if __name__ == "__main__":
    if sys.argv[1:2] == ["--stage"]:
        STAGES[sys.argv[2]]()
    else:
        for stage in sys.argv[1:] or ["simple", "cases", "time"]:
            start = time.time()
            say(f"--- {stage}")
            try:
                status = subprocess.run([sys.executable, __file__, "--stage", stage], timeout=LIMITS[stage]).returncode
            except subprocess.TimeoutExpired:
                status = f"stopped after {LIMITS[stage]} s"
            say(f"--- {stage}: {time.time() - start:.0f} s, status {status}")
            if status and stage == "simple":
                break
