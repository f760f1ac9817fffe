"""Queries and keys that are turned by their positions: turned at once.

After projections are merged, heads of queries and of keys are neighbours in one array. One rotary
embedding of all of them is a launch less in every layer, and reads positions once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stof_cupy.fusion.merge import readers_of, takes_strides
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.substitute import Replacement, substitute

__all__ = ["merge_turns"]


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
