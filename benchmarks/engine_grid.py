"""Whole layer stacks on the GPU: ours beside PyTorch, a cell of the grid after another.

    python benchmarks/engine_grid.py --out grid_{card}.jsonl --cells anchors
    python benchmarks/engine_grid.py --out grid_{card}.jsonl --cells bert-base:8x512:longformer ...
    python benchmarks/engine_grid.py --out grid_{card}.jsonl --next 4     of the grid, what it lacks
    python benchmarks/engine_grid.py --out grid_{card}.jsonl --table

``--device cpu --cells vit-b:1x128:sliding --ways ours,eager`` tries this program without a GPU.

A cell is ours and all peers in one process: about two minutes, of which compiling the peers takes
nearly all (``--ways ours`` takes seconds, ``--ways ours,eager,flex`` one). Each cell is a line that
is appended to the file, the newest of a cell counts. Inductor's cache is kept beside the file, so
that a second run of a cell takes less. Everyone has the same weights and inputs, in bfloat16; every
result is compared with the same stack in float32 before anything is timed. A time is that between
two CUDA events around a call, of calls that follow each other; ``host`` is a call and its wait.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cards
import engine_profile
import engine_stacks as stacks
import numpy as np
from engine_stacks import ANCHORS, GRID, Cell
from engine_table import results, row, table

from stof_cupy.runtime import Options, Program

WAYS = ("ours", "eager", "compiled", "flex")
SPENT = 0.5  # seconds of timing a way
ERROR = 2.0  # times that of eager bfloat16, which everyone may be off


def main() -> None:
    """Run cells, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="file of results, appended to; {card}: GPU"
    )
    parser.add_argument("--cells", nargs="+", default=[], help="names, or 'anchors' or 'grid'")
    parser.add_argument("--next", type=int, default=0, help="so many of the grid that lack a way")
    parser.add_argument("--ways", default=",".join(WAYS), help="and flex-v, see engine_peers.py")
    parser.add_argument("--tune", default="fast", help="of ours: off, fast or full")
    parser.add_argument(
        "--budget", type=float, default=1e9, help="no cell begins after it, seconds"
    )
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    parser.add_argument("--device", default="cuda", help="cpu: to try this program, not to measure")
    parser.add_argument("--fold", action="store_true", help="norms folded where that should pay")
    parser.add_argument("--profile", action="store_true", help="show our kernels, GPU only")
    parser.add_argument("--table", action="store_true", help="show the file")
    args = parser.parse_args()
    ways = args.ways.split(",")
    gpu = cards.gpu() if args.device == "cuda" else ""
    args.out = cards.named(args.out, gpu)
    cells = [cell for name in args.cells for cell in _named(name)]
    if args.next:
        there = results(args.out)
        lacking = [c for c in GRID if not set(ways) <= there.get(str(c), {}).get("known", set())]
        cells += lacking[: args.next]
    if cells:
        there = (line["machine"].get("gpu", "") for line in results(args.out).values())
        cards.refuse_others(args.out, there, gpu)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(args.out.resolve().parent / "inductor"))
    began = time.perf_counter()
    options = Options(tune=args.tune, fold_norms=None if args.fold else False)
    stamp = {"commit": args.commit} if args.commit else cards.commit()
    how = {"fold": args.fold} | stamp
    profiled = args.profile and args.device == "cuda"
    for cell in cells:
        if time.perf_counter() - began > args.budget:
            print(f"{cell}: not begun, the budget is spent")
            continue
        line = run(cell, ways, options, args.device, profiled) | how
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(row(line), flush=True)
    if args.table:
        print("\n".join(table(results(args.out))))


def _named(name: str) -> Iterable[Cell]:
    return {"anchors": ANCHORS, "grid": GRID}.get(name) or [Cell.parse(name)]


# ---------------------------------------------------------------- one cell


def run(
    cell: Cell, ways: Iterable[str], options: Options, device: str, profiled: bool = False
) -> dict[str, Any]:
    """Return what the ways take through a cell, each found right before it is timed."""
    began = time.perf_counter()
    made = _Shared(cell, device)
    line: dict[str, Any] = {"cell": str(cell), "machine": machine(device), "ways": {}}
    for way in ways:
        start = time.perf_counter()
        try:
            call, more = made.way(way, options)
            first = call()
            made.wait()
            cold = time.perf_counter() - start
            error = made.error(_tensor(first))
            line["ways"][way] = {"cold_s": round(cold, 2), "error": error, **more()}
            if error > ERROR * made.floor:
                raise AssertionError(f"error {error:.3g}, eager bfloat16 has {made.floor:.3g}")
            del first
            line["ways"][way] |= made.times(way, call)
            if profiled and way == "ours":
                engine_profile.show(cell, call)
        except Exception as error:  # of a peer a fact about it, of ours one about us
            line["ways"][way] = {"failed": f"{type(error).__name__}: {error}"[:300]}
        made.forget()
    kept, tokens = made.density, cell.batch * cell.seq
    attention = 4.0 * tokens * cell.seq * kept * cell.stack.hidden * cell.stack.layers
    line |= {"density": kept, "gflop": (cell.stack.gemm_flop(tokens) + attention) / 1e9}
    if device == "cuda":
        line["matmul_tflops"] = made.matmul_tflops()
    line["seconds"] = round(time.perf_counter() - began, 1)
    return line


class _Shared:
    """What all ways through a cell share: weights, inputs, and the result in float32."""

    def __init__(self, cell: Cell, device: str) -> None:
        import engine_peers as peers
        import torch

        self.cell, self._peers, self._torch, self._device = cell, peers, torch, device
        self._host = stacks.weights(cell.stack)
        self.tensors = peers.placed(self._host, device, torch.bfloat16)
        self._x = stacks.hidden_states(cell)
        self.x = peers.tensor(self._x, device)
        dense = stacks.dense(cell)
        self.density = 1.0 if dense is None else float(dense.mean())
        few = self.x[: max(1, 2048 // cell.seq)]  # of the batch: the mask is the same for all
        self.exact = peers.exact(cell, self.tensors, few)
        eager = peers.model(cell, "eager", self.tensors, torch.bfloat16)
        self.floor = self.error(eager(few))
        self.forget()

    def error(self, got: Any) -> float:
        """Return the root mean square of what a result is off, over that of the result."""
        exact = self.exact
        if tuple(got.shape[1:]) != tuple(exact.shape[1:]) or not bool(got.isfinite().all()):
            return float("inf")
        off = got[: len(exact)].float() - exact
        return float(off.square().mean().sqrt() / exact.square().mean().sqrt())

    def way(
        self, name: str, options: Options
    ) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
        """Return a call that gives an array, and what else is to be said once it has run."""
        if name != "ours":
            call = self._peers.model(self.cell, name, self.tensors, self._torch.bfloat16)
            return lambda: call(self.x), dict
        program, inputs = ours(self.cell, self._host, self._x, options, self._device)

        def more() -> dict[str, Any]:
            for _ in range(2):  # recorded, then replayed
                program.run(inputs)
            report = program.tuned(inputs)
            found = {"tuned_s": round(report.spent, 2), "scheme": report.scheme.hex}
            return found | {"plan": str(program.plan(inputs)), "recorded": program.recorded}

        return lambda: program.run(inputs)["y"], more

    def wait(self) -> None:
        """Wait for the GPU."""
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def forget(self) -> None:
        """Give memory back, so that the next has what it needs."""
        gc.collect()
        if self._device == "cuda":
            import cupy

            self._torch.cuda.empty_cache()
            cupy.get_default_memory_pool().free_all_blocks()

    def times(self, way: str, call: Callable[[], Any]) -> dict[str, float]:
        """Return quantiles in ms of the device's time, and the median of the host's."""
        for _ in range(3):
            call()
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        count = int(np.clip(SPENT / (time.perf_counter() - start), 10, 200))
        host = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            self.wait()
            host.append((time.perf_counter() - start) * 1e3)
        device = self._between_events(way, call, count) if self._device == "cuda" else host
        quantiles = np.percentile(device, (20, 50, 80)).tolist()
        found = dict(zip(("p20_ms", "p50_ms", "p80_ms"), quantiles, strict=True))
        found["host_ms"] = float(np.median(host))
        return {name: round(value, 4) for name, value in found.items()}

    def matmul_tflops(self) -> float:
        """Return the rate of PyTorch's 8192^3 product, timed as the ways are: goals go by it."""
        torch, n = self._torch, 8192
        a, b = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for _ in "ab")
        c = torch.empty_like(a)
        ms = self.times("matmul", lambda: torch.matmul(a, b, out=c))["p50_ms"]
        return round(2.0 * n**3 / ms / 1e9, 1)

    def _between_events(self, way: str, call: Callable[[], Any], count: int) -> list[float]:
        """Return the device's ms of calls that follow each other."""
        import cupy

        pairs: list[Any] = []
        for _ in range(count):
            if way == "ours":
                pairs.append((cupy.cuda.Event(), cupy.cuda.Event()))
            else:
                pairs.append([self._torch.cuda.Event(enable_timing=True) for _ in "ab"])
        for one, two in pairs:
            one.record()
            call()
            two.record()
        self.wait()
        if way == "ours":
            return [float(cupy.cuda.get_elapsed_time(*pair)) for pair in pairs]
        return [float(one.elapsed_time(two)) for one, two in pairs]


def ours(
    cell: Cell, weights: dict[str, Any], x: Any, options: Options, device: str
) -> tuple[Any, dict[str, Any]]:
    """Return our program and its inputs, on the device."""
    backend = "cuda" if device == "cuda" else "numpy"
    graph = stacks.graph(cell.stack, weights)
    program = Program(graph, backend=backend, dtype="bfloat16", options=options)
    xp: Any = np
    if backend == "cuda":
        import cupy as xp
    inputs = {"x": xp.asarray(x), "mask": stacks.pattern(cell)}
    if cell.stack.rotary:
        at = xp.arange(cell.seq, dtype=np.int32)
        inputs["positions"] = xp.ascontiguousarray(xp.broadcast_to(at, (cell.batch, cell.seq)))
    return program, inputs


def _tensor(array: Any) -> Any:
    """Return a result, if it is none yet, as a tensor of the same memory."""
    import torch

    if isinstance(array, torch.Tensor):
        return array
    return torch.from_dlpack(array.view("i2")).view(torch.bfloat16)


def machine(where: str) -> dict[str, Any]:
    """Return GPU, versions and date."""
    import torch

    names = ("stof-cupy", "torch", "triton", "numpy", "cupy-cuda12x", "cupy-cuda13x")
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found |= {"date": time.strftime("%Y-%m-%d"), "torch_cuda": torch.version.cuda}
    gpu = {"gpu": cards.gpu(), "driver": cards.driver()}
    return found | ({} if where == "cpu" else gpu)


if __name__ == "__main__":
    main()
