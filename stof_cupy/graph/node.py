"""Nodes: the values of a graph, how they are printed, and the order in which they are visited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stof_cupy.errors import GraphError, mismatch
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.shapes import Shape, format_shape

__all__ = ["Node", "call", "reference", "topological"]


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One value of a graph; compared by identity, made only by :class:`Graph`.

    Attributes
    ----------
    op : str
        A name in `registry.OPS`, or ``"input"`` or ``"constant"``.
    inputs : tuple of Node or None
        One entry per port of the operator, None where an optional one is absent.
    attrs : tuple of (str, object)
        One entry per attribute of the operator, in its order.
    shape : tuple of int or str
        Dims; a name is a size known at run time.
    dtype : {"float", "int", "mask", "lengths"}
        ``float`` is the compute type of whatever runs the graph.
    index : int
        The number that `Graph.show` prints; -1 for a constant, which is shown by name.
    """

    op: str
    inputs: tuple[Node | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    shape: Shape
    dtype: str
    index: int

    @property
    def name(self) -> str:
        """The name of an input or a constant; a computed node has none."""
        return dict(self.attrs)["name"] if self.op in ("input", "constant") else ""

    @property
    def kind(self) -> str:
        """``"CI"``, ``"MI"``, ``"view"`` or ``"leaf"``."""
        return OPS[self.op].kind if self.op in OPS else "leaf"

    def __repr__(self) -> str:
        """Return the node's line in `Graph.show`."""
        return f"{call(self)} {self.dtype} {format_shape(self.shape)} [{self.kind}]"


def reference(value: Any) -> str:
    """Return how a node is referred to: ``%3`` or a constant's quoted name; else the repr.

    Of an array type and shape.
    """
    if not isinstance(value, Node):
        shape = getattr(value, "shape", None)
        return repr(value) if shape is None else f"{type(value).__name__} {tuple(shape)}"
    return f'"{value.name}"' if value.op == "constant" else f"%{value.index}"


def call(node: Node) -> str:
    """Return ``%3 = gemm(%2, w:"name")``; constants and optional inputs come with their port."""
    if node.op not in OPS:
        head = "" if node.op == "constant" else f"%{node.index} = "
        return f'{head}{node.op}("{node.name}")'
    op = OPS[node.op]
    words = []
    # A node that breaks the rules must still print: it is what the verifier complains about.
    for port, each in zip(op.ports, node.inputs, strict=False):
        if each is not None:
            bare = each.op != "constant" and not port.optional
            words.append(reference(each) if bare else f"{port.name}:{reference(each)}")
    defaults = {attr.name: attr.default for attr in op.attrs}
    words += [f"{name}={value!r}" for name, value in node.attrs if value != defaults.get(name)]
    return f"%{node.index} = {node.op}({', '.join(words)})"


def topological(
    roots: Iterable[Node],
    inputs: Callable[[Node], Iterable[Node | None]] = lambda node: node.inputs,
) -> list[Node]:
    """Return the nodes that `roots` need, inputs first; the order depends on structure alone.

    Raises
    ------
    GraphError
        If a node needs itself.
    """
    done: dict[Node, bool] = {}  # False while a node's inputs are being visited
    order = []
    stack = [(root, False) for root in reversed([*roots])]
    while stack:
        node, visited = stack.pop()
        if visited:
            done[node] = True
            order.append(node)
        elif node not in done:
            done[node] = False
            stack.append((node, True))
            stack += [(each, False) for each in reversed([*inputs(node)]) if each is not None]
        elif not done[node]:
            raise GraphError(mismatch(reference(node), "a node that needs itself", "no cycle"))
    return order
