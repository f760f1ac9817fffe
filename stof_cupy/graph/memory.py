"""Where the values between operators live: one arena, planned by liveness.

A value is needed from the operator that makes it to the last one that reads it or a view of it. Two
values that are never needed at the same time may share memory, and an operator that reads each
element before it writes it may work in place. Offsets are given to the largest values first, each
at the lowest place that is free for as long as the value lives (Pisarchyk and Lee, arXiv
2001.03288, section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from stof_cupy.errors import GraphError, mismatch
from stof_cupy.graph.ir import Graph
from stof_cupy.graph.node import Node, reference
from stof_cupy.graph.registry import OPS

__all__ = [
    "ALIGNMENT",
    "PASSED_ON",
    "PLACES",
    "MemoryPlan",
    "Place",
    "Slot",
    "bound",
    "describe",
    "is_placed",
    "plan_memory",
]

ALIGNMENT = 256
"""Bytes; what an allocation of CUDA has."""


@dataclass(frozen=True)
class Place:
    """How an operator writes to memory that is given to it.

    Attributes
    ----------
    in_place : tuple of str
        Ports whose operand it may overwrite with its result.
    order : tuple of int
        Order in which the result's axes lie in memory; empty: as they are.
    most_axes : int
        Results of more axes are not placed: their order would be that of the operand.
    """

    in_place: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    most_axes: int = 4


PLACES: Mapping[str, Place] = MappingProxyType(
    {
        "gemm": Place(in_place=("residual",)),
        "turned_gemm": Place(),
        # Heads are merged after it, which is a view of this order alone.
        "attention": Place(order=(0, 2, 1, 3)),
        "layer_norm": Place(in_place=("x",)),
        "add": Place(in_place=("x",)),
        "gelu": Place(in_place=("x",)),
        "embedding": Place(),
        "rms_norm": Place(in_place=("x",), most_axes=3),
        "mul": Place(in_place=("x",)),
        "gated": Place(in_place=("x",)),
        "silu": Place(in_place=("x",)),
        "relu": Place(in_place=("x",)),
        "softcap": Place(in_place=("x",)),
    }
)
"""The operators whose call takes ``out=``; the others allocate their results."""


PASSED_ON = ("kv_cache",)
"""Operators that are no views, whose result may all the same be their first operand."""


def is_placed(node: Node) -> bool:
    """Whether the result of `node` can be written to memory that is given."""
    return node.op in PLACES and len(node.shape) <= PLACES[node.op].most_axes


@dataclass(frozen=True)
class Slot:
    """The memory of one value: bytes from the start of the arena, and the axes' order there."""

    offset: int
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """Slots of all values that are placed.

    Attributes
    ----------
    sizes : mapping of str to int
        What the symbolic dims are.
    slots : mapping of Node to Slot
    arena_bytes : int
        Size of the arena: the peak.
    least_bytes : int
        The most that is needed at one time, which no plan without moves can go below.
    total_bytes : int
        What the values would take if each had memory of its own.
    in_place : mapping of Node to Node
        Results that take over an operand's memory, and whose.
    """

    sizes: Mapping[str, int]
    slots: Mapping[Node, Slot]
    arena_bytes: int
    least_bytes: int
    total_bytes: int
    in_place: Mapping[Node, Node]

    def __str__(self) -> str:
        """Return it in one line, for people."""
        share = self.arena_bytes / self.total_bytes if self.total_bytes else 0
        return (
            f"{len(self.slots)} values in {self.arena_bytes:,} bytes, {share:.0%} of the "
            f"{self.total_bytes:,} they have together; {len(self.in_place)} in place"
        )


def bound(shape: Iterable[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with its names replaced by their sizes.

    Examples
    --------
    >>> bound(("batch", "seq", 3), {"batch": 2, "seq": 5})
    (2, 5, 3)
    """
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)


@dataclass
class _Buffer:
    """Memory of one value and of those that take it over: bytes, and first and last step."""

    size: int
    first: int
    last: int
    nodes: list[Node] = field(default_factory=list)
    offset: int = -1

    def meets(self, other: _Buffer) -> bool:
        return self.first <= other.last and other.first <= self.last


def plan_memory(
    graph: Graph,
    sizes: Mapping[str, int],
    itemsize: int,
    steps: Sequence[tuple[Node, Sequence[Node | None]]] | None = None,
) -> MemoryPlan:
    """Place the values of a graph that only its own operators read.

    Inputs, constants and outputs are not placed, nor are results of operators that are not in
    :data:`PLACES`.

    Parameters
    ----------
    graph : Graph
    sizes : mapping of str to int
        What the symbolic dims are.
    itemsize : int
        Bytes of a float.
    steps : sequence of (Node, operands), optional
        In which order what is computed from what; default: the graph's nodes in their order.

    Raises
    ------
    GraphError
        If a symbolic dim has no size.

    Examples
    --------
    >>> g = Graph("chain")
    >>> x = g.input("x", ("seq", 64), "float")
    >>> g.output("y", g.softmax(g.gelu(g.gelu(g.add(x, x)), approximate="tanh")))
    >>> print(plan_memory(g, {"seq": 10}, 4))
    3 values in 2,560 bytes, 33% of the 7,680 they have together; 2 in place
    """
    placed = filter(is_placed, graph.nodes())
    missing = sorted({d for n in placed for d in n.shape if isinstance(d, str)} - sizes.keys())
    if missing:
        raise GraphError(mismatch(f"size of {missing[0]!r}", "none", "a number"))
    if steps is None:
        steps = [(node, node.inputs) for node in graph.nodes() if node.op in OPS]
    owner = _owners(graph)
    last: dict[Node, int] = {}
    for number, (node, operands) in enumerate(steps):
        for each in (node, *operands):
            if each is not None:
                last[owner[each]] = number
    kept = {owner[node] for node in graph.outputs.values()}
    buffers: dict[Node, _Buffer] = {}
    in_place: dict[Node, Node] = {}
    for number, (node, operands) in enumerate(steps):
        if not is_placed(node) or owner[node] in kept:
            continue
        size = -(-math.prod(bound(node.shape, sizes)) * itemsize // ALIGNMENT) * ALIGNMENT
        taken = _overwritten(node, operands, number, owner, last, buffers)
        if taken is None:
            buffers[node] = _Buffer(size, number, last[node], [node])
        else:
            in_place[node] = taken
            buffer = buffers[node] = buffers[taken]
            buffer.last = last[node]
            buffer.nodes.append(node)
    distinct = list({id(each): each for each in buffers.values()}.values())
    _give_offsets(distinct)
    slots = {
        node: Slot(each.offset, bound(node.shape, sizes), PLACES[node.op].order)
        for each in distinct
        for node in each.nodes
    }
    return MemoryPlan(
        MappingProxyType(dict(sizes)),
        MappingProxyType(slots),
        max((each.offset + each.size for each in distinct), default=0),
        max(
            (sum(b.size for b in distinct if b.first <= n <= b.last) for n in range(len(steps))),
            default=0,
        ),
        sum(each.size * len(each.nodes) for each in distinct),
        MappingProxyType(in_place),
    )


def _owners(graph: Graph) -> dict[Node, Node]:
    """Return for every node the one whose memory it is in: itself, or what it views."""
    owner: dict[Node, Node] = {}
    for node in graph.nodes():
        viewed = node.inputs[0] if node.kind == "view" or node.op in PASSED_ON else None
        owner[node] = node if viewed is None else owner[viewed]
    return owner


def _overwritten(
    node: Node,
    operands: Sequence[Node | None],
    number: int,
    owner: Mapping[Node, Node],
    last: Mapping[Node, int],
    buffers: Mapping[Node, _Buffer],
) -> Node | None:
    """Return the operand that `node` may write over, or None."""
    if tuple(operands) != node.inputs:
        return None  # of several operators that run as one, the last reads what it must not lose
    for port, each in zip(OPS[node.op].ports, operands, strict=True):
        if port.name not in PLACES[node.op].in_place or each is None or each not in buffers:
            continue
        readers = sum(owner[other] is each for other in operands if other is not None)
        same_form = each.shape == node.shape and not PLACES[each.op].order
        if readers == 1 and last[each] == number and same_form and owner[each] is each:
            return each
    return None


def _give_offsets(buffers: Iterable[_Buffer]) -> None:
    placed: list[_Buffer] = []
    for each in sorted(buffers, key=lambda buffer: (-buffer.size, buffer.first)):
        offset = 0
        for other in sorted(filter(each.meets, placed), key=lambda buffer: buffer.offset):
            if offset + each.size <= other.offset:
                break
            offset = max(offset, other.offset + other.size)
        each.offset = offset
        placed.append(each)


def describe(plan: MemoryPlan) -> str:
    """Return the plan as text, a line a value in order of its place."""
    rows = sorted(plan.slots.items(), key=lambda item: (item[1].offset, item[0].index))
    lines = [f"{slot.offset:>12,}  {reference(node):6} {node.op}" for node, slot in rows]
    return "\n".join([str(plan), *lines])
