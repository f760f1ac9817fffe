"""More groups of warps that share a list, for few rows: PYTHONPATH=$PWD:$PWD/benchmarks python3 scratch/groups.py   (about 30 s on an H100)

Of 64 and 32 query rows, times of 2, 3 and 4 groups on the small cells of bench_attention, us, as that times them; `!`: another result.
The idea: at S = 256 a group of `2x16s2q1b3g2` has two key tiles one after another, about 1.2 us each; with four groups all are worked on at once.
"""
import sys, time
from concurrent.futures import ThreadPoolExecutor

import cupy, numpy as np
import attention_cells, device_time
from shapes import ATTENTION_MASKS
from stof_cupy import env
from stof_cupy.jit import device
from stof_cupy.jit.attention_kernels import Shape
from stof_cupy.jit.launch import _store
from stof_cupy.ops import attention_cuda
from stof_cupy.ops.attention_args import Problem, Scores, validate
from stof_cupy.ops.attention_config import Config
from stof_cupy.ops.attention_fields import Args

SHAPES = {
    64: [Shape(2, 16, 2, True, 3, groups=2), Shape(2, 16, 2, True, 1, groups=4), Shape(2, 16, 1, True, 3, groups=2),
         Shape(1, 16, 2, True, 3, groups=2), Shape(1, 16, 2, True, 1, groups=4), Shape(4, 16, 2, True, 1, groups=2), Shape(2, 16, 2, True, 1, groups=3)],
    128: [Shape(2, 16, 1, False, 2, groups=2), Shape(2, 16, 1, False, 1, groups=4), Shape(1, 16, 1, False, 2, groups=4), Shape(1, 16, 2, False, 1, groups=2)],
}
CELLS = [(12, s, 64) for s in (128, 256, 512, 1024)] + [(16, s, 128) for s in (128, 256, 512)]


def main():
    arch, store = device.facts().arch, _store(env.cache_dir("kernels"))
    some = Problem("bfloat16", 1, 1, 1, 64, 64, 64, 64)
    specs = [Config(dim, shape).spec(some) for dim, shapes in SHAPES.items() for shape in shapes]

    def build(spec):
        try:
            log = store.get(spec, arch).cubin
            return f"{spec.name}: {log.spill_bytes} bytes spilled" if log.spill_bytes else ""
        except Exception as error:
            return f"{spec.name}: {str(error)[:200]}"
    start = time.time()
    with ThreadPoolExecutor(16) as pool:
        print(*filter(None, pool.map(build, specs)), f"{len(specs)} kernels in {time.time() - start:.0f} s", sep="\n", flush=True)
    for h, s, d in CELLS:
        for name in ATTENTION_MASKS:
            cell = attention_cells.cell((1, h, h, s, s, d), name)
            want, mask = cell.out.view(np.uint16).copy(), cell.mask.ours
            checked = validate(cell.q, cell.k, cell.v, mask, Scores(), None, None)
            args = Args(Problem("bfloat16", 1, h, h, s, s, d, d), cell.q, cell.k, cell.v, cell.out, None, checked[2], checked[3], None)
            chosen = device_time.ours(attention_cells.ours(cell), small=True).p50 * 1e3
            found = []
            for shape in SHAPES[d]:
                config = Config(d, shape, mask_rows=shape.rows if mask is None else 64)
                cell.out.view(np.uint16).fill(0x7FC0)
                run = attention_cuda.prepared(config, args)
                run()
                floats = [(each.astype(np.uint32) << np.uint32(16)).view(np.float32) for each in (cell.out.view(np.uint16), want)]
                wrong = not float(cupy.abs(floats[0] - floats[1]).max()) < 0.02
                found.append((device_time.ours(run, small=True).p50 * 1e3, shape.name + "!" * wrong))
            print(f"(1,{h},{s},{d}) {name:14} chosen {chosen:.2f}; " + ", ".join(f"{n} {us:.2f}" for us, n in sorted(found)), flush=True)


main()
