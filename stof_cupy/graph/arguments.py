"""The arguments of one operator call, read against the operator's definition."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stof_cupy.errors import GraphError, mismatch
from stof_cupy.graph.node import Node, reference
from stof_cupy.graph.registry import REQUIRED, OpDef
from stof_cupy.graph.shapes import Shape

__all__ = ["attributes", "operands", "shapes", "signature"]


def operands(
    op: OpDef,
    given: tuple[Node | None, ...],
    named: dict[str, Any],
    owns: Callable[[Node], bool],
) -> tuple[Node | None, ...]:
    """Return one node or None per port, taking those given by name out of `named`."""
    if len(given) > len(op.ports):
        raise GraphError(mismatch(op.name, f"{len(given)} inputs", f"at most {len(op.ports)}"))
    taken: list[Node | None] = []
    for position, port in enumerate(op.ports):
        if position < len(given) and port.name in named:
            raise GraphError(mismatch(f"{op.name}: {port.name}", "two values", "one"))
        node = given[position] if position < len(given) else named.pop(port.name, None)
        if node is None and port.optional:
            taken.append(None)
            continue
        if not isinstance(node, Node) or not owns(node):
            raise GraphError(_no_node(f"{op.name}: {port.name}", node))
        if node.dtype != port.dtype:
            raise GraphError(mismatch(f"{op.name}: {port.name}", repr(node), f"dtype {port.dtype}"))
        taken.append(node)
    return tuple(taken)


def _no_node(name: str, given: Any) -> str:
    if given is None or isinstance(given, Node):
        got = "nothing" if given is None else f"{reference(given)} of another one"
        return mismatch(name, got, "a node of this graph")
    kind, shape = type(given).__name__, getattr(given, "shape", None)
    got = kind if shape is None else f"{kind} {tuple(shape)}"
    hint = "graph.constant(name, array) makes a node of a NumPy array"
    return mismatch(name, got, "a node of this graph", hint)


def attributes(op: OpDef, given: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return all attributes of `op` in order, converted and with defaults filled in."""
    unknown = sorted(given.keys() - {attr.name for attr in op.attrs})
    if unknown:
        known = [port.name for port in op.ports] + [attr.name for attr in op.attrs]
        raise GraphError(mismatch(f"{op.name}: argument", repr(unknown[0]), ", ".join(known)))
    values = []
    for attr in op.attrs:
        value = given.get(attr.name, attr.default)
        try:
            if value is REQUIRED:
                raise ValueError
            values.append((attr.name, attr.convert(value)))
        except (OverflowError, TypeError, ValueError):
            got = "nothing" if value is REQUIRED else repr(value)
            raise GraphError(mismatch(f"{op.name}: {attr.name}", got, attr.expected)) from None
    return tuple(values)


def shapes(op: OpDef, given: tuple[Node | None, ...]) -> dict[str, Shape | None]:
    """Return the operands' shapes by port name, None where one is absent."""
    return {
        port.name: None if node is None else node.shape
        for port, node in zip(op.ports, given, strict=True)
    }


def signature(op: OpDef) -> inspect.Signature:
    """Return the signature of the builder method: attributes are keyword-only."""
    kind, empty = inspect.Parameter, inspect.Parameter.empty
    parameters = [kind("self", kind.POSITIONAL_OR_KEYWORD)]
    for port in op.ports:
        default = None if port.optional else empty
        parameters.append(kind(port.name, kind.POSITIONAL_OR_KEYWORD, default=default))
    for attr in op.attrs:
        default = empty if attr.default is REQUIRED else attr.default
        parameters.append(kind(attr.name, kind.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)
