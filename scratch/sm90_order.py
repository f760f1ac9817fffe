"""In which order rows come, and which tiles win: times of the Hopper attention on the 16 cells of issue 5.

    PYTHONPATH=$PWD:$PWD/benchmarks python3 scratch/sm90_order.py [tiles] [order]      both by default: about 30 s on an H100 with 16 cores

tiles: SM90_CONFIGS of head dims 64 and 128, and what might join or replace them; least of ten after a flush of L2, us; '*': best, '!': another output.
order: of the best tiles of each mask but full: how many rows come first of all heads (`long`: none, as `whole` says, an eighth, all), by heads of a section, by what
L2 is told: `base` as it is (queries are read once, keys and values again), `output once`: the output is not to stay, `K, V normal`: keys and values are nothing special.
"""
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sm90_trace import SHAPES, compiled, say, spec_of, times_us

HINTS = ("base", "output once", "K, V normal", "output once, K, V normal")
MASKS = "full causal sliding causal-sliding longformer bigbird document block10".split()


def tiles(dim):
    from stof_cupy.jit.attention_sm90 import SM90_CONFIGS, Sm90Config
    one = lambda n, groups, **how: Sm90Config(dim, dim, n=n, warpgroups=groups, **how)
    made = [config for config in SM90_CONFIGS if config.dim_qk == config.dim_v == dim]
    if dim == 128:
        made += [one(64, 1, blocks=2, queries=1), one(64, 3, stages=3), one(64, 2, stages=4), one(64, 2, stages=3), one(112, 2), one(144, 2, queries=1), one(80, 3), one(96, 3, queries=1)]
    else:
        made += [one(64, 1, blocks=3, stages=3), one(64, 1, blocks=2, stages=4), one(64, 2, stages=4), one(64, 3, stages=4), one(96, 3), one(112, 3), one(160, 2), one(192, 2), one(128, 1, blocks=2)]
    for config in made:
        if config.fault():
            say("no kernel", config.name, config.fault())
    return [config for config in made if not config.fault()]


def best(dim, mask):
    """Return the tiles to put in order."""
    small = {"bigbird", "block10"} if dim == 128 else set(MASKS) - {"full", "causal"}
    found = {(config.m, config.n): config for config in reversed(tiles(dim))}
    return found[64, 64] if mask in small else found[(128, 128) if dim == 128 else (192, 128)]


def compile_all():
    from stof_cupy import env
    from stof_cupy.jit.attention_sm90 import attention_sm90
    from stof_cupy.jit.launch import _store
    start, store = time.time(), _store(env.cache_dir("kernels"))

    def build(shape):
        try:
            log = store.get(attention_sm90("bfloat16", shape), "90a").cubin
            if log.spill_bytes or "C75" in log.log:
                say("note:", shape.name, log.spill_bytes, "B of spills", "C75" in log.log)
        except Exception as error:
            say("BAD", shape.name, repr(error)[:400])
    shapes = [shape for dim in SHAPES for shape in tiles(dim)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, shapes))
    say(f"{len(shapes)} kernels in {time.time() - start:.1f} s")


def main(asked):
    import cupy, ml_dtypes
    from regret_cells import make_mask
    from stof_cupy.jit import device, launch
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_demand import Case
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops.attention_sm90 import whole
    from stof_cupy.ops.attention_sm90_launches import launches
    start, facts = time.time(), device.facts()
    if "tiles" in asked:
        compile_all()
    hinted = {}
    if "order" in asked:
        shapes = {shape.name: shape for dim in SHAPES for shape in {best(dim, mask) for mask in MASKS}}
        for (hint, name), entry in compiled(HINTS, shapes).items():
            spec = spec_of(shapes[name], hint)
            raw = cupy.RawModule(path=str(entry.path)).get_function(spec.symbol)
            raw.max_dynamic_shared_size_bytes = spec.smem_bytes
            hinted[hint, name] = launch.Kernel(spec, raw.kernel)
    flush, g = cupy.empty(64 * 2**20, np.int32), np.random.default_rng(1)
    say(facts.name)
    for dim, (b, h, s) in SHAPES.items():
        one = [g.standard_normal((1, h, s, dim), np.float32).astype(ml_dtypes.bfloat16) for _ in range(3)]
        q, k, v = (cupy.ascontiguousarray(cupy.broadcast_to(cupy.asarray(x), (b, h, s, dim))) for x in one)
        out, table, lines = cupy.zeros_like(q), {}, []

        def run(config, args, section=0, hint=None):
            every, used = launches(config, args, section=section)
            spec, blocks, fields = every[0]
            kernel = hinted[hint, config.shape.name] if hint else launch.kernel(spec, 0)
            params = kernel.pack(**fields)
            out.fill(0)
            us = times_us(lambda: kernel((blocks,), params), flush, 10)
            del used
            return us

        for name in MASKS:
            _, problem, mask, scores = validate(q, k, v, make_mask(name, s), Scores(), None, out)
            args, right = Args(problem, q, k, v, out, None, mask, scores, None), None
            case = Case(problem, mask, facts)
            for shape in tiles(dim) if "tiles" in asked else ():
                try:
                    us = run(whole(shape, case), args)
                    right = out.copy() if right is None else right
                    off = float(abs(out[0].astype("f4") - right[0].astype("f4")).max())
                    table.setdefault(shape.name, {})[name] = us, "!" if not off < 0.03 else ""
                except Exception as error:
                    say(shape.name, name, repr(error)[:200])
            if "order" in asked and name != "full":
                config, row = whole(best(dim, name), case), []
                slots = config.slots(problem)
                lengths = case.demand.tiles((config.shape.m, config.shape.n)).lengths
                for hint in HINTS:
                    for long in sorted({0, config.long_slots, slots // 8, slots} if hint == "base" else {0, config.long_slots}):
                        times = (f"{section}: {run(replace(config, long_slots=long), args, section, hint):.1f}" for section in (0, 1, 2, 4, 8, 16, 64) if section <= b * h)
                        row.append(f"\n      {hint:26} long {long:3}:  " + "  ".join(times))
                lines.append(f"    {config.shape.name} {name}: {slots} rows a head of {lengths.min()} to {lengths.max()} tiles, `whole` takes long {config.long_slots}; us by heads of a section (0: the host's choice)" + "".join(row))
        say(f"\n({b},{h},{s},{dim}) bf16, us" + "".join(f"{name[:9]:>11}" for name in MASKS))
        for name, row in table.items():
            cells = []
            for mask in MASKS:
                us, flag = row.get(mask, (float("nan"), "?"))
                least = min(other[mask][0] for other in table.values() if mask in other and not other[mask][1])
                cells.append(f"{us:9.1f}{flag or ('*' if us == least else ' ')}")
            say(f"  {name:22}" + " ".join(f"{cell:>10}" for cell in cells))
        say("\n".join(lines))
    say(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:] == ["compile"]:
        compile_all()
    else:
        main(sys.argv[1:] or ["tiles", "order"])
