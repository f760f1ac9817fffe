"""What runs as one where there are few rows, a token of a decoder say, and kernels are short.

There a product reads its weights and waits for nothing else, so that each of its CTAs may as well
normalise the rows by itself: the norm's own launch would cost more. That its weights are the
graph's constants, which no kernel writes, it is told: it may read them early. And keys and values
are written to their caches in one launch; or, of one token, all that is between its projections and
the result of attention is one (`token`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from stof_cupy.fusion.token import constant_weights, token_piece
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.calls import CALLS
from stof_cupy.graph.steps import Fused
from stof_cupy.graph.turned import turned_gemm
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.kv_cache import write_caches
from stof_cupy.ops.normed_gemm import normed_gemm

__all__ = ["few_row_pieces"]

Array: TypeAlias = Any


def few_row_pieces(graph: Graph, beside: Iterable[Fused] = ()) -> tuple[Fused, ...]:
    """Return each RMSNorm with the product that alone reads it, and each attention with its caches.

    Attention has what turns and normalises its queries and keys too, where one kernel does all of
    it for a token; and every other product of constant weights is a piece that says so. They are
    right for any number of rows.

    Parameters
    ----------
    graph : Graph
    beside : iterable of Fused
        Pieces of the graph that stay: none of these shares an operator with them.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("half a layer")
    >>> x = g.input("x", ("batch", "seq", 8), "float")
    >>> y = g.rms_norm(x, g.constant("norm", np.ones(8, np.float32)), eps=1e-6)
    >>> g.output("y", g.gemm(y, g.constant("w", np.ones((4, 8), np.float32))))
    >>> [[node.op for node in piece.nodes] for piece in few_row_pieces(g)]
    [['rms_norm', 'gemm']]
    """
    nodes = graph.nodes()
    readers = Counter(each for node in nodes for each in node.inputs if each is not None)
    readers.update(graph.outputs.values())
    products = {node: piece for node in nodes if (piece := _normed_product(node, readers))}
    caches = {node: piece for node in nodes if (piece := _cached(node, readers))}
    tokens = (token_piece(graph, *each, readers, products) for each in caches.items())
    taken = {node for piece in beside for node in piece.nodes}
    made: list[Fused] = []
    constant = (piece for node in nodes if (piece := _constant_product(node)))
    for piece in (*tokens, *products.values(), *caches.values(), *constant):
        if piece is not None and taken.isdisjoint(piece.nodes):
            made.append(piece)
            taken.update(piece.nodes)
    return tuple(made)


def _constant_product(node: Node) -> Fused | None:
    if node.op not in ("gemm", "turned_gemm"):
        return None
    _, weight, third, fourth, *_ = node.inputs
    bias = third if node.op == "gemm" else fourth
    if not constant_weights(weight, bias):
        return None
    how: dict[str, Any] = dict(node.attrs)
    if node.op == "gemm":
        how["constant"] = True
    else:
        how["multiply"] = partial(gemm, constant=True)
    return Fused((node,), node.inputs, partial(CALLS[node.op], **how))


def _normed_product(node: Node, readers: Mapping[Node, int]) -> Fused | None:
    norm = node.inputs[0] if node.op in ("gemm", "turned_gemm") else None
    if norm is None or norm.op != "rms_norm" or readers[norm] != 1:
        return None
    attrs, eps = dict(node.attrs), dict(norm.attrs)["eps"]
    if node.op == "turned_gemm":
        return _normed_turn(norm, node)
    _, weight, bias, *others = node.inputs
    # A result may be written over a residual, which the CTAs that are not done yet may read.
    if attrs.keys() != {"activation", "gated"} or any(others):
        return None

    how: dict[str, Any] = {"eps": eps, "constant": constant_weights(norm.inputs[1], weight, bias)}

    def run(x: Array, norm: Array, w: Array, bias: Array | None, out: Array | None) -> Array:
        epilogue = Epilogue(bias, attrs["activation"], gated=attrs["gated"])
        return normed_gemm(x, norm, w.T, epilogue=epilogue, out=out, **how)

    return _fused((norm, node), (*norm.inputs, weight, bias), run)


def _normed_turn(norm: Node, node: Node) -> Fused:
    attrs, eps = dict(node.attrs), dict(norm.attrs)["eps"]
    _, weight, positions, bias, _ = node.inputs
    same = constant_weights(norm.inputs[1], weight, bias)

    def run(
        x: Array, norm: Array, w: Array, positions: Array, bias: Array | None, out: Array | None
    ) -> Array:
        def multiply(x: Array, w: Array, **how: Any) -> Array:
            return normed_gemm(x, norm, w, eps=eps, constant=same, **how)

        return turned_gemm(x, w, positions, bias, multiply=multiply, out=out, **attrs)

    return _fused((norm, node), (*norm.inputs, weight, positions, bias), run)


def _cached(node: Node, readers: Mapping[Node, int]) -> Fused | None:
    if node.op != "attention":
        return None
    q, k, v, *others = node.inputs
    if k is None or v is None or {k.op, v.op} != {"kv_cache"} or k is v:
        return None
    same = k.attrs == v.attrs and k.inputs[1] is v.inputs[1]
    if not same or readers[k] != 1 or readers[v] != 1:
        return None
    attrs, ring = dict(node.attrs), dict(k.attrs)["ring"]

    def run(
        q: Array, k: Array, cache_k: Array, v: Array, cache_v: Array, positions: Array,
        *others: Array, out: Array | None,
    ) -> Array:  # fmt: skip
        if cache_k is not None and cache_v is not None:
            write_caches(k, v, cache_k, cache_v, positions, ring=ring)
            k, v = cache_k, cache_v
        given = attrs if out is None else {**attrs, "out": out}
        return CALLS["attention"](q, k, v, *others, **given)

    outside = (q, k.inputs[0], k.inputs[2], v.inputs[0], v.inputs[2], k.inputs[1], *others)
    return _fused((k, v, node), outside, run)


def _fused(
    nodes: tuple[Node, ...], inputs: Sequence[Node | None], run: Callable[..., Array]
) -> Fused:
    """Return a piece whose call gets None for what is no input."""
    places = [i for i, each in enumerate(inputs) if each is not None]

    def call(*arrays: Array, out: Array | None = None) -> Array:
        operands: list[Array] = [None] * len(inputs)
        for place, array in zip(places, arrays, strict=True):
            operands[place] = array
        return run(*operands, out=out)

    return Fused(nodes, tuple(each for each in inputs if each is not None), call)
