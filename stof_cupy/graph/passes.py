"""Passes that make a graph smaller without changing what any operator computes, as a table.

They hold for every graph and every device: what nothing needs is left out, what is known is
computed once, and what does nothing is dropped. Which operators run as one is for
:mod:`stof_cupy.fusion`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy import env
from stof_cupy.graph.ir import Graph
from stof_cupy.graph.node import Node
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.substitute import Replacement, operator, same_as, substitute
from stof_cupy.graph.verify import verify

__all__ = ["IDENTITIES", "PASSES", "Pass", "simplify"]

_SMALL = 1 << 16
"""Bytes up to which constants are compared by what they hold; larger ones by where they are."""


@dataclass(frozen=True)
class Pass:
    """A name for people, and a function from graph to graph that leaves the old one as it is."""

    name: str
    apply: Callable[[Graph], Graph]


def _share_constants(graph: Graph) -> Graph:
    """Let constants of one memory, or small ones of equal content, be one node: tied weights."""
    first: dict[Any, Node] = {}
    for node in graph.nodes():
        if node.op == "constant":
            first.setdefault(_content(graph.constants[node.name]), node)

    def match(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
        if node.op != "constant":
            return None
        original = first[_content(graph.constants[node.name])]
        return None if original is node else same_as(original)

    return substitute(match, graph)


def _content(array: NDArray[Any]) -> Any:
    form = (array.shape, array.dtype.str, array.dtype.name)
    if array.nbytes <= _SMALL:
        return (*form, array.tobytes())
    return (*form, array.strides, array.ctypes.data)


def _fold_constants(graph: Graph) -> Graph:
    """Compute what depends on constants alone, unless it has more elements than they have.

    Views stay views of the constant's memory; what is computed is computed in float64 and kept as
    float32.
    """
    known: dict[Node, NDArray[Any]] = {}
    names: dict[Node, str] = {}
    for node in graph.nodes():
        operands = [each for each in node.inputs if each is not None]
        if node.op == "constant":
            known[node], names[node] = graph.constants[node.name], node.name
        elif node.op in OPS and operands and all(each in known for each in operands):
            size = sum(known[each].size for each in operands)
            value = _computed(node, known)
            if value.size <= size:
                known[node] = value
                names[node] = _folded_name(node, [names[each] for each in operands])

    def match(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
        if node.op == "constant" or node not in known:
            return None
        return Replacement((), lambda g, new: g.constant(names[node], known[node]))

    return substitute(match, graph)


def _computed(node: Node, known: Mapping[Node, NDArray[Any]]) -> NDArray[Any]:
    op, attrs = OPS[node.op], dict(node.attrs)
    arrays = [None if each is None else known[each] for each in node.inputs]
    if op.kind == "view":
        return op.meaning(*arrays, **attrs)
    wide = [
        x.astype(np.float64) if x is not None and port.dtype == "float" else x
        for port, x in zip(op.ports, arrays, strict=True)
    ]
    return np.asarray(op.meaning(*wide, **attrs), np.float32)


def _folded_name(node: Node, names: list[str]) -> str:
    """Return a name that says what was folded, and is another one for other attributes."""
    attrs = hashlib.sha256(repr((node.attrs, names)).encode()).hexdigest()[:8]
    return f"{node.op}:{names[0]}:{attrs}"


def _scale(node: Node) -> Replacement | None:
    (x,) = node.inputs
    factor = dict(node.attrs)["factor"]
    if x is None:
        return None
    if x.op == "scale":
        factors = factor, dict(x.attrs)["factor"]
        product = math.prod(factors)
        # What float16 cannot hold stays two factors, of which each may be within it.
        if 0 in factors or _LEAST <= abs(product) <= _MOST:
            return operator("scale", x.inputs, {"factor": product})
    return same_as(x) if factor == 1 else None


_LEAST, _MOST = 2.0**-14, 65504.0
"""Normal numbers of float16."""


def _transpose(node: Node) -> Replacement | None:
    (x,) = node.inputs
    axes = dict(node.attrs)["axes"]
    if x is None:
        return None
    if x.op == "transpose":
        inner = dict(x.attrs)["axes"]
        return operator("transpose", x.inputs, {"axes": [inner[axis] for axis in axes]})
    return same_as(x) if axes == tuple(range(len(axes))) else None


def _columns(node: Node) -> Replacement | None:
    (x,) = node.inputs
    part = dict(node.attrs)
    if x is None:
        return None
    if x.op == "columns":
        begin = dict(x.attrs)["start"]
        return operator("columns", x.inputs, {name: at + begin for name, at in part.items()})
    return same_as(x) if node.shape == x.shape else None


def _undone_heads(node: Node) -> Replacement | None:
    (x,) = node.inputs
    opposite = "merge_heads" if node.op == "split_heads" else "split_heads"
    if x is None or x.op != opposite or x.inputs[0] is None or x.inputs[0].shape != node.shape:
        return None
    return same_as(x.inputs[0])


IDENTITIES: Mapping[str, Callable[[Node], Replacement | None]] = MappingProxyType(
    {
        "scale": _scale,
        "transpose": _transpose,
        "columns": _columns,
        "split_heads": _undone_heads,
        "merge_heads": _undone_heads,
    }
)
"""By operator: the simpler node that it equals, or None. Views that undo each other are gone."""


def _drop_identities(graph: Graph) -> Graph:
    def match(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
        rule = IDENTITIES.get(node.op)
        return None if rule is None else rule(node)

    while True:  # a chain is halved each time
        before = graph.digest()
        graph = substitute(match, graph)
        if graph.digest() == before:
            return graph


PASSES = (
    Pass("constants are folded", _fold_constants),
    Pass("equal constants are shared", _share_constants),
    Pass("what does nothing is dropped", _drop_identities),
)
"""In order. Each leaves out what no output needs, and shares pieces that are written twice."""


def simplify(graph: Graph) -> Graph:
    """Run :data:`PASSES`.

    Parameters
    ----------
    graph : Graph
        Left as it is.

    Returns
    -------
    Graph
        Verified; after each pass too when ``STOF_VERIFY=1``.

    Raises
    ------
    GraphError
        If the graph does not verify.

    Examples
    --------
    >>> g = Graph("block")
    >>> x = g.input("x", ("batch", "seq", 2), "float")
    >>> w = g.transpose(g.constant("w", np.ones((2, 3), np.float32)), axes=(1, 0))
    >>> g.output("y", g.scale(g.gemm(x, w), factor=1))
    >>> print(simplify(g).show())
    block (batch, seq)
    %0 = input("x") float (batch, seq, 2) [leaf]
    %1 = gemm(%0, w:"transpose:w:...") float (batch, seq, 3) [CI]
    y = %1
    """
    verify(graph)
    each_time = env.VERIFY.get() == "1"
    for step in PASSES:
        graph = step.apply(graph)
        if each_time:
            verify(graph)
    verify(graph)
    return graph
