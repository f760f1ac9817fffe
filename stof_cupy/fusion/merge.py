"""Products of one input as one product: the projections to queries, keys and values.

One GEMM of 3 * hidden columns reads its input once and fills a GPU that three would not. Its
results are columns of one array, so it is done where all that reads them takes any strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.fusion.attention import unscaled
from stof_cupy.fusion.naming import made_name
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.memory import PASSED_ON
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.substitute import Replacement, substitute

__all__ = [
    "STRIDED",
    "gate_products",
    "gemm_of_matmul",
    "merge_products",
    "readers_of",
    "scale_into_weights",
    "takes_strides",
]

STRIDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention": ("q", "k", "v"),
        "split_heads": ("x",),
        "columns": ("x",),
        "rotary": ("x",),
        "rms_norm": ("x",),
        "kv_cache": ("x",),
    }
)
"""By operator: ports that take rows with anything between them, at no cost.

A view is listed if what it makes of such rows is a view; then its readers are asked.
"""

_PORTS = [port.name for port in OPS["gemm"].ports]


def merge_products(graph: Graph) -> Graph:
    """Merge GEMMs by constants that have the same input, activation and no residual.

    Parameters
    ----------
    graph : Graph
        Left as it is.

    Examples
    --------
    >>> g = Graph("self")
    >>> x = g.input("x", ("batch", "seq", 4), "float")
    >>> w = [g.constant(n, np.full((4, 4), i, np.float32)) for i, n in enumerate("qkv")]
    >>> g.output("y", g.attention(*(g.split_heads(g.gemm(x, each), heads=2) for each in w)))
    >>> print(merge_products(g).show())
    self (batch, seq)
    %0 = input("x") float (batch, seq, 4) [leaf]
    %1 = gemm(%0, w:"q+k+v") float (batch, seq, 12) [CI]
    %2 = columns(%1, start=0, stop=4) float (batch, seq, 4) [view]
    ...
    """
    groups: dict[Any, list[Node]] = {}
    readers = readers_of(graph)
    for node in graph.nodes():
        if node.op == "gemm":
            x, w, bias, *others = node.inputs
            plain = w is not None and w.op == "constant" and not any(others)
            constant_bias = bias is None or bias.op == "constant"
            whole = not dict(node.attrs)["gated"]  # whose halves belong together
            if plain and constant_bias and whole and takes_strides(node, readers):
                groups.setdefault((x, node.attrs, bias is None), []).append(node)
    found: dict[Node, Replacement] = {}
    stacks = _Stacks(graph)
    for group in groups.values():
        if len(group) > 1:
            found |= _merged(stacks, group)
    return substitute(lambda node, uses: found.get(node), graph)


def readers_of(graph: Graph) -> dict[Node, list[tuple[Node, str]]]:
    """Return who reads each node, and by which port."""
    readers: dict[Node, list[tuple[Node, str]]] = {}
    for node in graph.nodes():
        ports = OPS[node.op].ports if node.op in OPS else ()
        for port, each in zip(ports, node.inputs, strict=True):
            if each is not None:
                readers.setdefault(each, []).append((node, port.name))
    for node in graph.outputs.values():
        readers.setdefault(node, []).append((node, "output"))  # which wants memory of its own
    return readers


def takes_strides(node: Node, readers: Mapping[Node, Sequence[tuple[Node, str]]]) -> bool:
    """Whether all that reads `node` takes any strides."""
    return node in readers and all(
        port in STRIDED.get(user.op, ()) and (not _passes_on(user) or takes_strides(user, readers))
        for user, port in readers[node]
    )


def _passes_on(node: Node) -> bool:
    return node.kind == "view" or node.op in PASSED_ON


def _merged(stacks: _Stacks, group: Sequence[Node]) -> dict[Node, Replacement]:
    """Return for each product of `group` the columns of the one that stands for all."""
    first = group[0]
    stacked = [stacks.of([node.inputs[place] for node in group]) for place in (1, 2)]
    stops = np.cumsum([node.shape[-1] for node in group]).tolist()

    def part(start: int, stop: int) -> Replacement:
        def build(result: Graph, new: tuple[Node | None, ...]) -> Node:
            constants = [result.constant(*each) if each else None for each in stacked]
            product = result.apply("gemm", new[0], *constants, **dict(first.attrs))
            return result.apply("columns", product, start=start, stop=stop)

        return Replacement((first.inputs[0],), build)

    spans = zip([0, *stops[:-1]], stops, strict=True)
    return {node: part(*span) for node, span in zip(group, spans, strict=True)}


class _Stacks:
    """Constants one after another; each stack is made once, as layers may share equal biases."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[str, NDArray[Any]] = {}

    def of(self, parts: Iterable[Node | None]) -> tuple[str, NDArray[Any]] | None:
        """Return name and array; None if the constants are absent."""
        names = [node.name for node in parts if node is not None]
        if not names:
            return None
        name = made_name(self._graph, "+".join(names), names)
        if name not in self._made:
            arrays = [self._graph.constants[each] for each in names]
            joined = _as_they_lie(arrays)
            self._made[name] = np.concatenate(arrays) if joined is None else joined
        return name, self._made[name]


def _as_they_lie(arrays: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Return arrays one after another as a view, where they are parts of one that lie so.

    Checkpoints have the projections to queries, keys and values in one matrix, too.
    """
    first, rows = arrays[0], 0
    for each in arrays:
        step = each.strides[0]
        alike = (each.dtype, each.strides, each.shape[1:]) == (
            first.dtype, first.strides, first.shape[1:]
        ) and _owner(each) is _owner(first)  # fmt: skip
        if not alike or each.ctypes.data != first.ctypes.data + rows * step:
            return None
        rows += each.shape[0]
    return np.lib.stride_tricks.as_strided(first, (rows, *first.shape[1:]), writeable=False)


def _owner(array: Any) -> Any:
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def gate_products(graph: Graph) -> Graph:
    """Make ``gated(gemm(x, v), gemm(x, w))`` one product of twice the columns that gates itself.

    Parameters
    ----------
    graph : Graph
        Left as it is.
    """
    stacks = _Stacks(graph)

    def match(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
        first, second = node.inputs if node.op == "gated" else (None, None)
        if first is None or second is None or first is second:
            return None
        if not all(_is_plain(each, uses) for each in (first, second)):
            return None
        both = (first, second)
        alike = {(each.inputs[0], each.inputs[2] is None, each.shape) for each in both}
        if len(alike) > 1:
            return None
        stacked = [stacks.of(each.inputs[place] for each in both) for place in (1, 2)]
        activation = dict(node.attrs)["activation"]

        def build(result: Graph, new: tuple[Node | None, ...]) -> Node:
            constants = [result.constant(*each) if each else None for each in stacked]
            return result.apply("gemm", new[0], *constants, activation=activation, gated=True)

        return Replacement((first.inputs[0],), build)

    return substitute(match, graph)


def _is_plain(node: Node, uses: Mapping[Node, int]) -> bool:
    """Whether a node is a product by constants and no more, which is read once."""
    if node.op != "gemm" or uses[node] != 1:
        return False
    _, w, bias, *others = node.inputs
    constants = all(each is None or each.op == "constant" for each in (w, bias))
    return constants and not any(others) and dict(node.attrs)["activation"] is None


def gemm_of_matmul(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``matmul(x, constant (K, N))``, which is ``gemm(x, constant.T)``."""
    x, w = node.inputs if node.op == "matmul" else (None, None)
    if x is None or w is None or w.op != "constant" or len(w.shape) != 2:
        return None

    def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
        return graph.apply("gemm", new[0], graph.apply("transpose", new[1], axes=(1, 0)))

    return Replacement((x, w), build)


def scale_into_weights(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``scale(gemm(x, w, bias))`` and ``gemm(scale(x), w)`` of constants: the constants scaled.

    Nothing else reads what is scaled; what is between a scale and the product may be views.
    """
    if node.op == "gemm":
        return _scaled_operand(node, uses)
    product = node.inputs[0] if node.op == "scale" else None
    if product is None or product.op != "gemm" or uses[product] != 1:
        return None
    parts = dict(zip(_PORTS, product.inputs, strict=True))
    constants = [parts[name] for name in ("w", "bias") if parts[name] is not None]
    if any(each is None or each.op != "constant" for each in constants):
        return None
    others = (parts["residual"], parts["statistics"], dict(product.attrs)["activation"])
    if any(each is not None for each in others):
        return None
    factor = dict(node.attrs)["factor"]

    def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
        scaled = [
            None if each is None else graph.apply("scale", each, factor=factor) for each in new[1:]
        ]
        return graph.apply("gemm", new[0], *scaled)

    return Replacement((parts["x"], parts["w"], parts["bias"]), build)


def _scaled_operand(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    x, w = node.inputs[:2]
    part = unscaled(x, uses)
    if part is None or x is None or uses[x] != 1 or w is None or w.op != "constant":
        return None

    def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
        weight = graph.apply("scale", new[1], factor=part.factor)
        return graph.apply("gemm", part.build(graph, new[0]), weight, *new[2:], **dict(node.attrs))

    return Replacement((part.base, *node.inputs[1:]), build)
