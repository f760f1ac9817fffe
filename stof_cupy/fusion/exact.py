"""The exact rewrites: always right, never slower, so that nothing has to be searched.

Those of :data:`STRUCTURE` say what the operators are, and leave open which of them run as one; the
search starts from there. Those of :mod:`stof_cupy.fusion.rewrites` fold what follows a GEMM.
"""

from __future__ import annotations

from collections.abc import Callable

from stof_cupy import env
from stof_cupy.fusion.attention import attention_of, scale_into_attention
from stof_cupy.fusion.merge import (
    gate_products,
    gemm_of_matmul,
    merge_products,
    scale_into_weights,
)
from stof_cupy.fusion.rewrites import BIAS, fuse_epilogues
from stof_cupy.fusion.turns import merge_turns, turn_in_products
from stof_cupy.graph import Graph, verify
from stof_cupy.graph.passes import Pass, simplify
from stof_cupy.graph.substitute import Match, substitute

__all__ = ["STRUCTURE", "fuse", "structured"]


def _each(match: Match) -> Callable[[Graph], Graph]:
    return lambda graph: substitute(match, graph)


STRUCTURE = (
    Pass("matmul by a constant is a gemm", _each(gemm_of_matmul)),
    Pass("constants are folded, pieces shared", simplify),
    Pass("scores, softmax and values are attention", _each(attention_of)),
    Pass("a scale goes into attention", _each(scale_into_attention)),
    Pass("a bias goes into the gemm", _each(BIAS.match)),
    Pass("a scale goes into weights", _each(scale_into_weights)),
    Pass("constants are folded, transposes are strides", simplify),
    Pass("products of one input are one", merge_products),
    Pass("a product gates itself", gate_products),
    Pass("queries and keys are turned at once", merge_turns),
    Pass("a product turns its heads", turn_in_products),
)
"""In order; each finds what the ones before it have made plain."""


def structured(graph: Graph) -> Graph:
    """Run :data:`STRUCTURE`: the graph in the operators that there are kernels for.

    Parameters
    ----------
    graph : Graph
        Left as it is.

    Returns
    -------
    Graph
        Verified; after each pass too when ``STOF_VERIFY=1``.

    Raises
    ------
    GraphError
        If the graph does not verify.

    Examples
    --------
    >>> g = Graph("spelled out")
    >>> q, k, v = (g.input(n, ("batch", 2, "seq", 4), "float") for n in "qkv")
    >>> scores = g.matmul(g.scale(q, factor=0.5), g.transpose(k, axes=(0, 1, 3, 2)))
    >>> g.output("y", g.matmul(g.softmax(scores), v))
    >>> print(structured(g).show().splitlines()[-2])
    %3 = attention(%0, %1, %2, scale=0.5) float (batch, 2, seq, 4) [CI]
    """
    verify(graph)
    each_time = env.VERIFY.get() == "1"
    for step in STRUCTURE:
        graph = step.apply(graph)
        if each_time:
            verify(graph)
    verify(graph)
    return graph


def fuse(graph: Graph) -> Graph:
    """Return the graph after all exact rewrites, which is what runs where nothing is searched."""
    return fuse_epilogues(structured(graph))
