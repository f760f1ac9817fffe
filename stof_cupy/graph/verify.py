"""What a well-formed graph is, as a table of rules that every pass is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stof_cupy.errors import GraphError, mismatch
from stof_cupy.graph import arguments
from stof_cupy.graph.ir import Graph, Node
from stof_cupy.graph.node import reference
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.shapes import format_shape

__all__ = ["RULES", "Rule", "verify"]


@dataclass(frozen=True)
class Rule:
    """One property of every node; a rule may rely on the ones before it.

    Attributes
    ----------
    name : str
        The property in words, as it stands in the error.
    holds : callable
        ``(graph, node) -> bool``.
    found : callable
        ``(graph, node) -> object``: what to show when it does not hold.
    """

    name: str
    holds: Callable[[Graph, Node], bool]
    found: Callable[[Graph, Node], Any]


def _is_leaf(node: Node) -> bool:
    return node.op in ("input", "constant")


def _takes_its_ports(graph: Graph, node: Node) -> bool:
    if _is_leaf(node):
        return not node.inputs
    ports = OPS[node.op].ports
    return len(node.inputs) == len(ports) and all(
        port.optional if each is None else each.dtype == port.dtype
        for port, each in zip(ports, node.inputs, strict=True)
    )


def _has_its_attributes(graph: Graph, node: Node) -> bool:
    if _is_leaf(node):
        return [name for name, _ in node.attrs] == ["name"]
    try:
        return arguments.attributes(OPS[node.op], dict(node.attrs)) == node.attrs
    except GraphError:
        return False


def _inferred(node: Node) -> Any:
    """Return the shape that follows from the inputs, or the message that says why none does."""
    op = OPS[node.op]
    try:
        return op.infer(arguments.shapes(op, node.inputs), dict(node.attrs))
    except GraphError as error:
        return str(error)


def _shape_follows(graph: Graph, node: Node) -> bool:
    return _is_leaf(node) or (node.shape, node.dtype) == (_inferred(node), OPS[node.op].dtype)


def _dims_are_declared(graph: Graph, node: Node) -> bool:
    return all(dim in graph.dims if isinstance(dim, str) else dim >= 0 for dim in node.shape)


def _leaf_is_declared(graph: Graph, node: Node) -> bool:
    if node.op == "input":
        return graph.inputs.get(node.name) is node
    if node.op == "constant":
        array = graph.constants.get(node.name)
        return array is not None and array.shape == node.shape
    return True


RULES = (
    Rule("is a registered op", lambda g, n: n.op in OPS or _is_leaf(n), lambda g, n: n.op),
    Rule("takes the inputs of its op", _takes_its_ports, lambda g, n: n.inputs),
    Rule("has the attributes of its op", _has_its_attributes, lambda g, n: n.attrs),
    Rule(
        "has the shape and dtype that its inputs imply",
        _shape_follows,
        lambda g, n: f"{format_shape(n.shape)} {n.dtype}, implied {_inferred(n)}",
    ),
    Rule("uses declared dims", _dims_are_declared, lambda g, n: format_shape(n.shape)),
    Rule("is a declared input or constant", _leaf_is_declared, lambda g, n: n.name),
    Rule("was made by this graph", lambda g, n: g.owns(n), lambda g, n: "a foreign node"),
)
"""Checked in order, for every node that an output needs."""


def verify(graph: Graph) -> None:
    """Check a graph against :data:`RULES`.

    Raises
    ------
    GraphError
        If it is no graph or has no output, a node needs itself, or a rule does not hold; names node
        and rule.

    Examples
    --------
    >>> g = Graph("empty")
    >>> verify(g)
    Traceback (most recent call last):
    stof_cupy.errors.GraphError: graph empty: got no output, expected at least one
    """
    if not isinstance(graph, Graph):
        raise GraphError(mismatch("graph", type(graph).__name__, "a Graph"))
    if not graph.outputs:
        raise GraphError(mismatch(f"graph {graph.name}", "no output", "at least one"))
    for node in graph.nodes():
        for rule in RULES:
            if not rule.holds(graph, node):
                got = f"{node.op} with {rule.found(graph, node)}"
                raise GraphError(mismatch(reference(node), got, f"a node that {rule.name}"))
