"""Names of constants that rewrites make of others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stof_cupy.graph import Graph

__all__ = ["made_name"]


_MARKS = "+*@-"
"""What stands between parts in such names."""


def made_name(graph: Graph, name: str, parts: Sequence[str]) -> str:
    """Return `name`, and with it a digest of the parts where it might be the name of another.

    Parameters
    ----------
    graph : Graph
        Whose constants keep their names.
    name : str
        What is made of the parts, for people.
    parts : sequence of str
        Names of constants.

    Examples
    --------
    >>> graph = Graph("none")
    >>> made_name(graph, "q+k", ["q", "k"])
    'q+k'
    >>> made_name(graph, "a+b+c", ["a+b", "c"]), made_name(graph, "a+b+c", ["a", "b+c"])
    ('a+b+c:ca99a375', 'a+b+c:64041a97')
    """
    apart = not any(mark in part for part in parts for mark in _MARKS)
    if apart and name not in graph.constants:
        return name
    return f"{name}:{hashlib.sha256(repr(list(parts)).encode()).hexdigest()[:8]}"
