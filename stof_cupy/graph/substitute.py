"""How a pass changes a graph: it says what stands for a node, and a new graph follows from that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stof_cupy.graph.ir import Graph
from stof_cupy.graph.node import Node, topological
from stof_cupy.graph.registry import OPS

__all__ = ["Match", "Replacement", "operator", "replaced", "same_as", "substitute"]


@dataclass(frozen=True)
class Replacement:
    """What stands for a node of the old graph.

    Attributes
    ----------
    inputs : tuple of Node or None
        Nodes of the old graph that it needs.
    build : callable
        ``(new graph, what stands for each input) -> node of the new graph``.
    """

    inputs: tuple[Node | None, ...]
    build: Callable[[Graph, tuple[Node | None, ...]], Node]


Match = Callable[[Node, Mapping[Node, int]], "Replacement | None"]
"""``(node, uses of every node) -> what stands for it``, or None where it stays."""


def operator(op: str, inputs: Iterable[Node | None], attrs: Mapping[str, Any]) -> Replacement:
    """Return one operator on nodes of the old graph, to stand for one of them."""
    return Replacement(tuple(inputs), lambda graph, new: graph.apply(op, *new, **attrs))


def same_as(node: Node) -> Replacement:
    """Return another node of the old graph, to stand for one of them."""

    def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
        (only,) = (each for each in new if each is not None)
        return only

    return Replacement((node,), build)


def substitute(match: Match, graph: Graph) -> Graph:
    """Return the graph in which every node that `match` finds is replaced.

    Nodes that have no use then are gone. Inputs and outputs keep their names and order, constants
    their names and arrays.

    Parameters
    ----------
    match : callable
    graph : Graph
        Left as it is.

    Examples
    --------
    >>> g = Graph("twice")
    >>> x = g.input("x", ("seq", 2), "float")
    >>> g.output("y", g.gelu(g.add(x, x)))
    >>> no_gelu = lambda node, uses: same_as(node.inputs[0]) if node.op == "gelu" else None
    >>> print(substitute(no_gelu, g).show())
    twice (batch, seq)
    %0 = input("x") float (seq, 2) [leaf]
    %1 = add(%0, %0) float (seq, 2) [MI]
    y = %1
    """
    return replaced(match, graph)[0]


def replaced(match: Match, graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """Return `substitute`'s graph, and which of its nodes stands for each needed old one."""
    uses = graph.uses()
    found = {node: match(node, uses) for node in uses}

    def inputs(node: Node) -> Iterable[Node | None]:
        replacement = found[node]
        return node.inputs if replacement is None else replacement.inputs

    result = Graph(graph.name, graph.dims)
    new: dict[Node | None, Any] = {None: None}
    for name, node in graph.inputs.items():
        new[node] = result.input(name, node.shape, node.dtype)
    for node in topological(graph.outputs.values(), inputs):
        replacement = found[node]
        if replacement is not None:
            new[node] = replacement.build(result, tuple(new[each] for each in replacement.inputs))
        elif node.op == "constant":
            new[node] = result.constant(node.name, graph.constants[node.name])
        elif node.op in OPS:
            operands = [new[each] for each in node.inputs]
            new[node] = result.apply(node.op, *operands, **dict(node.attrs))
    for name, node in graph.outputs.items():
        result.output(name, new[node])
    del new[None]
    return result, new  # type: ignore[return-value]
