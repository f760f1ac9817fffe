"""Variants of the Hopper attention on a GPU: python3 .gpu/sm90_variants.py [check] [time] [D]; each stage is a process of its own.

check: every variant with bounded waits on small cases (lengths, empty rows, scores that rise); a hang becomes a fault with what was waited for, and
the variant is left out. time: ms of each variant and mask at the two shapes of issue 5, checked on a few rows first; D (128 or 64): that shape alone.
PYTHONPATH is the clone; device calls carry .gpu. About 90 s in all, 25 of them compiling on all cores. Raw times go to $OUT/sm90_variants.json.
"""
import json, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
LIMITS = {"check": 120, "time": 150}
WAITS = "? RowFull RowEmpty QFull QEmpty KFull KEmpty VFull VEmpty Landing".split()
MASKS = "full causal sliding causal-sliding longformer bigbird document block10".split()
SHAPES = {128: (1, 32, 8192), 64: (16, 12, 2048)}
GOAL = {128: (1.44, 0.74, 0.125, 0.085, 0.17, 0.19, 0.095, 0.24), 64: (0.365, 0.23, 0.120, 0.080, 0.140, 0.130, 0.095, 0.080)}
TODAY = {  # the first run on an H100, before any of this
    128: {"128x128b1": (1.478, 0.784, 0.152, 0.114, 0.198, 0.288, 0.142, 0.582), "64x64b2": (None, None, 0.183, 0.128, 0.216, 0.233, 0.161, 0.274)},
    64: {"192x128b1": (0.386, 0.241, 0.159, 0.121, 0.213, 0.265, 0.123, 0.234), "128x128b1": (0.463, 0.263, 0.163, 0.114, 0.209, 0.269, 0.132, 0.200),
         "64x64b3": (0.472, 0.248, 0.149, 0.099, 0.189, 0.172, 0.125, 0.114), "128x64b2": (0.428, 0.259, 0.152, 0.106, 0.192, 0.196, 0.125, 0.139)},
}


def say(*words):
    print(*words, flush=True)


def variants(dim):
    """Configurations, those of today first."""
    from stof_cupy.jit.attention_sm90 import Sm90Config
    one = lambda n, groups, **how: Sm90Config(dim, dim, n=n, warpgroups=groups, **how)
    flat, eager, both = {"flat": True}, {"eager": True}, {"flat": True, "eager": True}
    free = both | {"turns": False}
    if dim == 128:
        big, small = one(128, 2), one(64, 1, blocks=2, queries=1)
        made = [replace(big, **how) for how in ({}, flat, eager, both, free)]
        made += [small, replace(small, eager=True), replace(small, queries=2, **both)]
        made += [one(64, 2, stages=4, **both), one(64, 3, **eager), one(96, 2, **both)]
    else:
        big, middle, small, pair = one(128, 3), one(128, 2), one(64, 1, blocks=3), one(64, 2, blocks=2)
        made = [replace(big, **how) for how in ({}, flat, eager, both, free)]
        made += [replace(middle, **how) for how in ({}, both, free)]
        made += [replace(small, **how) for how in ({}, flat, eager, both, both | {"stages": 3})]
        made += [pair, replace(pair, eager=True), one(128, 1, blocks=2, **both), one(64, 3, **free), one(64, 3, stages=4, **both)]
    for config in made:
        if config.fault():
            say("no kernel", config.name, config.fault())
    return [config for config in made if not config.fault()]


def label(config):
    how = "+".join(name for name in ("eager", "flat") if getattr(config, name)) or "plain"
    more = ("" if config.turns else " free") + (f" s{config.stages}" if config.stages != 2 else "") + f" q{config.queries}"
    return f"{config.m}x{config.n}b{config.blocks} {how}{more}"


def compile_all(configs):
    """Kernels into the cache, on all cores; returns the configurations that compile."""
    from stof_cupy import env
    from stof_cupy.jit.attention_sm90 import attention_sm90
    from stof_cupy.jit.launch import _store
    start, store, failed = time.time(), _store(env.cache_dir("kernels")), []

    def build(config):
        try:
            store.get(attention_sm90("bfloat16", config), "90a")
        except Exception as error:
            failed.append(config)
            say("BAD", config.name, repr(error)[:300])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, configs))
    say(f"{len(configs)} kernels in {time.time() - start:.0f} s")
    return [config for config in configs if config not in failed]


# ---------------------------------------------------------------- check
def check(dims):
    """One process for each variant: a fault ends it."""
    configs = [config for dim in dims for config in variants(dim)]
    good = set(compile_all(configs + [replace(config, bounded=True) for config in configs]))
    bad = [config.name for config in configs if config not in good or replace(config, bounded=True) not in good]
    left = [(dim, i) for dim in dims for i, config in enumerate(variants(dim)) if config.name not in bad]
    while left:  # until the first fault, then another process for those after it
        text = ",".join(f"{dim}:{i}" for dim, i in left)
        run = subprocess.run([sys.executable, __file__, "--cases", text], capture_output=True, text=True)
        print(run.stdout, end="", flush=True)
        done = run.stdout.count("\ndone ") + run.stdout.startswith("done ")
        bad += [line.split()[1] for line in run.stdout.splitlines() if line.startswith("BAD")]
        if done < len(left):
            dim, i = left[done]
            bad.append(variants(dim)[i].name)
            say("BAD", bad[-1], "faulted", run.stderr[-300:])
        left = left[done + 1:]
    (HERE / "bad.json").write_text(json.dumps(sorted(set(bad))))
    say("variants left out:", sorted(set(bad)) or "none")


def cases(text):
    import cupy, numpy as np
    from stof_cupy import masks
    from stof_cupy.ops import attention_sm90, reference
    from stof_cupy.ops.attention_args import Problem
    from stof_cupy.testing import budget, poison, random_array, rng
    pinned = cupy.cuda.alloc_pinned_memory(16)
    report = np.frombuffer(pinned, np.uint32, 4)
    report[:] = 0
    n, made = 700, {}
    g = rng(3)
    some = np.kron(g.random((11, 11)) < 0.4, np.ones((64, 64), bool))[:n, :n] & (g.random((n, n)) < 0.7)
    some[100:300] = False
    ladder = [("full", None, None, 0), ("causal", masks.causal(n).tobsr(), None, 0), ("window", masks.sliding_window(n, window=90).tobsr(), [333, 700], 0),
              ("empty rows", masks.BsrMask(some), None, 0), ("lengths", None, [1, 0], 0), ("rising", None, None, 3.0), ("steep", masks.causal(n).tobsr(), None, 60.0)]
    for dim, i in (map(int, each.split(":")) for each in text.split(",")):
        config, worst = variants(dim)[i], 0.0
        for what, mask, lengths, step in ladder:
            if (dim, what) not in made:
                g = rng(1)
                q, k, v = (random_array(g, (2, h, n, dim), "bfloat16") for h in (12, 4, 4))
                if step:
                    k *= (step * (1 + np.arange(n) // 90))[:, None].astype(k.dtype)
                exact, lse = reference.attention(q, k, v, mask, kv_lengths=lengths, return_lse=True)
                low = reference.attention(q, k, v, mask, kv_lengths=lengths, precision="bfloat16")
                made[dim, what] = (*map(cupy.asarray, (q, k, v)), exact, lse, budget(exact, low, q.dtype))
            q, k, v, exact, exact_lse, allowed = made[dim, what]
            problem = Problem("bfloat16", 2, 12, 4, n, n, dim, dim)
            out = poison((2, 12, n, dim), q.dtype, cupy)
            length = None if lengths is None else cupy.asarray(lengths, np.int32)
            try:
                _, lse = attention_sm90.launch(replace(config, bounded=True), problem, q, k, v, mask, dim**-0.5, length, True, out, report=pinned.ptr)
                cupy.cuda.Device().synchronize()
            except Exception as error:
                say("    ", config.name, what, repr(error)[:150], "waited for", WAITS[min(report[0], 9)], *report[1:])
                sys.exit(1)
            error = np.abs(out.get().astype(np.float64) - exact)
            error = np.where(np.isnan(error), np.inf, error).max() / allowed
            seen = np.isfinite(exact_lse)
            lse_error = (np.abs(lse.get()[seen] - exact_lse[seen]) / np.maximum(1, np.abs(exact_lse[seen]))).max()
            worst = max(worst, error)
            if error > 1 or lse_error > 1e-4 or np.isfinite(lse.get())[~seen].any():
                say("BAD", config.name, what, f"error {error:.2g} of 1, LSE {lse_error:.1e}")
        say("done", f"{config.name:36} worst error {worst:.2f} of 1")


# ---------------------------------------------------------------- time
def anchors(s):
    import numpy as np
    g, nb = np.random.default_rng(0), -(-s // 64)
    random = g.random((nb, nb)) < min(1.0, 3.0 / nb)
    w, glob = 256, 64
    docs = np.sort(g.integers(0, max(2, s // 512), s))
    sparse = (g.random((nb, nb)) < 0.1) | np.eye(nb, dtype=bool)
    q, k = np.arange(s, dtype=np.int32)[:, None], np.arange(s, dtype=np.int32)[None]
    near = np.abs(q - k) <= w
    yield None
    yield q >= k
    yield near
    yield (q >= k) & near
    yield near | (q < glob) | (k < glob)
    yield (np.abs(q // 64 - k // 64) <= 1) | (q < 128) | (k < 128) | random[q // 64, k // 64]
    yield (docs[:, None] == docs[None]) & (q >= k)
    yield sparse[q // 64, k // 64]


def median_ms(fn, flush):
    import cupy, numpy as np
    fn(); cupy.cuda.Device().synchronize(); time.sleep(0.05)
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(14)]
    for a, b in pairs:
        flush.fill(0); a.record(); fn(); b.record()
    cupy.cuda.Device().synchronize()
    return float(np.median([cupy.cuda.get_elapsed_time(*p) for p in pairs[2:]]))


def wanted(q, k, v, mask):
    """Rows of the first and last head, and what they should be."""
    import numpy as np
    b, h, s, d = q.shape
    rows, found = np.unique(np.concatenate([np.arange(3), np.arange(s // 2 - 2, s // 2 + 2), [s - 130, s - 1]])), []
    for i, j in ((0, 0), (b - 1, h - 1)):
        Q, K, V = (x[i, j].get().astype(np.float32) for x in (q, k, v))
        p = Q[rows] @ K.T * d**-0.5
        if mask is not None:
            p[~mask[rows]] = -np.inf
        p = np.exp(p - p.max(1, keepdims=True))
        found.append((i, j, rows, p @ V / p.sum(1, keepdims=True)))
    return found


def timed(dims):
    import cupy, ml_dtypes, numpy as np
    from stof_cupy import masks
    from stof_cupy.ops import attention_sm90
    from stof_cupy.ops.attention_args import Problem
    bad = json.loads((HERE / "bad.json").read_text()) if (HERE / "bad.json").exists() else []
    flush, times = cupy.empty(64 * 2**20, np.int32), {}
    say(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    for dim in dims:
        b, h, s = SHAPES[dim]
        configs = compile_all([config for config in variants(dim) if config.name not in bad])
        g = np.random.default_rng(1)
        q, k, v = (cupy.asarray(g.standard_normal((b, h, s, dim), np.float32).astype(ml_dtypes.bfloat16)) for _ in range(3))
        out, problem = cupy.empty_like(q), Problem("bfloat16", b, h, h, s, s, dim, dim)
        table = {label(config): [] for config in configs}
        for name, dense in zip(MASKS, anchors(s)):
            mask, right = None if dense is None else masks.BsrMask(dense), wanted(q, k, v, dense)
            for config in configs:
                try:
                    out.fill(0)
                    ms = median_ms(attention_sm90.prepare(config, problem, q, k, v, mask, dim**-0.5, None, False, out), flush)
                    error = max(np.abs(out[i, j].get()[rows].astype(np.float32) - want).max() / np.abs(want).max() for i, j, rows, want in right)
                    table[label(config)].append((ms, "" if error < 0.02 else "!"))
                except Exception as error:
                    say(label(config), name, repr(error)[:150])
                    table[label(config)].append((float("inf"), "!"))
        say(f"\n({b},{h},{s},{dim}) ms; '!': wrong, '*': best" + "\n" + " " * 30 + "".join(f"{name[:9]:>10}" for name in MASKS))
        show = lambda what, row: say(f"{what:30}" + "".join(f"{x:>10}" for x in row))
        show("goal", GOAL[dim])
        for what, row in TODAY[dim].items():
            show(f"today {what}", [x or "" for x in row])
        best = [min(row[i][0] for row in table.values()) for i in range(len(MASKS))]
        for what, row in table.items():
            show(what, [f"{ms:.3f}{flag}" + ("*" if ms == best[i] else "") for i, (ms, flag) in enumerate(row)])
        times[dim] = {what: [ms for ms, _ in row] for what, row in table.items()}
    Path(os.environ.get("OUT", HERE), "sm90_variants.json").write_text(json.dumps({"masks": MASKS, "ms": times}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cases"]:
        cases(sys.argv[2])
    elif sys.argv[1:2] == ["--stage"]:
        {"check": check, "time": timed}[sys.argv[2]]([int(dim) for dim in sys.argv[3:]])
    else:
        dims = [dim for dim in sys.argv[1:] if dim.isdigit()] or ["128", "64"]
        for stage in [word for word in sys.argv[1:] if not word.isdigit()] or ["check", "time"]:
            start = time.time()
            say(f"--- {stage}")
            try:
                status = subprocess.run([sys.executable, __file__, "--stage", stage, *dims], timeout=LIMITS[stage]).returncode
            except subprocess.TimeoutExpired:
                status = f"stopped after {LIMITS[stage]} s"
            say(f"--- {stage}: {time.time() - start:.0f} s, status {status}")
