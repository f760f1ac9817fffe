"""How long to the first result of a layer stack, in a process of its own?

    python benchmarks/engine_first.py bert-base:8x512:longformer fast cuda

That is what bench_paper_start.py starts: with an empty cache, then with a full one. Printed are the
seconds, once the weights are in memory, of importing the package, making the program, and the first
result, which waits for the GPU. On a GPU 100 random lengths of one class are run afterwards, and
what they compile is counted.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

LENGTHS = 100


def first(name: str, tune: str, backend: str) -> dict[str, Any]:
    """Return the seconds of each step, and the kernels compiled."""
    import engine_stacks as stacks
    import numpy as np

    cell = stacks.Cell.parse(name)
    weights, x = stacks.weights(cell.stack), stacks.hidden_states(cell)
    start = time.perf_counter()
    from stof_cupy.runtime import Options, Program

    xp: Any = np
    if backend == "cuda":
        import cupy as xp

        xp.zeros(1)  # the device's context
    imported = time.perf_counter()
    graph = stacks.graph(cell.stack, weights)
    program = Program(graph, backend=backend, dtype="bfloat16", options=Options(tune=tune))

    def result(seq: int) -> None:
        here = stacks.Cell(cell.stack, cell.batch, seq, cell.mask)
        made = program.run(stacks.inputs(here, xp.asarray(x[:, :seq])))["y"]
        made[:1, :1, :1].tolist()  # waits

    made = time.perf_counter()
    result(cell.seq)
    done = time.perf_counter()
    found = {"import_s": imported - start, "program_s": made - imported, "first_s": done - made}
    found |= {"result_s": done - imported}
    if backend == "cuda":
        from stof_cupy.jit.launch import loaded, store

        found["kernels"], before = len(loaded()), len([*store().root.iterdir()])
        lengths = np.random.default_rng(0).integers(cell.seq // 2 + 1, cell.seq, LENGTHS)
        for seq in lengths.tolist():
            result(seq)
        found |= {"compiled": before, "by_lengths": len([*store().root.iterdir()]) - before}
    return {key: round(value, 3) for key, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(first(*sys.argv[1:])))
