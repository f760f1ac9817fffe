"""The Hopper GEMM on a GPU: python3 .gpu/gemm_sm90.py [simple] [cases] [time] [epilogue] [norm] [raster]; each stage is a process of its own.

simple: a ladder of cases with bounded waits; a hang becomes a fault with what was waited for. cases: the GPU tests of the GEMM. time: plain
products of the issue's shapes, the model's best candidates against torch.matmul (cupy.matmul in float16 where there is no torch). epilogue: bias
+ GELU (tanh on both sides) against cuBLASLt's epilogue and torch.compile, SwiGLU, bias + residual. norm: bias + residual + LayerNorm. raster: group sizes and clusters of 8192^3.
PYTHONPATH is the clone; device calls carry .gpu. simple about 1 minute, cases 4-5, time 3, epilogue 3. Raw times go to $OUT/gemm_<stage>.json.
"""
import json, math, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
LIMITS = {"simple": 200, "cases": 480, "time": 420, "epilogue": 420, "norm": 240, "raster": 120}
WAITS = "? Full Empty Residual Statistics".split()


def say(*words):
    print(*words, flush=True)


def compile_all(specs):
    """Kernels into the cache, on all cores; then loading them takes no time."""
    from stof_cupy import env
    from stof_cupy.jit.launch import _store
    start, store = time.time(), _store(env.cache_dir("kernels"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [f"{spec.name}: {error!r:.200}" for spec, error in pool.map(lambda s: (s, attempt(store, s)), specs) if error]
    say(f"{len(specs)} kernels in {time.time() - start:.0f} s", *failed)


def attempt(store, spec):
    try:
        store.get(spec, "90a")
    except Exception as error:
        return error


# ---------------------------------------------------------------- simple
def simple():
    import cupy, numpy as np
    from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
    from stof_cupy.jit.gemm_sm90 import Sm90Gemm, for_layout, gemm_sm90
    from stof_cupy.ops import gemm_sm90 as ours, reference
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_sm90 import Norm, Plan
    from stof_cupy.testing import budget, poison, random_array, rng

    pinned = cupy.cuda.alloc_pinned_memory(16)
    report = np.frombuffer(pinned, np.uint32, 4)
    report[:] = 0
    shared, pair, turns = Sm90Gemm(128, 64), Sm90Gemm(128, 128, cluster=2), Sm90Gemm(64, 64, pingpong=True)
    big, tall, swap = Sm90Gemm(128, 256, cluster=2), Sm90Gemm(256, 128, cluster=2), Sm90Gemm(128, 16, swapped=True, split=True)
    two, pieces = Sm90Gemm(128, 192, pingpong=True, cluster=2), Sm90Gemm(128, 128, split=True)
    every = EpilogueKind(scale=True, bias=True, activation="gelu_tanh", residual=True)
    bare, added = EpilogueKind(bias=True), EpilogueKind(bias=True, residual=True)
    gelu, gate = EpilogueKind(bias=True, activation="gelu"), EpilogueKind(bias=True, activation="silu", gated=True)
    ladder = [  # what, config, (m, n, k), layout, epilogue, pieces
        ("one step", shared, (128, 64, 64), "kk", PLAIN, 1), ("five steps", shared, (128, 64, 320), "kk", PLAIN, 1),
        ("the ring goes round", shared, (128, 64, 2000), "kk", PLAIN, 1), ("tails", shared, (100, 40, 72), "kk", PLAIN, 1),
        ("C without a map", shared, (100, 43, 72), "kk", PLAIN, 1), ("many tiles", shared, (3000, 1000, 328), "kk", PLAIN, 1),
        ("A transposed", shared, (104, 40, 72), "mk", PLAIN, 1), ("B transposed", shared, (100, 40, 72), "km", PLAIN, 1), ("both", shared, (3000, 1000, 328), "mm", PLAIN, 1),
        ("ping-pong, one tile", turns, (64, 64, 64), "kk", PLAIN, 1), ("two tiles", turns, (128, 64, 640), "kk", PLAIN, 1), ("many", turns, (3000, 1000, 328), "kk", PLAIN, 1),
        ("a cluster, one pair", pair, (256, 128, 64), "kk", PLAIN, 1), ("half a pair", pair, (100, 128, 640), "kk", PLAIN, 1), ("many pairs", pair, (3000, 1000, 328), "kk", PLAIN, 1),
        ("transposed pairs", pair, (3000, 1000, 328), "mm", PLAIN, 1), ("128x256", big, (5000, 3000, 1000), "kk", PLAIN, 1), ("256x128", tall, (5000, 3000, 1000), "kk", PLAIN, 1),
        ("192 ping-pong pairs", two, (5000, 3000, 1000), "kk", PLAIN, 1), ("its transposed", two, (5000, 3000, 1000), "mm", PLAIN, 1),
        ("K in pieces", pieces, (300, 200, 1000), "kk", PLAIN, 4), ("many", pieces, (2000, 1000, 2000), "kk", PLAIN, 3),
        ("swapped, one", swap, (16, 128, 64), "kk", PLAIN, 1), ("pieces", swap, (16, 3000, 1000), "kk", PLAIN, 5), ("one row", swap, (1, 3000, 1000), "kk", every, 5),
        ("every stage", shared, (300, 200, 200), "kk", every, 1), ("128x256", big, (3000, 1000, 328), "kk", every, 1), ("ping-pong", two, (3000, 1000, 328), "kk", every, 1),
        ("norm, one CTA", Sm90Gemm(128, 64, across=1), (100, 60, 72), "kk", bare, 1), ("norm, two", Sm90Gemm(128, 64, across=2), (3000, 120, 328), "kk", bare, 1),
        ("norm and residual", Sm90Gemm(128, 256, across=3), (5000, 768, 328), "kk", added, 1), ("of eight", Sm90Gemm(128, 256, across=8), (5000, 2048, 328), "kk", added, 1),
        ("GELU", big, (3000, 1000, 328), "kk", gelu, 1), ("gate", big, (3000, 1000, 328), "kk", gate, 1), ("swapped gate", swap, (9, 1000, 328), "kk", gate, 2),
    ]
    bounded = lambda config: replace(config, bounded=True)
    compile_all(list(dict.fromkeys(gemm_sm90("bfloat16", for_layout(bounded(c), l[0] == "m", l[1] == "m"), e) for _, c, _, l, e, _ in ladder)))
    for what, config, (m, n, k), layout, kind, splits in ladder:
        g, columns = rng(1), n * kind.halves
        def operand(rows, along, scale=1.0):
            shape = (rows, -(-k // 8) * 8) if along == "k" else (k, -(-rows // 8) * 8)
            x = cupy.asarray(random_array(g, shape, "bfloat16", scale))
            return x[:, :k] if along == "k" else x[:, :rows].T
        a, b = operand(m, layout[0]), operand(columns, layout[1], k**-0.5)
        bias = cupy.asarray(random_array(g, (columns,), "bfloat16")) if kind.bias else None
        residual = cupy.asarray(random_array(g, (m, n), "bfloat16")) if kind.residual else None
        scale = 0.5 if kind.scale else 1.0
        out, problem = poison((m, n), a.dtype, cupy), Problem("bfloat16", m, n, k, kind)
        norm = Norm(*(cupy.asarray(random_array(g, (n,), "bfloat16")) for _ in "wb"), 1e-5) if config.across else None
        try:
            ours.prepare(Plan(bounded(config), splits), problem, a, b, out, bias=bias, residual=residual, scale=scale, norm=norm, report=pinned.ptr)()
            cupy.cuda.Device().synchronize()
        except Exception as error:
            say("BAD", what, config.name, repr(error)[:300])
            say("    waited for", WAITS[min(report[0], len(WAITS) - 1)], "block", report[1], "thread", report[2], "parity", report[3])
            sys.exit(1)
        cpu = lambda x: None if x is None else x.get()
        how = dict(bias=cpu(bias), residual=cpu(residual), activation=kind.activation, gated=kind.gated, scale=scale)
        exact = reference.gemm(cpu(a), cpu(b).T, **how)
        low = reference.gemm(cpu(a), cpu(b).T, **how, precision="bfloat16")
        if norm:
            exact = reference.layer_norm(exact, cpu(norm.weight), cpu(norm.bias), eps=1e-5)
            low = reference.layer_norm(low, cpu(norm.weight), cpu(norm.bias), eps=1e-5, precision="bfloat16")
        got = out.get().astype(np.float64)
        error, allowed = np.abs(got - exact), budget(exact, low, a.dtype)
        error = np.where(np.isnan(error), np.inf, error)
        ok = error.max() <= allowed
        say("ok " if ok else "BAD", f"{what:20} {(m, n, k)!s:18} {layout} {config.name:28} {kind.name} error {error.max():.1e} of {allowed:.1e}")
        if not ok:
            rows, cols = (error > allowed).any(1).nonzero()[0], (error > allowed).any(0).nonzero()[0]
            say("    wrong rows", rows[:12], len(rows), "columns", cols[:12], len(cols), "NaN", np.isnan(got).sum())
            say("    got  ", got[rows[0], cols[0]:cols[0] + 6], "\n    exact", exact[rows[0], cols[0]:cols[0] + 6])


# ---------------------------------------------------------------- cases
def cases():
    command = "-m pytest -q --maxfail=25 -p no:cacheprovider -m gpu --require-gpu tests/ops/test_gemm_sm90.py tests/ops/test_gemm_norm.py tests/ops/test_gemm.py"
    run = subprocess.run([sys.executable, *command.split()], cwd=HERE.parent, capture_output=True, text=True)
    for line in run.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR", "E  ")) or " passed" in line or " failed" in line:
            say(line[:220])


# ---------------------------------------------------------------- time
ROWS = (1, 16, 128, 512, 4096, 32768)
WEIGHTS = ((2304, 768), (768, 768), (3072, 768), (768, 3072), (3072, 1024), (1024, 4096), (3072, 2048), (16384, 2048), (2048, 8192), (1728, 576), (576, 1536))
CUBES = ((4096, 4096, 4096), (8192, 8192, 8192))


class Bench:
    """Arrays that CuPy and torch share, and a timer."""

    def __init__(self):
        import cupy
        try:
            import torch
        except ImportError:
            torch = None
        self.cupy, self.torch = cupy, torch
        self.dtype = "bfloat16" if torch else "float16"
        self.flush = cupy.empty(64 * 2**20, cupy.int32)
        if torch:
            # One stream for both: the legacy default stream.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        say(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "torch " + torch.__version__ if torch else "no torch: cupy.matmul in float16")

    def array(self, shape, scale=1.0, seed=0):
        """Return the same numbers for both libraries."""
        cupy = self.cupy
        x = cupy.random.default_rng(seed).standard_normal(shape, cupy.float32) * cupy.float32(scale)
        if not self.torch:
            return x.astype(cupy.float16), None
        import ml_dtypes
        t = self.torch.from_dlpack(x).to(self.torch.bfloat16)
        keep = self.torch.utils.dlpack.to_dlpack(t.view(self.torch.int16))
        return cupy.from_dlpack(keep).view(ml_dtypes.bfloat16), t

    def ms(self, fn, repeat=20):
        """Median; L2 flushed before each."""
        cupy = self.cupy
        fn(); fn(); cupy.cuda.Device().synchronize()
        pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(repeat)]
        for a, b in pairs:
            self.flush.fill(0); a.record(); fn(); b.record()
        cupy.cuda.Device().synchronize()
        times = sorted(cupy.cuda.get_elapsed_time(*p) for p in pairs[2:])
        return times[len(times) // 2]


def plans(problem, found, count):
    """The model's best candidates on wgmma, but a configuration once or twice, and what it chose."""
    from stof_cupy.jit import device
    from stof_cupy.ops import gemm_model
    seen, picked = {}, []
    for each in gemm_model.explain(problem, found, device.facts()):
        config = getattr(each.choice, "config", None)
        if config is None or seen.get(config, 0) > 1 or len(picked) >= count:
            continue
        seen[config] = seen.get(config, 0) + 1
        picked.append((each.choice, each.us))
    return picked


def named(plan):
    return plan.config.name.replace("_pingpong", "pp").replace("_swapped", "sw").replace("_split", "") + (f"/{plan.splits}" if plan.splits > 1 else "")


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def save(stage, rows):
    folder = Path(os.environ.get("OUT", HERE))
    (folder / f"gemm_{stage}.json").write_text(json.dumps(rows))


def timed():
    import numpy as np
    from stof_cupy.jit.gemm_sm90 import gemm_sm90
    from stof_cupy.ops import gemm_sm90 as ours
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_sm90 import Layout
    bench = Bench()
    shapes = [(m, n, k) for m in reversed(ROWS) for n, k in WEIGHTS] + list(CUBES)
    problems = {shape: Problem(bench.dtype, *shape) for shape in shapes}
    todo = {shape: plans(problem, Layout(), 9) for shape, problem in problems.items()}
    compile_all(list(dict.fromkeys(gemm_sm90(bench.dtype, p.config, problems[s].epilogue) for s in shapes for p, _ in todo[s])))
    rows, start = [], time.time()
    for m, n, k in shapes:
        if time.time() - start > 330:
            say("no time for more"); break
        a, ta = bench.array((m, k)); b, tb = bench.array((n, k), k**-0.5, 1)
        out = bench.cupy.empty((m, n), a.dtype)
        time.sleep(0.1)
        if bench.torch:
            tout = bench.torch.empty(m, n, dtype=ta.dtype, device=ta.device)
            peer = bench.ms(lambda: bench.torch.matmul(ta, tb.T, out=tout)) * 1e3
            want = tout.float()
        else:
            peer = bench.ms(lambda: bench.cupy.matmul(a, b.T, out=out)) * 1e3
            want = out.astype(np.float32)
        cells, wrong = [], []
        for plan, model in todo[m, n, k]:
            try:
                out.fill(0)
                us = bench.ms(ours.prepare(plan, problems[m, n, k], a, b, out)) * 1e3
            except Exception as error:
                wrong.append(f"{named(plan)} {error!r:.80}"); continue
            got = out.astype(np.float32)
            if bench.torch:
                got = bench.torch.from_dlpack(got)
            off = float(abs(got - want).max()) / float(abs(want).max())
            if not off < 0.01:
                wrong.append(f"{named(plan)} WRONG {off:.1e}")
            cells.append((us, named(plan), model))
        if not cells:
            say((m, n, k), wrong); continue
        best, first = min(cells), cells[0]
        rows.append(dict(m=m, n=n, k=k, peer=peer, cells=cells))
        flops, moved = 2e-6 * m * n * k, 2e-6 * (m * k + n * k + m * n)
        say(f"{m:5} {n:5}x{k:<5} peer {peer:7.1f} us {flops / peer:4.0f} TF | chosen {first[1]:16} {first[0]:7.1f} x{peer / first[0]:.2f} | best {best[1]:16} {best[0]:7.1f} "
            f"x{peer / best[0]:.2f} {flops / best[0]:4.0f} TF {moved / best[0]:.2f} TB/s |", " ".join(wrong) or "; ".join(f"{name} {us:.1f} ({model:.0f})" for us, name, model in sorted(cells)[1:4]))
    save("time", rows)
    summary(rows)


def summary(rows):
    groups = {"M >= 512": lambda r: r["m"] >= 512, "M 32768, K <= 1024": lambda r: r["m"] == 32768 and r["k"] <= 1024, "M 128": lambda r: r["m"] == 128, "M <= 16": lambda r: r["m"] <= 16}
    for name, belongs in groups.items():
        some = [r for r in rows if belongs(r)]
        if not some:
            continue
        best = [r["peer"] / min(r["cells"])[0] for r in some]
        chosen = [r["peer"] / r["cells"][0][0] for r in some]
        regret = [r["cells"][0][0] / min(r["cells"])[0] for r in some]
        say(f"{name:20} {len(some):3} cells: best x{geomean(best):.3f} (worst {min(best):.2f}, won {sum(x >= 1 for x in best)}) | chosen x{geomean(chosen):.3f} (worst {min(chosen):.2f}) | regret mean {sum(regret) / len(regret):.3f} worst {max(regret):.2f}")


# ---------------------------------------------------------------- epilogue
def epilogue():
    import numpy as np
    from stof_cupy.jit.epilogues import EpilogueKind
    from stof_cupy.jit.gemm_sm90 import gemm_sm90
    from stof_cupy.ops import gemm_sm90 as ours
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_sm90 import Layout
    bench, torch = Bench(), None
    torch = bench.torch
    kinds = {"gelu": EpilogueKind(bias=True, activation="gelu_tanh"), "erf": EpilogueKind(bias=True, activation="gelu"),
             "swiglu": EpilogueKind(activation="silu", gated=True), "residual": EpilogueKind(bias=True, residual=True)}
    shapes = [(m, n, k) for m in (32768, 4096, 512) for n, k in WEIGHTS] + list(CUBES)
    jobs = [(name, shape) for name in kinds for shape in shapes if name == "gelu" or (shape[0] >= 4096 and shape[1:] in (*WEIGHTS[2:4], *WEIGHTS[6:9]))]
    todo = {(name, s): plans(Problem(bench.dtype, *s, kinds[name]), Layout(), 5) for name, s in jobs}
    compile_all(list(dict.fromkeys(gemm_sm90(bench.dtype, p.config, kinds[name]) for (name, _), found in todo.items() for p, _ in found)))
    rows, start, compiled = [], time.time(), {}
    if torch:
        F = torch.nn.functional
        def plain(name):
            if name == "gelu": return lambda x, w, b, r: F.gelu(F.linear(x, w, b), approximate="tanh")
            if name == "erf": return lambda x, w, b, r: F.gelu(F.linear(x, w, b))
            if name == "residual": return lambda x, w, b, r: F.linear(x, w, b) + r
            def swiglu(x, w, b, r):
                g, u = F.linear(x, w).chunk(2, -1)
                return F.silu(g) * u
            return swiglu
    for name, (m, n, k) in jobs:
        if time.time() - start > 320:
            say("no time for more"); break
        kind = kinds[name]
        problem, columns = Problem(bench.dtype, m, n, k, kind), n * kind.halves
        a, ta = bench.array((m, k)); b, tb = bench.array((columns, k), k**-0.5, 1)
        bias, tbias = bench.array((columns,), 1.0, 2)
        residual, tres = bench.array((m, n), 1.0, 3) if kind.residual else (None, None)
        out = bench.cupy.empty((m, n), a.dtype)
        time.sleep(0.1)
        peers = {}
        if torch:
            run = plain(name)
            want = run(ta, tb, tbias, tres).float()
            peers["eager"] = bench.ms(lambda: run(ta, tb, tbias, tres), 12) * 1e3
            if name == "gelu":
                peers["Lt"] = bench.ms(lambda: torch._addmm_activation(tbias, ta, tb.T, use_gelu=True)) * 1e3
            if os.environ.get("COMPILE"):  # slow to start: minutes
                if name not in compiled:
                    torch._dynamo.config.cache_size_limit = 64
                    compiled[name] = torch.compile(plain(name), mode=os.environ["COMPILE"], dynamic=False)
                try:
                    peers["compile"] = bench.ms(lambda: compiled[name](ta, tb, tbias, tres)) * 1e3
                except Exception as error:
                    say(f"compile: {error!r:.100}")
        else:
            peers["plain matmul"] = bench.ms(lambda: bench.cupy.matmul(a, b.T)) * 1e3
            want = None
        cells, wrong = [], []
        for plan, model in todo[name, (m, n, k)]:
            try:
                out.fill(0)
                us = bench.ms(ours.prepare(plan, problem, a, b, out, bias=bias if kind.bias else None, residual=residual)) * 1e3
            except Exception as error:
                wrong.append(f"{named(plan)} {error!r:.80}"); continue
            if want is not None:
                off = float(abs(torch.from_dlpack(out.astype(np.float32)) - want).max()) / float(abs(want).max())
                if not off < 0.02:
                    wrong.append(f"{named(plan)} WRONG {off:.1e}")
            cells.append((us, named(plan), model))
        if not cells:
            say(name, (m, n, k), wrong); continue
        best, first, peer = min(cells), cells[0], min(peers.values())
        rows.append(dict(name=name, m=m, n=n, k=k, peer=peer, peers=peers, cells=cells))
        flops = 2e-6 * m * columns * k
        say(f"{name:8} {m:5} {n:5}x{k:<5} " + " ".join(f"{p} {us:.1f}" for p, us in peers.items()) + f" | chosen {first[1]:16} {first[0]:7.1f} x{peer / first[0]:.2f} | best {best[1]:16} {best[0]:7.1f} "
            f"x{peer / best[0]:.2f} {flops / best[0]:4.0f} TF |", " ".join(wrong) or "; ".join(f"{c} {us:.1f}" for us, c, _ in sorted(cells)[1:3]))
    save("epilogue", rows)
    for name in kinds:
        some = [r for r in rows if r["name"] == name]
        if some:
            say(name); summary(some)


# ---------------------------------------------------------------- norm
def norms():
    """bias + residual + LayerNorm: one kernel against our two, and against torch."""
    import numpy as np
    from stof_cupy.jit import device
    from stof_cupy.jit.epilogues import EpilogueKind
    from stof_cupy.jit.gemm_sm90 import Sm90Gemm, gemm_sm90
    from stof_cupy.ops import gemm_model, gemm_sm90 as ours
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_sm90 import Layout, Norm, Plan
    from stof_cupy.ops.norm import layer_norm
    bench = Bench()
    torch, kind = bench.torch, EpilogueKind(bias=True, residual=True)
    shapes = [(m, n, k) for m in (32768, 4096, 512) for n, k in ((768, 768), (768, 3072), (1024, 4096), (2048, 8192), (576, 1536))]
    configs = {n: [Sm90Gemm(128, tile, across=-(-n // tile)) for tile in (128, 192, 256) if n <= 8 * tile] for _, n, _ in shapes}
    apart = {s: plans(Problem(bench.dtype, *s, kind), Layout(), 3) for s in shapes}
    compile_all(list(dict.fromkeys([gemm_sm90(bench.dtype, c, kind) for some in configs.values() for c in some] + [gemm_sm90(bench.dtype, p.config, kind) for some in apart.values() for p, _ in some])))
    rows = []
    for m, n, k in shapes:
        problem = Problem(bench.dtype, m, n, k, kind)
        a, ta = bench.array((m, k)); b, tb = bench.array((n, k), k**-0.5, 1)
        (bias, tbias), (weight, tweight), (shift, tshift) = (bench.array((n,), 1.0, seed) for seed in (2, 3, 4))
        residual, tres = bench.array((m, n), 1.0, 5)
        out, how = bench.cupy.empty((m, n), a.dtype), dict(bias=bias, residual=residual)
        time.sleep(0.1)
        peer, want = float("nan"), None
        if torch:
            F = torch.nn.functional
            run = lambda: F.layer_norm(F.linear(ta, tb, tbias) + tres, (n,), tweight, tshift, 1e-5)
            want, peer = run().float(), bench.ms(run, 12) * 1e3
        product = min(bench.ms(ours.prepare(p, problem, a, b, out, **how)) for p, _ in apart[m, n, k]) * 1e3
        normed = bench.ms(lambda: layer_norm(out, weight, shift, eps=1e-5, out=out)) * 1e3
        cells = []
        for config in configs[n]:
            out.fill(0)
            us = bench.ms(ours.prepare(Plan(config), problem, a, b, out, **how, norm=Norm(weight, shift, 1e-5))) * 1e3
            off = float(abs(torch.from_dlpack(out.astype(np.float32)) - want).max()) / float(abs(want).max()) if torch else 0.0
            cells.append((us, named(Plan(config)) + ("" if off < 0.02 else f" WRONG {off:.1e}")))
        chosen = gemm_model.choose_norm(problem, Layout(), device.facts())
        best = min(cells)
        rows.append(dict(m=m, n=n, k=k, peer=peer, product=product, normed=normed, cells=cells))
        say(f"{m:5} {n:5}x{k:<5} torch eager {peer:7.1f} | ours apart {product:.1f} + {normed:.1f} | one kernel {best[1]} {best[0]:.1f}: x{(product + normed) / best[0]:.2f} of apart, x{peer / best[0]:.2f} of torch, "
            f"{2e-6 * m * n * k / best[0]:.0f} TF | model {named(chosen) if chosen else 'apart'} |", "; ".join(f"{name} {us:.1f}" for us, name in sorted(cells)[1:]))
    save("norm", rows)


# ---------------------------------------------------------------- raster
def raster():
    from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, gemm_sm90
    from stof_cupy.ops import gemm_sm90 as ours
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_sm90 import Plan
    bench = Bench()
    configs = [c for c in GEMM_SM90_CONFIGS if c.m * c.n >= 128 * 192 and not c.split]
    compile_all([gemm_sm90(bench.dtype, c) for c in configs])
    for shape in (CUBES[1], (32768, 3072, 768)):
        m, n, k = shape
        a, _ = bench.array((m, k)); b, _ = bench.array((n, k), k**-0.5, 1)
        out = bench.cupy.empty((m, n), a.dtype)
        for config in configs:
            cells = []
            for group in (0, 1, 4, 8, 16, 32):
                time.sleep(0.2)
                us = bench.ms(ours.prepare(Plan(config, 1, group), Problem(bench.dtype, m, n, k), a, b, out)) * 1e3
                cells.append(f"{group}: {2e-6 * m * n * k / us:.0f}")
            say(f"{shape} {config.name:28} TF by group", "  ".join(cells))


STAGES = {"simple": simple, "cases": cases, "time": timed, "epilogue": epilogue, "norm": norms, "raster": raster}
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
