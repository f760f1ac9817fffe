"""How long to the first result of a layer stack: from an empty cache, and in a second process?

    python benchmarks/engine_first.py                          about 15 s a cell on a GPU
    python benchmarks/engine_first.py --cells bert-base:8x512:longformer --tune fast off

Each time is that of a process of its own, whose weights are in memory: importing the package,
making the program, and the first result, which waits for the GPU. Afterwards 100 random lengths of
one class are run: what they compile is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CELLS = ("bert-base:8x512:longformer", "gpt2:16x2048:full", "llama-1b:1x8192:sliding")
LENGTHS = 100


def main() -> None:
    """Run two processes a cell, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=CELLS)
    parser.add_argument("--tune", nargs="+", default=["fast"])
    parser.add_argument("--out", type=Path, help="file of results, appended to")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    parser.add_argument("--backend", default="cuda", help="numpy: to try this program")
    parser.add_argument("--inside", nargs=2, metavar=("CELL", "TUNE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(first(*args.inside, args.backend)))
        return
    import cards  # not in a process that is timed: it imports some of the package

    stamp = {"commit": args.commit} if args.commit else cards.commit()
    for cell in args.cells:
        for tune in args.tune:
            with tempfile.TemporaryDirectory() as cache:
                machine = _machine(args.backend)
                line: dict[str, Any] = {"cell": cell, "tune": tune, "machine": machine} | stamp
                for name in ("empty", "second"):
                    line[name] = _process(cell, tune, args.backend, cache)
                    shown = "  ".join(f"{k} {v}" for k, v in line[name].items())
                    print(f"{cell:28} {tune:5} {name:6} {shown}", flush=True)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def _process(cell: str, tune: str, backend: str, cache: str) -> dict[str, Any]:
    """Return what a process with a cache says, CuPy's own cache being there too."""
    own = {"STOF_CACHE_DIR": f"{cache}/stof", "CUPY_CACHE_DIR": f"{cache}/cupy"}
    command = [sys.executable, __file__, "--inside", cell, tune, "--backend", backend]
    done = subprocess.run(
        command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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
        inputs: dict[str, Any] = {"x": xp.asarray(x[:, :seq])}
        inputs["mask"] = stacks.pattern(stacks.Cell(cell.stack, cell.batch, seq, cell.mask))
        if cell.stack.rotary:
            at = xp.arange(seq, dtype=np.int32)
            inputs["positions"] = xp.ascontiguousarray(xp.broadcast_to(at, (cell.batch, seq)))
        made = program.run(inputs)["y"]
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


def _machine(backend: str) -> dict[str, Any]:
    """Return GPU, driver and date."""
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d")}
    if backend == "cuda":
        import cards

        found |= {"gpu": cards.gpu(), "driver": cards.driver()}
    return found


if __name__ == "__main__":
    main()
