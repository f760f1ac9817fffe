"""Rewrites that are always right and never slower, so that nothing has to be searched.

A GEMM holds its result in registers before it stores it, so a bias, an activation or a residual
that follows costs it next to nothing and saves a pass over memory. A rewrite says what stands for a
node; :func:`substitute` makes the graph that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from stof_cupy import env
from stof_cupy.graph import Graph, Node, verify
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.substitute import Match, Replacement, operator, substitute

__all__ = ["BIAS", "REWRITES", "Rewrite", "fuse_epilogues"]


def _gemm(node: Node | None, uses: Mapping[Node, int], *free: str) -> dict[str, Any] | None:
    """Return operands and attributes of a GEMM read once and having none of `free`, else None."""
    if node is None or node.op != "gemm" or uses[node] != 1:
        return None
    ports = [port.name for port in OPS["gemm"].ports]
    parts = {**dict(zip(ports, node.inputs, strict=True)), **dict(node.attrs)}
    return None if any(parts[name] is not None for name in free) else parts


def _refit(parts: Mapping[str, Any]) -> Replacement:
    ports = [port.name for port in OPS["gemm"].ports]
    attrs = {name: value for name, value in parts.items() if name not in ports}
    return operator("gemm", (parts[name] for name in ports), attrs)


def _bias(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``add(gemm(x, w), bias constant (N,))``."""
    if node.op != "add":
        return None
    product, bias = node.inputs
    parts = _gemm(product, uses, "bias", "activation", "residual")
    if parts is None or bias is None or bias.op != "constant" or len(bias.shape) != 1:
        return None
    return _refit({**parts, "bias": bias})


def _activation(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``gelu(gemm(x, w, bias))``, and what else is in `_NAMES`."""
    if node.op not in _NAMES:
        return None
    parts = _gemm(node.inputs[0], uses, "activation", "residual")
    return None if parts is None else _refit({**parts, "activation": _NAMES[node.op](node)})


_NAMES: Mapping[str, Callable[[Node], str]] = MappingProxyType(
    {
        "gelu": lambda node: "gelu_tanh" if ("approximate", "tanh") in node.attrs else "gelu",
        "relu": lambda node: "relu",
        "silu": lambda node: "silu",
    }
)
"""Operators that a GEMM can apply to its result, and what it calls them."""


def _residual(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``add(gemm(x, w, bias), y)`` and ``add(y, gemm(x, w, bias))``, y of the same shape."""
    if node.op != "add":
        return None
    for product, other in (node.inputs, node.inputs[::-1]):
        if product is None or other is None or product.shape != other.shape:
            continue
        parts = _gemm(product, uses, "residual")
        if parts is not None:
            return _refit({**parts, "residual": other})
    return None


@dataclass(frozen=True)
class Rewrite:
    """One exact rewrite: a name for people, and what it finds."""

    name: str
    match: Match


BIAS = Rewrite("gemm + bias", _bias)

REWRITES = (
    BIAS,
    Rewrite("gemm + activation", _activation),
    Rewrite("gemm + residual", _residual),
)
"""In the order in which a GEMM applies what it absorbs."""


def fuse_epilogues(graph: Graph) -> Graph:
    """Fold what follows a GEMM into it: a bias, then an activation, then a residual.

    Each is folded when nothing else reads the GEMM's result. The outputs differ only in that values
    which are no longer stored are no longer rounded.

    Parameters
    ----------
    graph : Graph
        Left as it is.

    Returns
    -------
    Graph
        Verified; after each rewrite too when ``STOF_VERIFY=1``.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("block")
    >>> x = g.input("x", ("batch", "seq", 2), "float")
    >>> w, b = g.constant("w", np.ones((3, 2))), g.constant("b", np.ones(3))
    >>> g.output("y", g.gelu(g.add(g.gemm(x, w), b)))
    >>> print(fuse_epilogues(g).show())
    block (batch, seq)
    %0 = input("x") float (batch, seq, 2) [leaf]
    %1 = gemm(%0, w:"w", bias:"b", activation='gelu') float (batch, seq, 3) [CI]
    y = %1
    """
    each_time = env.VERIFY.get() == "1"
    for rewrite in REWRITES:
        graph = substitute(rewrite.match, graph)
        if each_time:
            verify(graph)
    verify(graph)
    return graph
