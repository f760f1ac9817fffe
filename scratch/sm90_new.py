"""Hopper attention, new against old, on the 16 cells of issue 5: right first, then how long.

    PYTHONPATH=$PWD:$PWD/benchmarks python3 scratch/sm90_new.py [TREE ...]      about 35 s on an H100 with 16 cores, 10 s more for each TREE

TREE: a directory with `stof_cupy` and `cuda` of another commit, timed in the same way in a process of its own (compiled beside, measured one after another), e.g.
    mkdir -p .gpu/old && git archive 42f2644 cuda stof_cupy | tar -x -C .gpu/old      and carry .gpu/old
Each variant's output is poisoned before it runs; two heads of it are checked against float32 products of the same bf16 inputs, and all of it against the first variant's.
A cell says us, least of ten after a flush of L2; '*': best of the column; '!': wrong (never to be used). Lines: tile, with halves or without, and what is done otherwise; `rule` is the
product's way, `chosen` the tile that it takes, of which sections are tried too.
Without a GPU: ... scratch/sm90_new.py compile
"""
import fcntl, json, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))
MASKS = "full causal sliding causal-sliding longformer bigbird document block10".split()
SHAPES = {128: (1, 32, 8192), 64: (16, 12, 2048)}
GOALS = {128: (1440, 740, 125, 85, 170, 190, 95, 240), 64: (365, 230, 120, 80, 140, 130, 95, 80)}
SECTIONS = {128: (1, 2, 4), 64: (8, 16, 28)}
LOCK = "/tmp/sm90_new.lock"


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def tiles(dim):
    """Return tiles, each with halves and without as far as there is such a kernel."""
    from stof_cupy.jit.attention_sm90 import SM90_CONFIGS
    mine = [shape for shape in SM90_CONFIGS if shape.dim_qk == shape.dim_v == dim]
    if hasattr(mine[0], "halves"):
        mine = [replace(shape, halves=halves) for shape in mine for halves in (False, True)]
    return [shape for shape in dict.fromkeys(mine) if not shape.fault()]


def chosen(case):
    """Return the configuration that attention takes, of those that cut no list."""
    from stof_cupy.ops.attention_candidates import candidates
    from stof_cupy.ops.attention_model import explain
    whole = [each for each in candidates(case, ("sm90",)) if each.splits == 1 and not each.packed]
    return explain(case, among=whole)[0].candidate


def compile_all():
    """Return {name of a shape: kernel's spec and cubin}."""
    from stof_cupy import env
    from stof_cupy.jit.attention_sm90 import attention_sm90
    from stof_cupy.jit.cache import Store
    found, start = {}, time.time()

    def build(shape):
        try:
            spec = attention_sm90("bfloat16", shape)
            entry = Store(env.cache_dir("kernels")).get(spec, "90a")
            if entry.cubin.spill_bytes or "C75" in entry.cubin.log:
                say("note:", shape.name, entry.cubin.spill_bytes, "B of spills", "C75" in entry.cubin.log)
            found[shape.name] = spec, entry
        except Exception as error:
            say("BAD", shape.name, repr(error)[:400])
    jobs = [shape for dim in SHAPES for shape in tiles(dim)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, jobs))
    say(f"{len(found)} of {len(jobs)} kernels in {time.time() - start:.1f} s")
    return found


def kernels(found):
    import cupy
    from stof_cupy.jit import launch
    made = {}
    for key, (spec, entry) in found.items():
        raw = cupy.RawModule(path=str(entry.path)).get_function(spec.symbol)
        raw.max_dynamic_shared_size_bytes = spec.smem_bytes
        made[key] = launch.Kernel(spec, raw.kernel)
    return made


def halved(x):
    """Return float32 as bfloat16: the upper halves of its bits."""
    import ml_dtypes
    return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(ml_dtypes.bfloat16)


def wide(x):
    """Return bfloat16 as float32."""
    return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def exact(q, k, v, keep):
    """Return attention of one head, of arrays in float32."""
    import cupy
    scores = (q @ k.T) / np.float32(np.sqrt(q.shape[1]))
    if keep is not None:
        scores = cupy.where(keep, scores, np.float32(-np.inf))
    scores -= scores.max(axis=1, keepdims=True)
    cupy.exp(scores, out=scores)
    return (scores @ v) / scores.sum(axis=1, keepdims=True)


def is_wrong(out, wanted, right):
    """Return what is wrong with an output, or ''."""
    import cupy
    for (b, h), want in wanted.items():
        off = cupy.abs(wide(out[b, h]) - want)
        level = float(cupy.sqrt((want ** 2).mean()))
        rms, most = float(cupy.sqrt((off ** 2).mean())) / level, float((off - 0.02 * cupy.abs(want)).max()) / level
        if not (rms < 6e-3 and most < 0.1):
            return f"head {b, h}: rms {rms:.2g}, most {most:.2g} of the rms of what is right"
    if right is not None:
        for b in range(out.shape[0]):
            one = wide(right[b])
            off = cupy.abs(wide(out[b]) - one)
            if not bool((off <= 0.1 * level + 0.02 * cupy.abs(one)).all()):
                return f"batch {b}: {float(off.max())} off the first variant"
    return ""


def variants(dim, case, other):
    """Yield name, configuration, heads of a section (0: the rule) of all that is timed."""
    from stof_cupy.ops.attention_sm90 import whole
    for shape in tiles(dim):
        yield f"{shape.m}x{shape.n}{', halves' * getattr(shape, 'halves', False)}", whole(shape, case), 0
    if other:
        return
    best = chosen(case)
    for section in SECTIONS[dim]:
        yield f"chosen, {section} heads", replace(best, long_slots=0), section
    yield "chosen", best, 0
    yield "chosen, clean L2", best, 0


class Clean:
    """What empties L2 by reading, so that no line has to be written back while something is timed."""

    def __init__(self, array):
        self.array = array

    def fill(self, _):
        self.array.max()


def times_us(run, flush, count):
    """Return the least time of a call after `flush` is filled."""
    import cupy
    run()
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(count)]
    for a, b in pairs:
        flush.fill(0)
        a.record()
        run()
        b.record()
    cupy.cuda.Device().synchronize()
    return 1e3 * min(float(cupy.cuda.get_elapsed_time(*pair)) for pair in pairs)


def measure(other, found):
    """Return {dim: {variant: {mask: [us, flag]}}}."""
    import cupy
    from regret_cells import make_mask
    from stof_cupy.jit import device
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_demand import Case
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops.attention_sm90_launches import launches
    facts, flush, table = device.facts(), cupy.empty(64 * 2**20, np.int32), {}
    ready, g = kernels(found), cupy.random.default_rng(int(time.time()))
    for dim, (b, h, s) in SHAPES.items():
        q, k, v = (halved(g.standard_normal((b, h, s, dim), dtype=np.float32)) for _ in range(3))
        out = cupy.empty_like(q)
        heads = [(0, 0), (b - 1, h - 1)]
        for name in MASKS:
            mask = make_mask(name, s)
            keep = None if mask is None else cupy.asarray(mask.toarray())
            wanted = {at: exact(*(wide(x[at]) for x in (q, k, v)), keep) for at in heads}
            _, problem, mask, scores = validate(q, k, v, mask, Scores(), None, out)
            args, case, right = Args(problem, q, k, v, out, None, mask, scores, None), Case(problem, mask, facts), None
            for label, config, section in variants(dim, case, other):
                if config.shape.name not in ready:
                    continue
                try:
                    every, used = launches(config, args, section=section)
                    _, blocks, fields = every[0]
                    kernel = ready[config.shape.name]
                    params = kernel.pack(**fields)
                    out.view(np.uint16).fill(0x7fc1)  # NaN
                    kernel((blocks,), params)
                    wrong = is_wrong(out, wanted, right)
                    right = out.copy() if right is None else right
                    us = times_us(lambda: kernel((blocks,), params), Clean(flush) if "clean" in label else flush, 10)
                    wrong = wrong or is_wrong(out, wanted, right)
                    if wrong:
                        say("WRONG", dim, name, label, wrong)
                    told = f" ({fields['long_slots']},{fields['section']})" if not section else ""
                    if label.startswith("chosen"):
                        told = f" {config.shape.m}x{config.shape.n}{'h' * getattr(config.shape, 'halves', False)}"
                    table.setdefault(dim, {}).setdefault(label, {})[name] = [us, "!" if wrong else "", told]
                    del used
                except Exception as error:
                    say("FAILED", dim, name, label, repr(error)[:300])
    return table


def child(tree, other):
    """Measure what is on PYTHONPATH, and print it."""
    found = compile_all()
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start = time.time()
        table = measure(other, found)
        say(f"{tree}: {time.time() - start:.1f} s on the GPU")
    print(json.dumps(table))


def main(trees):
    start, running = time.time(), {}
    for tree in (*trees, "."):
        path = [str(Path(tree).resolve()), str(HERE.parent / "benchmarks"), *os.environ.get("PYTHONPATH", "").split(":")]
        name = Path(tree).name or "new"
        cache = {"STOF_CACHE_DIR": os.environ.get("STOF_CACHE_DIR", "/tmp/stof") + ("_" + name if tree != "." else "")}
        command = [sys.executable, __file__, "child", tree, "other" if tree != "." else ""]
        running[name] = subprocess.Popen(command, env=os.environ | cache | {"PYTHONPATH": ":".join(path)}, stdout=subprocess.PIPE, text=True)
    tables = {}
    for name, process in running.items():
        text = process.communicate()[0].strip()
        tables[name] = json.loads(text.splitlines()[-1]) if text and process.returncode == 0 else {}
    (Path(os.environ.get("OUT", "/tmp")) / "sm90_new.json").write_text(json.dumps(tables))
    for dim, (b, h, s) in SHAPES.items():
        rows = {f"{name}: {label}" if name != "new" else label: cells for name, table in tables.items() for label, cells in table.get(str(dim), {}).items()}
        print(f"\n({b},{h},{s},{dim}) bf16, us; behind it (long rows, heads of a section), or the tile that is chosen")
        print(f"{'':40}" + "".join(f"{mask[:14]:>16}" for mask in MASKS))
        print(f"{'goal':40}" + "".join(f"{us:10}      " for us in GOALS[dim]))
        for label, cells in rows.items():
            line = ""
            for mask in MASKS:
                us, flag, told = cells.get(mask, (float("nan"), "?", ""))
                least = min((other[mask][0] for other in rows.values() if mask in other and not other[mask][1]), default=0)
                line += f"{us:7.1f}{flag or ('*' if us == least else ' ')}{told.replace(' ', ''):8}"
            print(f"{label:40}{line}")
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3] == "other")
    elif sys.argv[1:] == ["compile"]:
        compile_all()
    else:
        main(sys.argv[1:])
