"""Hopper attention, new against old, on the 16 cells of issue 5: right first, then how long.

    PYTHONPATH=$PWD:$PWD/benchmarks python3 scratch/sm90_new.py [TREE ...]      about 35 s on an H100 with 16 cores, 10 s more for each TREE

TREE: a directory with `stof_cupy` and `cuda` of another commit, timed in the same way in a process of its own (compiled beside, measured one after another), e.g.
    mkdir -p .gpu/old && git archive f8aa274 cuda stof_cupy | tar -x -C .gpu/old      and carry .gpu/old
f8aa274: as it was; 658a16a: sections alone; 4bd746b: rows read at once too; 32bba93: code of a first tile once too; dc340fd: halves can be chosen, but in three groups a product;
here their products are whole, and rows are taken when four tiles are left (`rows taken ...`: otherwise).
Each variant's output is poisoned before it runs; two heads of it are checked against float32 products of the same bf16 inputs, and all of it against the first variant's.
A cell says us, least of ten after a flush of L2; '*': best of the column; '!': wrong (never to be used). Lines: tile, and what is done otherwise; `rule` is the product's way.
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
HINTS = ("output once", "ahead, 128 B", "ahead, keys alone")  # patches of sm90_trace.py
LOCK = "/tmp/sm90_new.lock"


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def tiles(dim):
    from stof_cupy.jit.attention_sm90 import SM90_CONFIGS
    return [shape for shape in SM90_CONFIGS if shape.dim_qk == shape.dim_v == dim]


def with_halves(dim):
    """Return the tiles that may do without halves, if the tree knows that."""
    if not hasattr(tiles(dim)[0], "halves"):
        return []
    made = [replace(shape, halves=True) for shape in tiles(dim)]
    return [shape for shape in made if not shape.fault()]


def best(dim, mask):
    """Return the tile of a mask whose variants are timed, as the notes have it."""
    if dim == 128:
        size = (192, 64) if mask == "full" else (64, 64) if mask in ("bigbird", "block10") else (128, 128)
    else:
        size = (192, 128) if mask in ("full", "causal", "document") else (64, 64)
    return next(shape for shape in tiles(dim) if (shape.m, shape.n) == size)


def compile_all(hints):
    """Return {(hint, name of a shape): Kernel's spec and cubin}; '' is the tree's own code."""
    from stof_cupy import env
    from stof_cupy.jit.attention_sm90 import attention_sm90
    from stof_cupy.jit.cache import Store
    found, start = {}, time.time()
    folders = {}
    if hints:
        from sm90_trace import WORK, patched
        folders = {hint: patched(hint) for hint in hints}

    def build(job):
        hint, shape = job
        try:
            store = Store(WORK / "cache", folders[hint]) if hint else Store(env.cache_dir("kernels"))
            spec = attention_sm90("bfloat16", shape)
            entry = store.get(spec, "90a")
            if entry.cubin.spill_bytes or "C75" in entry.cubin.log:
                say("note:", hint, shape.name, entry.cubin.spill_bytes, "B of spills", "C75" in entry.cubin.log)
            found[hint, shape.name] = spec, entry
        except Exception as error:
            say("BAD", hint, shape.name, repr(error)[:400])
    jobs = [("", shape) for dim in SHAPES for shape in (*tiles(dim), *with_halves(dim))]
    jobs += [(hint, shape) for hint in hints for dim in SHAPES for shape in dict.fromkeys(best(dim, mask) for mask in MASKS)]
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


def variants(dim, mask, case, facts, other):
    """Yield name, hint, config, section (0: the rule) of all that is timed."""
    from stof_cupy.ops.attention_sm90 import whole
    every = {(x.m, x.n, x.halves): x for x in (*tiles(dim), *with_halves(dim))}.values()
    for shape in every:
        label = f"{shape.m}x{shape.n}" + " halves," * shape.halves
        yield f"{label} rule", "", whole(shape, case), 0
        if not other:
            yield f"{label} rule, ahead", "", whole(shape, case), 0
    if other:
        return
    shape = best(dim, mask)
    config = whole(shape, case)
    for section in SECTIONS[dim]:
        yield f"best tile, {section} heads", "", replace(config, long_slots=0), section
        yield f"best tile, {section} heads, ahead", "", replace(config, long_slots=0), section
    yield "best tile, clean L2", "", config, 0
    yield "best tile, clean L2, ahead", "", config, 0
    for hint in HINTS:
        yield f"best tile, {hint}", hint, config, 0


class Clean:
    """What empties L2 by reading, so that no line has to be written back while something is timed."""

    def __init__(self, array):
        self.array = array

    def fill(self, _):
        self.array.max()


def measure(other, found):
    """Return {dim: {variant: {mask: [us, flag]}}}."""
    import cupy
    from regret_cells import make_mask
    from sm90_trace import times_us
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
            for label, hint, config, section in variants(dim, name, case, facts, other):
                if (hint, config.shape.name) not in ready:
                    continue
                try:
                    how = {"ahead": True} if "ahead" in label else {}
                    every, used = launches(config, args, section=section, **how)
                    _, blocks, fields = every[0]
                    kernel = ready[hint, config.shape.name]
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
                    table.setdefault(dim, {}).setdefault(label, {})[name] = [us, "!" if wrong else "", told]
                    del used
                except Exception as error:
                    say("FAILED", dim, name, label, repr(error)[:300])
    return table


def child(tree, other):
    """Measure what is on PYTHONPATH, and print it."""
    found = compile_all(() if other else HINTS)
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
        cache = {"STOF_CACHE_DIR": os.environ.get("STOF_CACHE_DIR", "/tmp/stof") + "_" + name}
        command = [sys.executable, __file__, "child", tree, "other" if tree != "." else ""]
        running[name] = subprocess.Popen(command, env=os.environ | cache | {"PYTHONPATH": ":".join(path)}, stdout=subprocess.PIPE, text=True)
    tables = {}
    for name, process in running.items():
        text = process.communicate()[0].strip()
        tables[name] = json.loads(text.splitlines()[-1]) if text and process.returncode == 0 else {}
    (Path(os.environ.get("OUT", "/tmp")) / "sm90_new.json").write_text(json.dumps(tables))
    for dim, (b, h, s) in SHAPES.items():
        rows = {f"{name}: {label}" if name != "new" else label: cells for name, table in tables.items() for label, cells in table.get(str(dim), {}).items()}
        print(f"\n({b},{h},{s},{dim}) bf16, us; after rule (long, section)")
        print(f"{'':40}" + "".join(f"{mask[:11]:>14}" for mask in MASKS))
        print(f"{'goal':40}" + "".join(f"{us:10}    " for us in GOALS[dim]))
        for label, cells in rows.items():
            line = ""
            for mask in MASKS:
                us, flag, told = cells.get(mask, (float("nan"), "?", ""))
                least = min((other[mask][0] for other in rows.values() if mask in other and not other[mask][1]), default=0)
                line += f"{us:7.1f}{flag or ('*' if us == least else ' ')}{told.replace(' ', ''):6}"
            print(f"{label:40}{line}")
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3] == "other")
    elif sys.argv[1:] == ["compile"]:
        compile_all(HINTS)
    else:
        main(sys.argv[1:])
