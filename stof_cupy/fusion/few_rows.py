"""What runs as one where there are few rows, a token of a decoder say, and kernels are short.

There a product reads its weights and waits for nothing else, so that each of its CTAs may as well
normalise the rows by itself: the norm's own launch would cost more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from stof_cupy.graph import Graph
from stof_cupy.graph.steps import Fused
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.normed_gemm import normed_gemm

__all__ = ["few_row_pieces"]

Array: TypeAlias = Any


def few_row_pieces(graph: Graph) -> tuple[Fused, ...]:
    """Return each RMSNorm with the product that alone reads it; for any number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("half a layer")
    >>> x = g.input("x", ("batch", "seq", 8), "float")
    >>> y = g.rms_norm(x, g.constant("norm", np.ones(8, np.float32)), eps=1e-6)
    >>> g.output("y", g.gemm(y, g.constant("w", np.ones((4, 8), np.float32))))
    >>> [[node.op for node in piece.nodes] for piece in few_row_pieces(g)]
    [['rms_norm', 'gemm']]
    """
    nodes = graph.nodes()
    readers = Counter(each for node in nodes for each in node.inputs if each is not None)
    readers.update(graph.outputs.values())
    pieces = []
    for node in nodes:
        norm = node.inputs[0] if node.op == "gemm" else None
        if norm is None or norm.op != "rms_norm" or readers[norm] != 1:
            continue
        attrs = dict(node.attrs)
        _, weight, bias, *others = node.inputs
        # A result may be written over a residual, which the CTAs that are not done yet may read.
        plain = attrs.keys() == {"activation", "gated"} and not any(others)
        if plain:
            call = _call(attrs, dict(norm.attrs)["eps"])
            inputs = tuple(each for each in (*norm.inputs, weight, bias) if each is not None)
            pieces.append(Fused((norm, node), inputs, call))
    return tuple(pieces)


def _call(attrs: Mapping[str, Any], eps: float) -> Callable[..., Array]:
    def run(
        x: Array, norm: Array, w: Array, bias: Array | None = None, out: Array | None = None
    ) -> Array:
        epilogue = Epilogue(bias, attrs["activation"], gated=attrs["gated"])
        return normed_gemm(x, norm, w.T, eps=eps, epilogue=epilogue, out=out)

    return run
