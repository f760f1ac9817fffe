"""From a scheme to what runs: epilogues folded within each segment, the rest given to a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.fusion import products
from stof_cupy.fusion.attention import attention_of
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.kernels import Kernel, Setting, kernel_of
from stof_cupy.fusion.rewrites import REWRITES
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.steps import Fused
from stof_cupy.graph.substitute import Match, Replacement, replaced

__all__ = ["Lowered", "extract", "fused_by", "lower", "lower_one"]

_FOLDS: tuple[Match, ...] = (attention_of, *(each.match for each in REWRITES))


@dataclass(frozen=True)
class Lowered:
    """A graph to run.

    Attributes
    ----------
    graph : Graph
    fused : tuple of Fused
        Its operators that run as one.
    """

    graph: Graph
    fused: tuple[Fused, ...]

    def left_to_the_model(self) -> list[Node]:
        """Return products whose kernel is chosen anew for each size."""
        chosen = {each.nodes[0] for each in self.fused if len(each.nodes) == 1}
        return [
            node
            for node in self.graph.nodes()
            if products.is_product([node]) and node not in chosen
        ]


class _Within(Mapping[Node, int]):
    """Uses of nodes as a rewrite may see them: nodes of other segments seem to have none.

    A rewrite absorbs what is used once, so that it stays inside a segment.
    """

    def __init__(self, uses: Mapping[Node, int], segment: Mapping[Node, int], number: int) -> None:
        self._uses, self._segment, self._number = uses, segment, number

    def __getitem__(self, node: Node) -> int:
        return self._uses[node] if self._segment.get(node) == self._number else 0

    def __iter__(self) -> Iterator[Node]:
        return iter(self._uses)

    def __len__(self) -> int:
        return len(self._uses)


def _folded(graph: Graph, segment: Mapping[Node, int]) -> tuple[Graph, dict[Node, int]]:
    """Fold within segments; return the new graph, and the segments of its operators."""
    for fold in _FOLDS:
        current = dict(segment)

        def match(
            node: Node, uses: Mapping[Node, int], fold: Match = fold, now: dict[Node, int] = current
        ) -> Replacement | None:
            return fold(node, _Within(uses, now, now[node])) if node in now else None

        graph, new = replaced(match, graph)
        segment = {new[node]: number for node, number in current.items() if node in new}
    return graph, dict(segment)


def lower(
    chain: Chain,
    spans: Sequence[tuple[int, int]],
    settings: Sequence[Setting],
    backend: str,
) -> Lowered:
    """Return what runs a scheme.

    Parameters
    ----------
    chain : Chain
    spans : sequence of (int, int)
        The segments, which cover the chain.
    settings : sequence of Setting
        One for each.
    backend : {"numpy", "cuda"}

    Raises
    ------
    UnsupportedError
        If there is no kernel for a segment.
    """
    segment = {node: number for number, (a, b) in enumerate(spans) for node in chain.ops[a:b]}
    graph, segment = _folded(chain.graph, segment)
    members: dict[int, list[Node]] = {}
    for node in graph.nodes():
        if node in segment and node.kind in ("CI", "MI"):
            members.setdefault(segment[node], []).append(node)
    fused: list[Fused] = []
    for number, nodes in sorted(members.items()):
        fused += fused_by(_kernel(nodes, backend), nodes, settings[number])
    return Lowered(graph, tuple(fused))


def fused_by(kernel: Kernel, nodes: Sequence[Node], setting: Setting) -> tuple[Fused, ...]:
    """Return what runs operators by a kernel; nothing where each is run by its own call."""
    if kernel.build is None or (len(nodes) == 1 and not setting):
        return ()
    inputs = nodes[0].inputs if len(nodes) == 1 else _outside(nodes)
    return (Fused(tuple(nodes), inputs, kernel.build(nodes, inputs, setting), setting),)


def _kernel(nodes: Sequence[Node], backend: str) -> Kernel:
    kernel = kernel_of(nodes, backend)
    if kernel is None:
        got = " + ".join(node.op for node in nodes)
        raise UnsupportedError(mismatch("segment", got, f"operators that {backend} runs as one"))
    return kernel


def _outside(nodes: Sequence[Node]) -> tuple[Node, ...]:
    inside = set(nodes)
    reads = [each for node in nodes for each in node.inputs if each is not None]
    return tuple(each for each in dict.fromkeys(reads) if each not in inside)


def extract(chain: Chain, start: int, stop: int) -> Graph:
    """Return a run of operators as a graph of its own, with the views that it reads through.

    Inputs of the whole graph keep their names; results of other operators are inputs
    ``value0, value1, ...``, where no input of the whole has such a name.
    """
    source, ops = chain.graph, chain.ops[start:stop]
    graph = Graph(f"{source.name}[{start}:{stop}]", source.dims)
    inside = set(ops)
    made: dict[Node, Node] = {}
    free = (name for n in count() if (name := f"value{n}") not in source.inputs)

    def new(node: Node) -> Node:
        if node in made:
            return made[node]
        if node.op == "constant":
            made[node] = graph.constant(node.name, source.constants[node.name])
        elif node.op == "input":
            made[node] = graph.input(node.name, node.shape, node.dtype)
        elif node in inside or node.kind == "view":
            operands = [None if each is None else new(each) for each in node.inputs]
            made[node] = graph.apply(node.op, *operands, **dict(node.attrs))
        else:
            made[node] = graph.input(next(free), node.shape, node.dtype)
        return made[node]

    graph.output("result", [new(node) for node in ops][-1])
    return graph


def lower_one(chain: Chain, start: int, stop: int) -> tuple[Graph, list[Node]]:
    """Return one segment as a graph with its epilogues folded, and the operators that are left."""
    graph = extract(chain, start, stop)
    segment = {node: 0 for node in graph.nodes() if node.op in OPS}
    graph, segment = _folded(graph, segment)
    return graph, [node for node in graph.nodes() if node.kind in ("CI", "MI")]
