"""Where a layer stack's time goes, kernel by kernel, and where the models say that it should go.

    python benchmarks/engine_profile.py                                   predicted, without a GPU
    python benchmarks/engine_profile.py --cells gpt2:16x2048:full
    python benchmarks/engine_profile.py --measure                         and measured, on a GPU

Kernels of a recorded run are watched by ``torch.profiler``. The next kernel is launched before the
one before has ended, so that the time of each is counted from that end to its own: together they
are the run. A layer is shown by the means over all layers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import engine_measure
import engine_stacks as stacks
import numpy as np
from engine_stacks import ANCHORS, Cell
from regret import H100
from summary_stacks import GOALS

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.fusion import fuse_epilogues, products, structured
from stof_cupy.fusion.norms import fold_norms, tell_statistics
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.memory import bound
from stof_cupy.jit import device
from stof_cupy.ops import attention_model, gemm_choice, gemm_model, gemm_sm90
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case
from stof_cupy.runtime import Options

__all__ = ["layers", "measured", "predicted", "show", "shown"]

_PRODUCTS = ("gemm", "turned_gemm", "told_gemm")
_L2_BYTES = 5.5e6  # a microsecond, of what fits half of the L2; memory's are the model's
_LAUNCH_US = 2.0


# ---------------------------------------------------------------- predicted


def predicted(graph: Graph, cell: Cell, mask: Any, facts: Any = H100) -> list[tuple[str, float]]:
    """Return what runs in a graph and its microseconds by the models, in order."""
    sizes = {"batch": cell.batch, "seq": cell.seq}
    nodes, uses = [node for node in graph.nodes() if node.kind in ("CI", "MI")], graph.uses()
    found = []
    for node in nodes:
        source = node.inputs[0]
        if node.op in ("layer_norm", "rms_norm") and source in nodes and uses[source] == 1:
            joined = _joined_us(source, sizes, facts)
            if joined is not None:
                label, _ = found.pop()
                found.append((f"{label} + {node.op}", joined))
                continue
        found.append((_label(node, sizes), _us(node, sizes, mask, facts)))
    return found


def _joined_us(node: Node, sizes: dict[str, int], facts: Any) -> float | None:
    """Return the time of a product and its norm if they are one kernel."""
    problem = products.problem_of(node, sizes) if node.op == "gemm" else None
    plan = problem and gemm_choice.norm(problem, products.layout_of(problem), facts)
    if problem is None or not isinstance(plan, gemm_sm90.Plan):
        return None
    return gemm_model.predict(plan, problem, facts, gemm_model.Constants()).us


def _label(node: Node, sizes: dict[str, int]) -> str:
    return f"{node.op} {'x'.join(map(str, bound(node.shape, sizes)))}"


def _us(node: Node, sizes: dict[str, int], mask: Any, facts: Any) -> float:
    if node.op in _PRODUCTS:
        tells = node.op == "told_gemm"
        plain = replace(node, op="gemm", attrs=(*node.attrs, ("gated", False))) if tells else node
        problem = products.problem_of(plain, sizes)
        problem = replace(problem, epilogue=replace(problem.epilogue, statistics=tells))
        return gemm_model.explain(problem, products.layout_of(problem), facts)[0].us
    if node.op == "attention":
        q, k = (bound(each.shape, sizes) for each in node.inputs[:2] if each is not None)
        problem = Problem("bfloat16", q[0], q[1], k[1], q[2], k[2], q[3], k[3])
        return attention_model.explain(Case(problem, mask, facts))[0].us
    size = 2 * sum(
        math.prod(bound(each.shape, sizes))
        for each in (node, *node.inputs)
        if each is not None and each.dtype == "float"
    )
    if node.op == "told_statistics":  # of which it reads two floats for 64 columns
        size = math.prod(bound(node.shape, sizes)) * 4 * (1 + node.inputs[0].shape[-1] // 64)
    rate = gemm_model.bandwidth(facts, gemm_model.Constants())
    return _LAUNCH_US + size / (_L2_BYTES if size <= facts.l2_bytes / 2 else rate)


def layers(cell: Cell, fold: bool = False) -> tuple[Graph, Any]:
    """Return three layers of a cell's stack as they run, and their mask.

    Raises
    ------
    ArgumentError
        Of T5, whose layers are not alike.
    """
    if cell.stack.buckets:
        raise ArgumentError(mismatch("cell", str(cell), "a stack whose layers are alike"))
    few = replace(cell.stack, layers=3)
    arrays = stacks.weights(few) if not few.rotary else _nothing(few)
    graph = structured(stacks.graph(few, arrays))
    graph = fuse_epilogues(fold_norms(graph) if fold else graph)
    graph = tell_statistics(graph) if fold else graph
    return graph, stacks.pattern(replace(cell, stack=few))


def _nothing(stack: stacks.Stack) -> dict[str, Any]:
    """Return weights that take no memory until they are looked at."""
    up = 2 * stack.inner
    shapes = {"qkv": (stack.qkv, stack.hidden), "out": (stack.hidden, stack.hidden)}
    shapes |= {"up": (up, stack.hidden), "down": (stack.hidden, stack.inner)}
    made = {
        f"{i}.{part}.weight": np.zeros(shape, np.float16)
        for i in range(stack.layers)
        for part, shape in shapes.items()
    }
    norms = [f"{i}.{norm}.weight" for i in range(stack.layers) for norm in ("norm1", "norm2")]
    return made | {name: np.zeros(stack.hidden, np.float16) for name in norms}


# ---------------------------------------------------------------- measured


def measured(call: Callable[[], Any], runs: int = 5) -> list[tuple[str, float]]:
    """Return the kernels of a call in order, and the mean microseconds that each adds to it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as told:
        for _ in range(runs):
            call()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    found = sorted(
        (each.time_range.end, each.time_range.start, each.name)
        for each in told.events()
        if each.device_type == cuda
    )
    return _each(found, runs)


def _each(found: Sequence[tuple[float, float, str]], runs: int) -> list[tuple[str, float]]:
    """Return names and mean times of ``(end, start, name)`` of equal runs that follow each other.

    Examples
    --------
    >>> _each([(3, 1, "a"), (7, 2, "b"), (13, 11, "a"), (15, 12, "b")], 2)
    [('a', 2.0), ('b', 3.0)]
    """
    count, before, spent = len(found) // runs, -math.inf, []
    for end, start, _ in found:
        spent.append(end - max(before, start))
        before = end
    names = [name.removeprefix("stof_") for _, _, name in found]
    if not count or len(found) % runs or names != names[:count] * runs:
        return [(name, each) for name, each in zip(names, spent, strict=True)]
    return [(names[at], float(np.mean(spent[at::count]))) for at in range(count)]


def shown(
    kernels: Sequence[tuple[str, float]], count: int, expected: Sequence[tuple[str, float]] = ()
) -> list[str]:
    """Return the kernels of `count` equal layers as lines, each the mean over all layers.

    With `expected` those of one layer by the models stand beside them, if there are as many.
    """
    own = [each for each in kernels if not each[0].startswith(("cupy_", "Memcpy", "Memset"))]
    total = sum(us for _, us in kernels)
    lines = [f"{len(kernels)} kernels, {total / 1e3:.3f} ms one after another"]
    if not own or len(own) % count:
        by_name: dict[str, list[float]] = {}
        for name, us in kernels:
            by_name.setdefault(name, []).append(us)
        ranked = sorted(by_name.items(), key=lambda item: -sum(item[1]))
        return lines + [
            f"  {sum(times):9.1f} us  {len(times):3} x {np.mean(times):8.1f}  {name}"
            for name, times in ranked[:12]
        ]
    size = len(own) // count
    for at in range(size):
        us = float(np.mean([each for _, each in own[at::size]]))
        beside = ""
        if len(expected) == size:
            beside = f"  {expected[at][1]:8.1f} predicted  {expected[at][0]}"
        lines.append(f"  {us:9.1f} us x {count}  {own[at][0]:48}{beside}")
    return lines


def show(cell: Cell, call: Callable[[], Any], fold: bool = False) -> None:
    """Print where the time of a run of a cell goes; if it cannot be watched, say so and go on."""
    try:
        graph, mask = layers(cell, fold)
        every = predicted(graph, cell, mask, device.facts())
        size = len(every) // 3
        lines = shown(measured(call), cell.stack.layers, every[size : 2 * size])
    except Exception as error:  # a profiler that is not there is no reason to lose what was timed
        lines = [f"not profiled: {type(error).__name__}: {error}"]
    print(f"{cell}: " + "\n".join(lines), flush=True)


def _measure(cell: Cell, options: Options) -> None:
    weights, x = stacks.weights(cell.stack), stacks.hidden_states(cell)
    program, inputs = engine_measure.ours(cell, weights, x, options, "cuda")
    for _ in range(2):  # then it is recorded
        program.run(inputs)
    show(cell, lambda: program.run(inputs), bool(options.fold_norms))
    program.close()


def main() -> None:
    """Show what the models predict, and what is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=[*map(str, ANCHORS)])
    parser.add_argument("--fold", action="store_true", help="norms folded into products")
    parser.add_argument("--measure", action="store_true", help="what runs here, beside them")
    parser.add_argument("--tune", default="fast", help="of what runs: off, fast or full")
    args = parser.parse_args()
    for cell in map(Cell.parse, args.cells):
        if args.measure:
            _measure(cell, Options(tune=args.tune, fold_norms=args.fold))
            continue
        graph, mask = layers(cell, args.fold)
        every = predicted(graph, cell, mask)
        size, count = len(every) // 3, cell.stack.layers
        layer = every[size : 2 * size]
        total = count * sum(us for _, us in layer) / 1e3
        goal = f", goal {GOALS[str(cell)]}" if str(cell) in GOALS else ""
        print(f"{cell}: {total:.3f} ms in {count * size} kernels{goal}")
        for label, us in layer:
            print(f"  {us:9.1f} us x {count}  {label}")


if __name__ == "__main__":
    main()
