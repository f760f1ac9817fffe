"""The calls of a walk through a graph: what each reads and writes, and what dies with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from stof_cupy.graph.calls import CALLS
from stof_cupy.graph.node import Node
from stof_cupy.graph.registry import OPS
from stof_cupy.ops.relative_bias import FixedBias

__all__ = ["Fused", "Step", "fixed_biases", "steps_of"]

Array: TypeAlias = Any

_FARTHEST = 1 << 13
"""Up to this `max_distance` a table is held beside its constant: 68 KB a head."""


@dataclass(frozen=True, eq=False)
class Fused:
    """Operators that are run by one call.

    Attributes
    ----------
    nodes : tuple of Node
        In order; nothing else reads the results of any but the last.
    inputs : tuple of Node or None
        What they read from outside; of one operator, its operands.
    call : callable
        Takes the arrays of `inputs`, and where to write the last result as ``out=``, or None;
        returns it.
    setting : tuple of (str, int)
        What a search has chosen for them; empty: nothing.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node | None, ...]
    call: Callable[..., Array]
    setting: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Step:
    """One call of the walk; numbers are places in the list of values, of which 0 holds None."""

    node: Node
    call: Callable[..., Array]
    attrs: dict[str, Any]
    operands: tuple[Node | None, ...]
    reads: tuple[int, ...]
    writes: int
    dead: tuple[int, ...]


def steps_of(
    nodes: list[Node], place: Mapping[Node | None, int], kept: set[Node], fused: Iterable[Fused]
) -> list[Step]:
    """Return the calls that compute `nodes`, in order.

    Parameters
    ----------
    nodes : list of Node
        Inputs before users.
    place : mapping of Node to int
        Where each value is kept.
    kept : set of Node
        Values that are needed at the end.
    fused : iterable of Fused
    """
    by_last = {each.nodes[-1]: each for each in fused}
    inside = {node for each in by_last.values() for node in each.nodes[:-1]}
    calls: list[tuple[Node, Callable[..., Array], dict[str, Any], tuple[Node | None, ...]]] = []
    for node in nodes:
        if node in by_last:
            calls.append((node, by_last[node].call, {}, by_last[node].inputs))
        elif node.op in OPS and node not in inside:
            calls.append((node, CALLS[node.op], dict(node.attrs), node.inputs))
    last = {each: node for node, _, _, operands in calls for each in operands if each is not None}
    steps = []
    for node, call, attrs, operands in calls:
        ended = {each for each in operands if each is not None and last[each] is node}
        dead = tuple(sorted(place[each] for each in ended - kept))
        reads = tuple(place[each] for each in operands)
        steps.append(Step(node, call, attrs, operands, reads, place[node], dead))
    return steps


def fixed_biases(
    steps: Iterable[Step],
    constants: Mapping[int, Array],
    kept: Collection[Node],
    uploads: MutableMapping[Any, Any],
) -> dict[int, FixedBias]:
    """Return the constants, of CuPy, that are relative biases and nothing else, made for kernels.

    Parameters
    ----------
    steps : iterable of Step
    constants : mapping of int to array
        By place.
    kept : collection of Node
        What is needed as it is.
    uploads : mutable mapping
        Where others that read the same constants find what is made.
    """
    readers: dict[int, set[tuple[Any, ...]]] = {}
    for step in steps:
        for port, node, place in zip(_ports(step), step.operands, step.reads, strict=True):
            how = step.attrs.get("bidirectional"), step.attrs.get("max_distance")
            name = "" if node is None or node in kept else node.name
            readers.setdefault(place, set()).add((port, name, *how))
    found = {}
    for place in constants.keys() & readers.keys():
        key, *others = readers[place]  # no key of a constant, which is a string
        port, name, both, far = key
        if port != "relative_bias" or not name or others or far > _FARTHEST:
            continue
        made = uploads.get(key)
        if made is None or made.table is not constants[place]:
            made = FixedBias(constants[place], bidirectional=both, max_distance=far)
            uploads[key] = made
        found[place] = made
    return found


def _ports(step: Step) -> tuple[str, ...]:
    """Return the names of what a step reads; of several operators in one they have none."""
    if step.call is CALLS.get(step.node.op):
        return tuple(port.name for port in OPS[step.node.op].ports)
    return ("",) * len(step.reads)
