"""Queries and keys that are turned by their positions: turned at once, by the product itself.

After projections are merged, heads of queries and of keys are neighbours in one array. One rotary
embedding of all of them is a launch less in every layer, and reads positions once. And a product
can turn what it holds in registers, which is a launch less again, and a pass over memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stof_cupy.fusion.merge import readers_of, takes_strides
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.passes import simplify
from stof_cupy.graph.substitute import Replacement, operator, same_as, substitute
from stof_cupy.graph.turned import turn_of

__all__ = ["merge_turns", "turn_in_products"]


class _Turn(NamedTuple):
    """A rotary embedding of heads that are columns of an array."""

    node: Node
    source: Node
    start: int
    stop: int


def merge_turns(graph: Graph) -> Graph:
    """Merge rotary embeddings of neighbouring heads of one array, by the same positions.

    Parameters
    ----------
    graph : Graph
        Left as it is.

    Examples
    --------
    >>> g = Graph("turns")
    >>> x = g.input("x", ("batch", "seq", 12), "float")
    >>> at = g.input("at", ("batch", "seq"), "int")
    >>> parts = [g.columns(x, start=a, stop=b) for a, b in ((0, 8), (8, 12))]
    >>> heads = [g.split_heads(x, heads=n) for x, n in zip(parts, (2, 1))]
    >>> q, k = (g.rotary(x, at, frequency=[1.0, 0.1]) for x in heads)
    >>> g.output("y", g.attention(q, k, k))
    >>> sum(node.op == "rotary" for node in merge_turns(g).nodes())
    1
    """
    readers = readers_of(graph)
    groups: dict[Any, list[_Turn]] = {}
    for node in graph.nodes():
        turn = _turn(node)
        if turn is not None and takes_strides(node, readers):
            key = (turn.source, node.inputs[1], node.attrs, node.shape[3])
            groups.setdefault(key, []).append(turn)
    found: dict[Node, Replacement] = {}
    for group in groups.values():
        group.sort(key=lambda turn: turn.start)
        stops = [turn.stop for turn in group]
        if len(group) > 1 and [turn.start for turn in group[1:]] == stops[:-1]:
            found |= _merged(group)
    return substitute(lambda node, uses: found.get(node), graph)


def _turn(node: Node) -> _Turn | None:
    heads = node.inputs[0] if node.op == "rotary" else None
    part = heads.inputs[0] if heads is not None and heads.op == "split_heads" else None
    if part is None or part.op != "columns" or part.inputs[0] is None:
        return None
    bounds: Mapping[str, int] = dict(part.attrs)
    return _Turn(node, part.inputs[0], bounds["start"], bounds["stop"])


def _merged(group: Sequence[_Turn]) -> dict[Node, Replacement]:
    """Return for each turn its heads of the one that stands for all."""
    first, start, stop = group[0], group[0].start, group[-1].stop
    size = first.node.shape[3]
    source, positions = first.source, first.node.inputs[1]

    def part(turn: _Turn) -> Replacement:
        def build(graph: Graph, new: tuple[Node | None, ...]) -> Node:
            both = graph.apply("columns", new[0], start=start, stop=stop)
            both = graph.apply("split_heads", both, heads=(stop - start) // int(size))
            turned = graph.apply("rotary", both, new[1], **dict(first.node.attrs))
            rows = graph.apply("merge_heads", turned)
            own = graph.apply("columns", rows, start=turn.start - start, stop=turn.stop - start)
            return graph.apply("split_heads", own, heads=turn.node.shape[1])

        return Replacement((source, positions), build)

    return {turn.node: part(turn) for turn in group}


def turn_in_products(graph: Graph) -> Graph:
    """Let products turn their leading heads, where no one reads these as they were.

    And where there is a kernel for the form of the turn. Whether it runs is up to the operator,
    which knows the rows: see :func:`stof_cupy.graph.turned.in_one`.

    Parameters
    ----------
    graph : Graph
        Left as it is.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("self")
    >>> x, at = g.input("x", ("batch", "seq", 4), "float"), g.input("at", ("batch", "seq"), "int")
    >>> y = g.gemm(x, g.constant("q+k", np.ones((64, 4))))
    >>> q, k = (g.split_heads(g.columns(y, start=i, stop=i + 32), heads=1) for i in (0, 32))
    >>> g.output("y", g.attention(g.rotary(q, at, frequency=np.ones(16)), k, k))
    >>> print(turn_in_products(g).show().splitlines()[3].split(", frequency")[0])
    %2 = turned_gemm(%0, w:"q+k", %1
    """
    readers = readers_of(graph)
    found: dict[Node, Replacement] = {}
    for node in graph.nodes():
        heads = node.inputs[0] if node.op == "rotary" else None
        product = None if heads is None else _product_of(heads, readers)
        if heads is None or product is None or not _stays_a_view(node, readers):
            continue
        attrs = {**dict(node.attrs), "heads": node.shape[1], "head_dim": node.shape[3]}
        if turn_of(None, None, **attrs).kind is not None:
            x, w, bias, _, statistics = product.inputs
            inputs = (x, w, node.inputs[1], bias, statistics)
            found[product] = operator("turned_gemm", inputs, attrs)
            found[node] = same_as(heads)
    # Of turns that were merged, heads are merged and split where they now are from the start.
    return simplify(substitute(lambda node, uses: found.get(node), graph)) if found else graph


def _stays_a_view(node: Node, readers: Mapping[Node, Sequence[tuple[Node, str]]]) -> bool:
    """Whether all that reads a turn takes columns of an array in its place, at no cost."""
    merged = [user for user, _ in readers[node] if user.op == "merge_heads"]
    others = [each for each in readers[node] if each[0] not in merged]
    # Heads that are columns are merged to columns.
    return all(takes_strides(each, readers) for each in merged) and takes_strides(
        node, {**readers, node: others}
    )


def _product_of(heads: Node, readers: Mapping[Node, Sequence[tuple[Node, str]]]) -> Node | None:
    """Return the plain product whose leading columns `heads` are, which are read once."""
    rows = heads.inputs[0] if heads.op == "split_heads" else None
    if rows is None:
        return None
    product, stop = rows, rows.shape[-1]
    if rows.op == "columns" and rows.inputs[0] is not None:
        product, (start, stop) = rows.inputs[0], dict(rows.attrs).values()
        if start or len(readers[rows]) > 1:
            return None
    if product.op != "gemm" or product.inputs[3] is not None or len(readers[heads]) > 1:
        return None
    own = heads if product is rows else rows
    beside = [user for user, _ in readers[product] if user is not own]
    apart = all(each.op == "columns" and dict(each.attrs)["start"] >= stop for each in beside)
    attrs = dict(product.attrs)
    return product if apart and attrs["activation"] is None and not attrs["gated"] else None
