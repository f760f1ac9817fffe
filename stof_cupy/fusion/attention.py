"""Finds attention that is spelled out: scores, scale, mask, softmax and values, in that order.

Whoever writes a graph by hand writes attention as ``softmax(mask(scale * q @ k.T)) @ v``. As one
operator it never stores the scores and skips what the mask skips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stof_cupy.graph import Graph, Node
from stof_cupy.graph.substitute import Replacement, operator

__all__ = ["Scores", "attention_of", "read_scores", "scale_into_attention"]

_SWAPPED = (0, 1, 3, 2)


@dataclass(frozen=True)
class Scores:
    """What was found below a softmax.

    Attributes
    ----------
    product : Node
        The matmul of queries and keys.
    factor : float
    mask, lengths : Node or None
    nodes : tuple of Node
        All that the attention takes the place of, softmax included, in order.
    """

    product: Node
    factor: float
    mask: Node | None
    lengths: Node | None
    nodes: tuple[Node, ...]


def read_scores(weights: Node, uses: Mapping[Node, int]) -> Scores | None:
    """Return what a softmax is of, or None where it is not the one of attention."""
    if weights.op != "softmax" or uses[weights] != 1:
        return None
    factor, mask, lengths, nodes = 1.0, None, None, [weights]
    node = weights.inputs[0]
    while node is not None and uses[node] == 1:
        nodes.append(node)
        if node.op == "matmul":
            return Scores(node, factor, mask, lengths, tuple(reversed(nodes)))
        if node.op == "scale":
            factor *= dict(node.attrs)["factor"]
        elif node.op == "masked":
            _, here, counts = node.inputs
            twice = None not in (mask, here) or None not in (lengths, counts)
            # -inf times a factor of at most 0 is not -inf.
            if twice or factor <= 0:
                return None
            mask, lengths = mask or here, lengths or counts
        else:
            return None
        node = node.inputs[0]
    return None


def attention_of(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``matmul(softmax(masked(scale(matmul(q, k.T)))), v)``, of four axes; nothing else reads it.

    Scales and masks may stand in any order and be absent, as long as they mean the same.
    """
    if node.op != "matmul" or node.inputs[0] is None or len(node.shape) != 4:
        return None
    scores = read_scores(node.inputs[0], uses)
    if scores is None or not all(isinstance(dim, int) for dim in (node.shape[1], node.shape[3])):
        return None
    q, turned = scores.product.inputs
    # The head dim has to be a number, as the number of heads.
    if q is None or turned is None or not isinstance(q.shape[3], int):
        return None

    def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
        query, keys, *others = new
        return graph.apply(
            "attention",
            query,
            graph.apply("transpose", keys, axes=_SWAPPED),
            *others,
            scale=scores.factor,
        )

    return Replacement((q, turned, node.inputs[1], scores.mask, scores.lengths), build)


def scale_into_attention(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``attention(scale(q), k, v)`` and ``attention(q, scale(k), v)``."""
    if node.op != "attention":
        return None
    attrs, inputs = dict(node.attrs), list(node.inputs)
    q = node.inputs[0]
    if q is None:
        return None
    factor = 1.0
    for place in (0, 1):
        each = inputs[place]
        if each is not None and each.op == "scale":
            factor *= dict(each.attrs)["factor"]
            inputs[place] = each.inputs[0]
    if inputs == list(node.inputs):
        return None
    scale = attrs["scale"] if attrs["scale"] is not None else float(q.shape[3]) ** -0.5
    return operator("attention", inputs, {**attrs, "scale": scale * factor})
