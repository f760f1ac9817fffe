"""Norms before products, applied after them: no normalised rows are written.

``layer_norm(x) @ w.T + bias`` with weights g and shift s of the norm is

    (x @ v.T) / deviation + c    with v the rows of w * g less their means, c = bias + w @ s

since rows without a mean do not see the mean of x. Of an RMSNorm the rows keep theirs. What is left
of the norm is the deviation of each row, which takes one pass that writes next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.fusion import products
from stof_cupy.fusion.cost import Machine, work
from stof_cupy.fusion.lower import Lowered
from stof_cupy.fusion.merge import readers_of
from stof_cupy.fusion.naming import made_name
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.steps import Fused
from stof_cupy.graph.substitute import Match, Replacement, replaced, substitute

__all__ = ["fold_norms", "pays", "tell_statistics", "told"]

_PRODUCTS = ("gemm", "turned_gemm")


def fold_norms(graph: Graph) -> Graph:
    """Apply norms that products alone read to the results of these.

    Not among the exact rewrites: another kernel has to read all rows, so that it pays where rows
    are many. The weights that take the place of others are made on the host.

    Parameters
    ----------
    graph : Graph
        Left as it is.

    Examples
    --------
    >>> g = Graph("half a layer")
    >>> x = g.input("x", ("batch", "seq", 4), "float")
    >>> y = g.rms_norm(x, g.constant("norm", np.ones(4, np.float32)), eps=1e-6)
    >>> g.output("y", g.add(g.gemm(y, g.constant("w", np.ones((4, 4), np.float32))), x))
    >>> print(fold_norms(g).show())
    half a layer (batch, seq)
    %0 = input("x") float (batch, seq, 4) [leaf]
    %1 = row_statistics(%0, eps=1e-06, centred=False) float (batch, seq, 2) [MI]
    %2 = gemm(%0, w:"norm*w", statistics:%1) float (batch, seq, 4) [CI]
    %3 = add(%2, %0) float (batch, seq, 4) [MI]
    y = %3
    """
    readers = readers_of(graph)
    found: dict[Node, Replacement] = {}
    folded = _Folded(graph)
    for norm in graph.nodes():
        if norm.op in ("layer_norm", "rms_norm") and _products_alone(norm, readers.get(norm, ())):
            users = dict.fromkeys(user for user, _ in readers[norm])
            found |= {product: folded.replacement(norm, product) for product in users}
    return substitute(lambda node, uses: found.get(node), graph)


def pays(graph: Graph, sizes: Mapping[str, int], itemsize: int, machine: Machine) -> bool:
    """Whether analysis expects `fold_norms` to pay: on a GPU whose cache does not hold the rows.

    What it saves is to write them normalised and to read them again. Smaller ones stay in the
    cache, and a kernel that merges statistics takes as long as the norm.
    """
    readers = readers_of(graph)
    folded = (
        node
        for node in graph.nodes()
        if node.op in ("layer_norm", "rms_norm") and _products_alone(node, readers.get(node, ()))
    )
    most = max((work(node, sizes, itemsize).writes for node in folded), default=0)
    return machine.facts is not None and most > machine.cache_size


def tell_statistics(graph: Graph) -> Graph:
    """Let products tell the statistics of their rows, of which only pieces are merged then.

    Parameters
    ----------
    graph : Graph
        After `fold_norms` and `fuse_epilogues`; left as it is.
    """
    return substitute(_telling(graph), graph)


def told(lowered: Lowered) -> Lowered:
    """Do so in what was tuned: a product that tells runs with the setting that it had."""
    graph, new = replaced(_telling(lowered.graph), lowered.graph)

    def moved(each: Fused) -> Fused:
        nodes = tuple(new[node] for node in each.nodes)
        inputs = tuple(None if node is None else new[node] for node in each.inputs)
        if len(nodes) == 1 and nodes[0].op == "told_rows":
            (product,) = (node for node in nodes[0].inputs if node is not None)
            call = products.build((product,), product.inputs, each.setting)
            return Fused((product,), product.inputs, call, each.setting)
        return Fused(nodes, inputs, each.call, each.setting)

    return Lowered(graph, tuple(map(moved, lowered.fused)))


def _telling(graph: Graph) -> Match:
    readers = readers_of(graph)

    def tells(node: Node | None) -> bool:
        if node is None or node.op != "gemm" or dict(node.attrs)["gated"]:
            return False
        return any(user.op == "row_statistics" for user, _ in readers[node])

    def by(node: Node, read: str, **attrs: Any) -> Replacement:
        activation = dict(node.attrs)["activation"]

        def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
            product = graph.apply("told_gemm", *new, activation=activation)
            return graph.apply(read, product, **attrs)

        return Replacement(node.inputs, build)

    def match(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
        if tells(node):
            return by(node, "told_rows")
        source = node.inputs[0] if node.op == "row_statistics" else None
        if source is None or not tells(source):
            return None
        return by(source, "told_statistics", **dict(node.attrs))

    return match


def _products_alone(norm: Node, readers: Sequence[tuple[Node, str]]) -> bool:
    """Whether a norm by constants is read by products by constants, and by nothing else."""
    if not readers or any(each is None or each.op != "constant" for each in norm.inputs[1:]):
        return False
    return len(norm.shape) > 1 and all(
        user.op in _PRODUCTS and port == "x" and _by_constants(user) for user, port in readers
    )


def _by_constants(product: Node) -> bool:
    parts = _operands(product)
    bias, weight = parts["bias"], parts["w"]
    return (
        parts["statistics"] is None
        and weight is not None
        and weight.op == "constant"
        and (bias is None or bias.op == "constant")
    )


def _operands(product: Node) -> dict[str, Node | None]:
    names = [port.name for port in OPS[product.op].ports]
    return dict(zip(names, product.inputs, strict=True))


class _Folded:
    """Constants with those of norms in them, of a name that says what they are; each made once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[str, NDArray[Any]] = {}

    def replacement(self, norm: Node, product: Node) -> Replacement:
        """Return what stands for a product by a norm's result."""
        parts = _operands(product)
        centred, eps = norm.op == "layer_norm", dict(norm.attrs)["eps"]
        weight = self._weight(norm, parts["w"], centred)
        bias = self._bias(norm, parts["w"], parts["bias"])
        others = [name for name in parts if name not in ("x", "w", "bias", "statistics")]

        def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
            given = dict(zip(others, new[1:], strict=True))
            given |= {"x": new[0], "w": graph.constant(*weight)}
            given["bias"] = None if bias is None else graph.constant(*bias)
            given["statistics"] = graph.apply("row_statistics", new[0], eps=eps, centred=centred)
            return graph.apply(product.op, *(given[name] for name in parts), **dict(product.attrs))

        return Replacement((norm.inputs[0], *(parts[name] for name in others)), build)

    def _weight(self, norm: Node, w: Node | None, centred: bool) -> tuple[str, NDArray[Any]]:
        gain, rows = self._array(norm.inputs[1]), self._array(w)
        parts = [_name(norm.inputs[1]), _name(w)]
        name = "*".join(parts) + ("-mean" if centred else "")
        name = made_name(self._graph, name, parts)
        if name not in self._made:
            wide = rows.astype(np.float32) * gain.astype(np.float32)
            wide -= wide.mean(axis=1, keepdims=True, dtype=np.float64) if centred else 0
            self._made[name] = wide.astype(rows.dtype)
        return name, self._made[name]

    def _bias(
        self, norm: Node, w: Node | None, bias: Node | None
    ) -> tuple[str, NDArray[Any]] | None:
        if norm.op == "rms_norm":
            return None if bias is None else (bias.name, self._array(bias))
        shift, rows = norm.inputs[2], self._array(w)
        parts = [_name(each) for each in (w, shift, bias) if each is not None]
        name = f"{_name(w)}@{_name(shift)}" + ("" if bias is None else f"+{bias.name}")
        name = made_name(self._graph, name, parts)
        if name not in self._made:
            made = rows.astype(np.float32) @ self._array(shift).astype(np.float32)
            made += 0 if bias is None else self._array(bias).astype(np.float32)
            self._made[name] = made
        return name, self._made[name]

    def _array(self, node: Node | None) -> NDArray[Any]:
        return self._graph.constants[_name(node)]


def _name(node: Node | None) -> str:
    return "" if node is None else node.name
