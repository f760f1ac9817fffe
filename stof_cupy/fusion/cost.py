"""What operators cost by analysis: the larger of arithmetic and traffic, and a launch each.

A roofline (Williams, Waterman and Patterson, CACM 52(4), 2009). It is there to say what need not be
timed, not to predict: only ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from stof_cupy.graph import Node
from stof_cupy.graph.memory import bound
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_constants import Constants, speeds

__all__ = ["NUMPY", "Machine", "Work", "machine_of", "seconds", "shapes_class", "work"]


@dataclass(frozen=True)
class Machine:
    """Rates of what runs the graph.

    Attributes
    ----------
    name : str
    matrix_flops, vector_flops : float
        Of matrix products and of everything else, per second.
    memory_bytes, cache_bytes : float
        Traffic per second.
    cache_size : int
        Bytes that stay in the cache from one operator to the next.
    launch : float
        Seconds that a call costs before it does anything.
    facts : DeviceFacts or None
        Of the GPU, for models that know more than rates.
    """

    name: str
    matrix_flops: float
    vector_flops: float
    memory_bytes: float
    cache_bytes: float
    cache_size: int
    launch: float
    facts: DeviceFacts | None = None


NUMPY = Machine("numpy", 8e10, 2e9, 8e9, 3e10, 1 << 20, 4e-6)
"""A few cores and BLAS, as estimates."""


def machine_of(facts: DeviceFacts | None) -> Machine:
    """Return the rates of a GPU, or of NumPy if there is none."""
    if facts is None:
        return NUMPY
    rate = speeds(facts, Constants())
    clocks = rate.clocks * 1e6
    return Machine(
        facts.name,
        facts.sm_count * rate.tensor_flops_per_clk * clocks * Constants().tensor,
        facts.sm_count * 128 * clocks,
        rate.dram_bytes * 1e6 * Constants().dram,
        rate.l2_bytes * 1e6 * Constants().l2,
        facts.l2_bytes // 2,
        2.5e-6,
        facts,
    )


def shapes_class(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes rounded up, so that near ones share what was found: to a power of two.

    Examples
    --------
    >>> shapes_class({"batch": 3, "seq": 129})
    {'batch': 4, 'seq': 256}
    """
    return {name: 1 << max(size - 1, 0).bit_length() for name, size in sorted(sizes.items())}


@dataclass(frozen=True)
class Work:
    """What one operator does: flops, bytes of each operand and of the result, passes over them."""

    flops: float
    matrix: bool
    reads: tuple[int, ...]
    writes: int
    passes: float = 1.0


def _gemm(node: Node, sizes: Mapping[str, int]) -> float:
    x, w = node.inputs[:2]
    rows = 1 if x is None else math.prod(bound(x.shape[:-1], sizes))
    return 2.0 * rows * (1 if w is None else math.prod(bound(w.shape, sizes)))


def _product(node: Node, sizes: Mapping[str, int]) -> float:
    x = node.inputs[0]
    inner = 1 if x is None else bound(x.shape[-1:], sizes)[0]
    return 2.0 * math.prod(bound(node.shape, sizes)) * inner


def _attention(node: Node, sizes: Mapping[str, int]) -> float:
    k = node.inputs[1]
    keys = 1 if k is None else bound(k.shape[2:3], sizes)[0]
    # Scores and values; what a mask skips is not known here.
    return 4.0 * math.prod(bound(node.shape, sizes)) * keys


_MATRIX: Mapping[str, Callable[[Node, Mapping[str, int]], float]] = MappingProxyType(
    {"gemm": _gemm, "turned_gemm": _gemm, "matmul": _product, "attention": _attention}
)
"""Operators made of matrix products, and their flops."""

_VECTOR: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "gelu": (12, 4),
        "layer_norm": (8, 6),
        "softmax": (10, 6),
        "embedding": (3, 3),
        "rms_norm": (4, 4),
        "gated": (12, 5),
        "silu": (8, 4),
        "softcap": (8, 4),
        "rotary": (6, 4),
        "row_statistics": (4, 4),
    }
)
"""Others: flops an element, and how often NumPy passes over the data. Default: 1 and 1."""


def work(node: Node, sizes: Mapping[str, int], itemsize: int) -> Work:
    """Return what `node` does at given sizes, floats being `itemsize` bytes."""

    def size(each: Node) -> int:
        if each.dtype == "mask":
            return 0
        return math.prod(bound(each.shape, sizes)) * itemsize

    reads = tuple(size(each) for each in node.inputs if each is not None)
    if node.op in _MATRIX:
        return Work(_MATRIX[node.op](node, sizes), True, reads, size(node))
    elements = math.prod(bound(node.shape, sizes))
    flops, passes = _VECTOR.get(node.op, (1, 1))
    if node.op in ("embedding", "take_rows"):  # which read rows, not all of them
        reads = (elements * itemsize,)
    return Work(flops * elements, False, reads, elements * itemsize, passes)


def seconds(
    nodes: Sequence[Node], sizes: Mapping[str, int], itemsize: int, machine: Machine
) -> float:
    """Return the time of operators that run one after another."""
    total = 0.0
    for node in nodes:
        w = work(node, sizes, itemsize)
        passes = w.passes if machine is NUMPY else 1.0
        rate = machine.matrix_flops if w.matrix else machine.vector_flops
        moved = (sum(w.reads) + w.writes) * passes
        total += max(w.flops / rate, moved / machine.memory_bytes) + machine.launch
    return total
