"""Finds attention that is spelled out: scores, scale, mask, softmax and values, in any legal order.

Whoever writes a graph by hand writes attention as ``softmax(mask(scale * q @ k.T)) @ v``. As one
operator it never stores the scores and skips what the mask skips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stof_cupy.graph import Graph, Node
from stof_cupy.graph.substitute import Replacement
from stof_cupy.jit.attention_kernels import SHAPES

__all__ = ["Scores", "Unscaled", "attention_of", "read_scores", "scale_into_attention", "unscaled"]

_MOST_HEAD_DIM = max(SHAPES)
"""Wider heads stay spelled out: there is no kernel for them."""


@dataclass(frozen=True)
class Scores:
    """What was found below a softmax.

    Attributes
    ----------
    product : Node
        The matmul of queries and keys.
    turned : bool
        Whether it is the one of keys and queries, and transposed after that.
    factor : float
    mask, lengths : Node or None
    """

    product: Node
    turned: bool
    factor: float
    mask: Node | None
    lengths: Node | None


def read_scores(weights: Node, uses: Mapping[Node, int]) -> Scores | None:
    """Return what a softmax is of, or None where it is not the one of attention."""
    if weights.op != "softmax" or uses[weights] != 1:
        return None
    factor, turned, mask, lengths = 1.0, False, None, None
    node = weights.inputs[0]
    while node is not None and uses[node] == 1:
        if not math.isfinite(factor):
            return None
        if node.op == "matmul":
            return Scores(node, turned, factor, mask, lengths)
        if node.op == "scale":
            factor *= dict(node.attrs)["factor"]
        elif node.op == "masked":
            _, here, counts = node.inputs
            # -inf times a factor of at most 0 is not -inf; a mask is of queries and keys.
            if _differ(mask, here) or _differ(lengths, counts) or factor <= 0 or turned:
                return None
            mask, lengths = mask or here, lengths or counts
        elif _swaps(node):
            turned = not turned
        else:
            return None
        node = node.inputs[0]
    return None


def _differ(one: Node | None, other: Node | None) -> bool:
    return None not in (one, other) and one is not other


def _swaps(node: Node) -> bool:
    """Whether a node swaps the last two axes and nothing else."""
    return node.op == "transpose" and dict(node.attrs)["axes"] == _swapped(len(node.shape))


def _swapped(axes: int) -> tuple[int, ...]:
    return (*range(axes - 2), axes - 1, axes - 2)


def _read_weights(node: Node | None, uses: Mapping[Node, int]) -> tuple[Scores, float, bool] | None:
    """Return the scores below weights, what scales the weights, and whether they are transposed."""
    factor, turned = 1.0, False
    while node is not None and uses[node] == 1:
        if node.op == "scale":
            factor *= dict(node.attrs)["factor"]
        elif _swaps(node):
            turned = not turned
        else:
            scores = read_scores(node, uses)
            if scores is None or not math.isfinite(factor):
                return None
            return scores, factor, turned
        node = node.inputs[0]
    return None


def attention_of(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``matmul(softmax(masked(scale(matmul(q, k.T)))), v)``; nothing else reads what is between.

    Scales and masks may stand in any order and be absent, as long as they mean the same. Scores,
    weights and result may be computed transposed. Three axes are one head.
    """
    if node.op != "matmul" or len(node.shape) not in (3, 4):
        return None
    for place in (0, 1):
        found = _read_weights(node.inputs[place], uses)
        # weights @ v, or v.T @ weights.T
        if found is not None and found[2] == bool(place):
            return _replacement(*found, values=node.inputs[1 - place])
    return None


def _replacement(
    scores: Scores, factor: float, turned: bool, values: Node | None
) -> Replacement | None:
    first, second = scores.product.inputs
    q, k = (second, first) if scores.turned else (first, second)
    if q is None or k is None or values is None:
        return None
    axes = len(q.shape)
    if not len(k.shape) == len(values.shape) == axes:
        return None  # a product by one matrix for all
    dims = (q.shape[-2 if scores.turned else -1], values.shape[-2 if turned else -1])
    if not all(isinstance(dim, int) and dim <= _MOST_HEAD_DIM for dim in dims):
        return None
    if axes == 4 and not isinstance(q.shape[1], int):
        return None

    def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
        def heads(x: Node | None, swap: bool) -> Node | None:
            x = graph.apply("transpose", x, axes=_swapped(axes)) if swap else x
            return graph.apply("split_heads", x, heads=1) if axes == 3 else x

        # Queries that are second in the product were transposed there, keys that are first not.
        query, key = heads(new[0], scores.turned), heads(new[1], not scores.turned)
        value, others = heads(new[2], turned), new[3:]
        made = graph.apply("attention", query, key, value, *others, scale=scores.factor)
        made = graph.apply("merge_heads", made) if axes == 3 else made
        made = made if factor == 1 else graph.apply("scale", made, factor=factor)
        return graph.apply("transpose", made, axes=_swapped(axes)) if turned else made

    return Replacement((q, k, values, scores.mask, scores.lengths), build)


@dataclass(frozen=True)
class Unscaled:
    """A value as a factor times views of another.

    Attributes
    ----------
    factor : float
    base : Node
    views : tuple of Node
        Of which the first is applied first.
    """

    factor: float
    base: Node
    views: tuple[Node, ...]

    def build(self, graph: Graph, base: Node | None) -> Node | None:
        """Apply the views in a new graph."""
        for view in self.views:
            base = graph.apply(view.op, base, **dict(view.attrs))
        return base


def unscaled(node: Node | None, uses: Mapping[Node, int]) -> Unscaled | None:
    """Return what a value is without the scales that it is views of; None if there are none.

    Below the value itself nothing is taken apart that something else reads too.
    """
    factor, views, found = 1.0, list[Node](), None
    top = node
    while node is not None and (node is top or uses[node] == 1):
        if node.op == "scale" and node.inputs[0] is not None:
            factor *= dict(node.attrs)["factor"]
            if not math.isfinite(factor):
                break
            found = Unscaled(factor, node.inputs[0], tuple(reversed(views)))
        elif node.kind == "view":
            views.append(node)
        else:
            break
        node = node.inputs[0]
    return found


def scale_into_attention(node: Node, uses: Mapping[Node, int]) -> Replacement | None:
    """``attention(scale(q), k, v)`` and ``attention(q, scale(k), v)``, or views of such."""
    if node.op != "attention":
        return None
    parts = [unscaled(each, uses) for each in node.inputs[:2]]
    if parts == [None, None]:
        return None
    attrs, q = dict(node.attrs), node.inputs[0]
    scale = attrs["scale"]
    if scale is None and q is not None:
        scale = float(q.shape[3]) ** -0.5
    for part in filter(None, parts):
        scale *= part.factor
    if not math.isfinite(scale):
        return None
    inputs = [
        each if part is None else part.base
        for each, part in zip(node.inputs, [*parts, *[None] * 5], strict=True)
    ]

    def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
        operands = [
            x if part is None else part.build(graph, x)
            for x, part in zip(new[:2], parts, strict=True)
        ]
        return graph.apply("attention", *operands, *new[2:], **{**attrs, "scale": scale})

    return Replacement(tuple(inputs), build)
