"""Every variant of the Hopper attention, checked and timed on the 16 cells of issue 5, in one run that decides.

    PYTHONPATH=. python3 scratch/sm90_steps.py [check] [time] [slices] [sections] [128] [64]     all by default: about 110 s on an H100 with 16 cores

compile: all kernels, on all cores (35 s of it). check: every variant with bounded waits on small cases (lengths, empty rows, slices, scores that rise);
a hang becomes a fault with what was waited for, the variant is left out, and the others go on in another process. time: the least of ten launches after
a flush of L2, results compared with a reference first; a short table for each shape. slices: (1,16,32768,128) longformer and decoding, lists cut or not.
sections: how many heads are worked on at a time.
Times go to $OUT/sm90_steps.json as they come. Then: what wins goes into SM90_CONFIGS, its column into benchmarks/notes/sm90_attention.md, and the flags
of what loses out of Sm90Config.
"""
import json, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = Path(os.environ.get("OUT", HERE))
sys.path.insert(0, str(HERE.parent))
LIMITS = {"compile": 80, "check": 60, "time": 60, "slices": 25, "sections": 20}
WAITS = "? RowFull RowEmpty QFull QEmpty KFull KEmpty VFull VEmpty Landing".split()
MASKS = "full causal sliding causal-sliding longformer bigbird document block10".split()
SHAPES = {128: (1, 32, 8192), 64: (16, 12, 2048)}
GOAL = {128: (1.44, 0.74, 0.125, 0.085, 0.17, 0.19, 0.095, 0.24), 64: (0.365, 0.23, 0.120, 0.080, 0.140, 0.130, 0.095, 0.080)}
FIRST = {  # the best of the first run on an H100, before any of this; medians
    128: (1.478, 0.784, 0.152, 0.114, 0.198, 0.233, 0.142, 0.274), 64: (0.386, 0.241, 0.149, 0.099, 0.189, 0.172, 0.123, 0.114)}


def say(*words):
    print(*words, flush=True)


def variants(dim):
    """Tiles, the plain ones first."""
    from stof_cupy.jit.attention_sm90 import Sm90Config
    one = lambda n, groups, **how: Sm90Config(dim, dim, n=n, warpgroups=groups, **how)
    flat, eager, both, pre = {"flat": True}, {"eager": True}, {"flat": True, "eager": True}, {"prefetch": True}
    free, ahead = both | {"turns": False}, {"ahead": True, "turns": False}
    early = ahead | eager
    if dim == 128:
        big, small = one(128, 2), one(64, 1, blocks=2, queries=1)
        made = [replace(big, **how) for how in ({}, pre, flat, eager, both, free, both | pre)]
        made += [small, replace(small, **eager), replace(small, queries=2, **both), replace(small, queries=2, **ahead), replace(small, queries=2, **early | pre)]
        made += [one(64, 2, stages=4, **both), one(64, 3, **eager), one(96, 2, **both)]
        made += [one(64, 2, stages=3, **ahead), one(64, 2, stages=3, **early), one(80, 2, **ahead), one(80, 2, **early | pre)]
    else:
        big, middle, small, pair = one(128, 3), one(128, 2), one(64, 1, blocks=3), one(64, 2, blocks=2)
        made = [replace(big, **how) for how in ({}, pre, flat, eager, both, free)]
        made += [replace(middle, **how) for how in ({}, both, free)]
        made += [replace(small, **how) for how in ({}, pre, flat, eager, both, both | {"stages": 3})]
        made += [pair, replace(pair, **eager), one(128, 1, blocks=2, **both), one(64, 3, **free), one(64, 3, stages=4, **both)]
        made += [one(96, 2, **ahead), one(96, 2, **early | pre), one(64, 2, stages=4, **ahead), one(64, 2, stages=4, **early)]
        made += [one(64, 1, blocks=2, stages=4, **ahead), one(64, 1, blocks=2, stages=4, **early | pre)]
    for shape in made:
        if shape.fault():
            say("no kernel", shape.name, shape.fault())
    return [shape for shape in made if not shape.fault()]


def label(shape):
    how = "+".join(name for name in ("eager", "flat", "ahead", "prefetch") if getattr(shape, name)) or "plain"
    free = "" if shape.turns or shape.ahead else " free"
    return f"{shape.m}x{shape.n}b{shape.blocks} {how}{free} s{shape.stages}q{shape.queries}"


def spec_of(shape, bounded=False):
    from stof_cupy.jit.attention_sm90 import attention_sm90
    return attention_sm90("bfloat16", replace(shape, bounded=bounded))


def built(dim):
    """Variants whose kernels compile: those that the stage `compile` did not note as bad, nor `check` found wrong."""
    bad = set()
    for file in ("sm90_bad_compile.json", "sm90_bad_check.json"):
        if (OUT / file).exists():
            bad |= set(json.loads((OUT / file).read_text()))
    return [shape for shape in variants(dim) if shape.name not in bad]


# ---------------------------------------------------------------- compile
def compile_all(dims):
    from stof_cupy import env
    from stof_cupy.jit.attention_sm90 import attention_sm90_combine
    from stof_cupy.jit.launch import _store
    start, store, bad = time.time(), _store(env.cache_dir("kernels")), set()
    shapes = [shape for dim in dims for shape in variants(dim)]

    def build(job):
        shape, bounded = job
        try:
            store.get(spec_of(shape, bounded), "90a")
            store.get(attention_sm90_combine("bfloat16", shape.dim_v, shape.m), "90a")
        except Exception as error:
            bad.add(shape.name)
            say("BAD", shape.name, "bounded" if bounded else "", repr(error)[:300])
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the slowest first
        list(pool.map(build, sorted(((s, b) for s in shapes for b in (False, True)), key=lambda job: not (job[0].ahead and job[0].eager))))
    (OUT / "sm90_bad_compile.json").write_text(json.dumps(sorted(bad)))
    say(f"{2 * len(shapes)} kernels in {time.time() - start:.0f} s")


# ---------------------------------------------------------------- check
def check(dims):
    """One process until a variant faults, then another for those after it."""
    (OUT / "sm90_bad_check.json").unlink(missing_ok=True)
    left, bad = [(dim, shape.name) for dim in dims for shape in built(dim)], []
    while left:
        run = subprocess.run([sys.executable, __file__, "--cases", ",".join(f"{dim}:{name}" for dim, name in left)], capture_output=True, text=True)
        print(run.stdout, end="", flush=True)
        done = sum(line.startswith("done ") for line in run.stdout.splitlines())
        bad += [line.split()[1] for line in run.stdout.splitlines() if line.startswith("BAD")]
        if done < len(left):
            bad.append(left[done][1])
            say("BAD", bad[-1], "faulted", run.stderr[-300:])
        left = left[done + 1:]
    (OUT / "sm90_bad_check.json").write_text(json.dumps(sorted(set(bad))))
    say("left out:", sorted(set(bad)) or "none")


def ladder(n):
    """Small cases: name, mask, lengths, by how much scores rise from 90 keys to the next, slices."""
    import numpy as np
    from stof_cupy import masks
    from stof_cupy.testing import rng
    g, tiles = rng(3), -(-n // 64)
    some = np.kron(g.random((tiles, tiles)) < 0.4, np.ones((64, 64), bool))[:n, :n] & (g.random((n, n)) < 0.7)
    some[n // 7:n // 2] = False
    causal = masks.causal(n).tobsr()
    return [("full", None, None, 0, 1), ("causal", causal, None, 0, 1), ("window", masks.sliding_window(n, window=90).tobsr(), [n // 2, n], 0, 1),
            ("empty rows", masks.BsrMask(some), None, 0, 1), ("lengths", None, [1, 0], 0, 1), ("slices", causal, None, 0, 3), ("rising", None, None, 3.0, 1),
            ("steep", causal, None, 60.0, 2)]


def cases(text, n=700, xp=None, run=None):
    """`xp` and `run` stand in for CuPy and the GPU where this is tried without one."""
    import numpy as np
    from stof_cupy.ops import attention_sm90, reference
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.testing import budget, poison, random_array, rng
    report = None
    if xp is None:
        import cupy as xp
        from stof_cupy.jit import launch
        from stof_cupy.ops.attention_sm90_launches import launches
        pinned = xp.cuda.alloc_pinned_memory(16)
        report = np.frombuffer(pinned, np.uint32, 4)
        report[:] = 0

        def run(config, args):
            every, used = launches(config, args, report=pinned.ptr)
            for spec, blocks, fields in every:
                kernel = launch.kernel(spec, 0)
                kernel((blocks,), kernel.pack(**fields))
            xp.cuda.Device().synchronize()
    made, heads = {}, (12, 4)
    for dim, name in (each.split(":") for each in text.split(",")):
        shape, worst = next(s for s in variants(int(dim)) if s.name == name), 0.0
        for what, mask, lengths, step, splits in ladder(n):
            if (dim, what) not in made:
                g = rng(1)
                q, k, v = (random_array(g, (2, h, n, int(dim)), "bfloat16") for h in (heads[0], heads[1], heads[1]))
                if step:
                    k *= (step * (1 + np.arange(n) // 90))[:, None].astype(k.dtype)
                exact, lse = reference.attention(q, k, v, mask, kv_lengths=lengths, return_lse=True)
                low = reference.attention(q, k, v, mask, kv_lengths=lengths, precision="bfloat16")
                made[dim, what] = (*map(xp.asarray, (q, k, v)), exact, lse, budget(exact, low, q.dtype))
            q, k, v, exact, exact_lse, allowed = made[dim, what]
            out, lse = poison(q.shape, q.dtype, xp), xp.full(q.shape[:3], np.nan, np.float32)
            length = None if lengths is None else xp.asarray(lengths, np.int32)
            _, problem, checked, scores = validate(q, k, v, mask, Scores(), length, out)
            args = Args(problem, q, k, v, out, lse, checked, scores, length)
            try:
                run(attention_sm90.Config(replace(shape, bounded=True), splits - 1, splits), args)
            except Exception as error:
                say("    ", name, what, repr(error)[:150], *(() if report is None else ("waited for", WAITS[min(report[0], 9)], *report[1:])))
                sys.exit(1)
            got, got_lse = (x.get() if hasattr(x, "get") else x for x in (out, lse))
            error = np.abs(got.astype(np.float64) - exact)
            error = np.where(np.isnan(error), np.inf, error).max() / allowed
            seen = np.isfinite(exact_lse)
            lse_error = (np.abs(got_lse[seen] - exact_lse[seen]) / np.maximum(1, np.abs(exact_lse[seen]))).max()
            worst = max(worst, error)
            if error > 1 or not lse_error < 1e-4 or not np.isneginf(got_lse[~seen]).all():
                say("BAD", name, what, f"error {error:.2g} of 1, LSE {lse_error:.1e}")
        say("done", f"{name:46} worst error {worst:.2f} of 1")


# ---------------------------------------------------------------- time
def anchor(name, s):
    sys.path.insert(0, str(HERE.parent / "benchmarks"))
    from regret_cells import make_mask
    return make_mask(name, s)


def times_ms(run, flush, count=10):
    import cupy
    run()
    cupy.cuda.Device().synchronize()
    time.sleep(0.02)
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(count)]
    for a, b in pairs:
        flush.fill(0)
        a.record()
        run()
        b.record()
    cupy.cuda.Device().synchronize()
    return sorted(float(cupy.cuda.get_elapsed_time(*pair)) for pair in pairs)


def wanted(q, k, v, mask):
    """Rows of the first and last head, and what they should be."""
    import numpy as np
    b, h, s, d = q.shape
    rows, found = np.unique(np.concatenate([np.arange(min(3, s)), np.arange(max(s // 2 - 2, 0), s // 2 + 1), [max(s - 130, 0), s - 1]])), []
    for i, j in ((0, 0), (b - 1, h - 1)):
        Q, K, V = (x[i, j].get().astype(np.float32) for x in (q, k, v))
        p = Q[rows] @ K.T * d**-0.5
        if mask is not None:
            p[~mask[rows]] = -np.inf
        p = np.exp(p - p.max(1, keepdims=True))
        found.append((i, j, rows, p @ V / p.sum(1, keepdims=True)))
    return found


def wrong(out, right):
    import numpy as np
    return max(np.abs(out[i, j].get()[rows].astype(np.float32) - want).max() / np.abs(want).max() for i, j, rows, want in right) > 0.02


def arrays(b, h, sq, sk, dim):
    import cupy, ml_dtypes, numpy as np
    g = np.random.default_rng(1)
    return [cupy.asarray(g.standard_normal((b, h, s, dim), np.float32).astype(ml_dtypes.bfloat16)) for s in (sq, sk, sk)]


def timed(dims):
    import cupy
    from stof_cupy.jit import device
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_cuda import prepared
    from stof_cupy.ops.attention_demand import Case
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops.attention_sm90 import whole
    facts, flush, kept = device.facts(), cupy.empty(64 * 2**20, np_int32()), {}
    say(facts.name)
    for dim in dims:
        b, h, s = SHAPES[dim]
        shapes, table = built(dim), {}
        q, k, v = arrays(b, h, s, s, dim)
        out = cupy.empty_like(q)
        for name in MASKS:
            mask = anchor(name, s)
            right = wanted(q, k, v, None if mask is None else mask.toarray())
            _, problem, checked, scores = validate(q, k, v, mask, Scores(), None, out)
            case, args = Case(problem, checked, facts), Args(problem, q, k, v, out, None, checked, scores, None)
            for shape in shapes:
                try:
                    out.fill(0)
                    ms = times_ms(prepared(whole(shape, case), args), flush)
                    table.setdefault(label(shape), []).append((ms[0], ms[len(ms) // 2], "!" if wrong(out, right) else ""))
                except Exception as error:
                    say(label(shape), name, repr(error)[:150])
                    table.setdefault(label(shape), []).append((float("inf"), float("inf"), "!"))
            kept[str(dim)] = {"masks": MASKS, "least, median, wrong": table}
            (OUT / "sm90_steps.json").write_text(json.dumps(kept))
        say(f"\n({b},{h},{s},{dim}) bf16, ms, least of ten; '!': wrong, '*': best" + "\n" + " " * 38 + "".join(f"{name[:9]:>10}" for name in MASKS))
        show = lambda what, row: say(f"{what:38}" + "".join(f"{x:>10}" for x in row))
        show("goal", GOAL[dim])
        show("first run, best, median", FIRST[dim])
        best = [min(row[i][0] for row in table.values() if not row[i][2]) for i in range(len(MASKS))]
        for what, row in table.items():
            show(what, [f"{least:.3f}{flag}" + ("*" if least == best[i] else "") for i, (least, _, flag) in enumerate(row)])


def np_int32():
    import numpy as np
    return np.int32


# ---------------------------------------------------------------- slices
def slices():
    """Lists that are cut: the row of global tokens, and decoding; beside what the model says."""
    import cupy
    from stof_cupy.jit import device
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_cuda import prepared
    from stof_cupy.ops.attention_demand import Case
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops.attention_model import explain
    facts, flush = device.facts(), cupy.empty(64 * 2**20, np_int32())
    for what, (b, h, sq, sk, dim) in {"longformer": (1, 16, 32768, 32768, 128), "causal": (1, 4, 4096, 4096, 64), "decode": (8, 8, 1, 16384, 128)}.items():
        mask = None if what == "decode" else anchor(what, sk)
        q, k, v = arrays(b, h, sq, sk, dim)
        out = cupy.empty_like(q)
        right = wanted(q, k, v, mask if mask is None or sk > 8192 else mask.toarray()) if sk <= 8192 or mask is None else None
        _, problem, checked, scores = validate(q, k, v, mask, Scores(), None, out)
        case, args = Case(problem, checked, facts), Args(problem, q, k, v, out, None, checked, scores, None)
        say(f"\n{what} ({b},{h},{sq}x{sk},{dim}) us: least, predicted")
        first = None
        for each in [*explain(case, select="sm90")[:8], explain(case)[0]]:
            out.fill(0)
            ms = times_ms(prepared(each.candidate, args), flush, 7)
            first = out.copy() if first is None else first
            off = float(abs(out.astype("f4") - first.astype("f4")).max())
            flag = "!" if off > 0.02 or (right and wrong(out, right)) else ""
            say(f"  {each.name:44} {1e3 * ms[0]:8.1f}{flag} {each.us:8.1f}")


# ---------------------------------------------------------------- sections
def sections(dims):
    """How many heads are worked on at a time: 0 is what the host takes."""
    import cupy
    from stof_cupy.jit import device, launch
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_demand import Case
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops.attention_sm90 import whole
    from stof_cupy.ops.attention_sm90_launches import launches
    facts, flush = device.facts(), cupy.empty(64 * 2**20, np_int32())
    for dim in dims:
        b, h, s = SHAPES[dim]
        q, k, v = arrays(b, h, s, s, dim)
        out, shape = cupy.empty_like(q), variants(dim)[0]
        for name in ("causal", "sliding", "document", "block10"):
            _, problem, mask, scores = validate(q, k, v, anchor(name, s), Scores(), None, out)
            args, row = Args(problem, q, k, v, out, None, mask, scores, None), []
            for section in (0, 1, 4, 16, b * h):
                every, used = launches(whole(shape, Case(problem, mask, facts)), args, section=section)
                spec, blocks, fields = every[0]
                kernel = launch.kernel(spec, 0)
                params = kernel.pack(**fields)
                row.append(f"{section}: {times_ms(lambda: kernel((blocks,), params), flush)[0]:.3f}")
            say(f"{label(shape)} {name:12}", *row)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cases"]:
        cases(sys.argv[2])
    elif sys.argv[1:2] == ["--stage"]:
        dims = [int(dim) for dim in sys.argv[3:]]
        {"compile": lambda: compile_all(dims), "check": lambda: check(dims), "time": lambda: timed(dims), "slices": slices, "sections": lambda: sections(dims)}[sys.argv[2]]()
    else:
        dims = [word for word in sys.argv[1:] if word.isdigit()] or ["128", "64"]
        asked = [word for word in sys.argv[1:] if not word.isdigit()] or ["check", "time", "slices", "sections"]
        for stage in ["compile", *asked]:
            start = time.time()
            say(f"--- {stage}")
            try:
                status = subprocess.run([sys.executable, __file__, "--stage", stage, *dims], timeout=LIMITS[stage]).returncode
            except subprocess.TimeoutExpired:
                status = f"stopped after {LIMITS[stage]} s"
            say(f"--- {stage}: {time.time() - start:.0f} s, status {status}")
