"""The graph room: nodes, operators, verification and the executor.

Describe a computation with :class:`Graph`, check it with :func:`verify`, run it with
:class:`Executor`, which is imported on first use: the description needs no operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stof_cupy.graph.ir import Graph, Node
from stof_cupy.graph.verify import verify

if TYPE_CHECKING:
    from stof_cupy.graph.executor import Executor

__all__ = ["Executor", "Graph", "Node", "verify"]


def __getattr__(name: str) -> Any:
    if name == "Executor":
        from stof_cupy.graph.executor import Executor

        return Executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
