"""Measures layer stacks: ours and PyTorch's ways through a cell of engine_stacks.py.

Everyone has the same weights and inputs, in bfloat16; every result is compared with the same stack
in float32 before anything is timed. A time is that between two CUDA events around a call, of calls
that follow each other; the host's is that of a call and its wait.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import engine_stacks as stacks
import numpy as np
from engine_stacks import Cell

from stof_cupy.runtime import Options, Program

__all__ = ["WAYS", "Shared", "ours"]

WAYS = ("ours", "eager", "compiled", "flex")
SPENT = 0.5  # seconds of timing a way
ERROR = 2.0  # times that of eager bfloat16, which everyone may be off
CUBE = 8192  # M, N and K of the product that is timed beside a cell


class Shared:
    """What all ways through a cell share: weights, inputs, and the result in float32.

    Parameters
    ----------
    cell : Cell
    device : {"cuda", "cpu"}
        On a CPU this program can be tried, and a time is the host's.
    """

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

    def checked(self, way: str, options: Options) -> tuple[Callable[[], Any], dict[str, Any]]:
        """Return a call whose result was found right, and what is to be said of it.

        Raises
        ------
        AssertionError
            If it was not.
        """
        start = time.perf_counter()
        call, more = self.way(way, options)
        first = call()
        self.wait()
        cold, error = time.perf_counter() - start, self.error(_tensor(first))
        if not error <= ERROR * self.floor:
            raise AssertionError(f"error {error:.3g}, eager bfloat16 has {self.floor:.3g}")
        return call, {"cold_s": round(cold, 2), "error": error, **more()}

    def rounds(self, call: Callable[[], Any]) -> int:
        """Return how many calls take long enough, some having been made."""
        for _ in range(3):
            call()
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        return int(np.clip(SPENT / (time.perf_counter() - start), 10, 200))

    def device_quantiles(self, way: str, call: Callable[[], Any], count: int) -> dict[str, float]:
        """Return p20, p50 and p80 of the device's time in ms; nothing without a GPU."""
        if self._device != "cuda":
            return {}
        found = np.percentile(self._between_events(way, call, count), (20, 50, 80)).tolist()
        names = (f"device_{name}_ms" for name in ("p20", "p50", "p80"))
        return {**dict(zip(names, found, strict=True)), "device_rounds": count}

    @cached_property
    def facts(self) -> dict[str, float]:
        """What the cell is, and what the card does beside it.

        ``matmul_tflops`` is the rate of PyTorch's 8192^3 product, timed as ways are: goals go by
        it.
        """
        found = {"density": self.density, "gflop": stacks.operations(self.cell) / 1e9}
        return found | ({"matmul_tflops": self._matmul()} if self._device == "cuda" else {})

    def _matmul(self) -> float:
        torch, n = self._torch, CUBE
        a, b = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for _ in "ab")
        c = torch.empty_like(a)

        def call() -> None:
            torch.matmul(a, b, out=c)

        count = self.rounds(call)
        for _ in range(count):
            call()
            self.wait()
        ms = self.device_quantiles("matmul", call, count)["device_p50_ms"]
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
    return program, stacks.inputs(cell, xp.asarray(x))


def _tensor(array: Any) -> Any:
    """Return a result, if it is none yet, as a tensor of the same memory."""
    import torch

    if isinstance(array, torch.Tensor):
        return array
    return torch.from_dlpack(array.view("i2")).view(torch.bfloat16)
