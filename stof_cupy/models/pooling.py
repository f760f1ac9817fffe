"""The head that makes one vector of an encoder's states: a layer on the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stof_cupy.graph import Graph
    from stof_cupy.models.weights import Weights

__all__ = ["pooler_of"]


def pooler_of(weights: Weights, name: str, hidden: int) -> Graph | None:
    """Return the graph ``tanh(x @ weight.T + bias)``, or None where the checkpoint has no head.

    Parameters
    ----------
    weights : Weights
    name : str
        Of the layer, in the checkpoint.
    hidden : int
        Width of the states.

    Returns
    -------
    Graph or None
        From ``hidden`` (batch, seq, hidden), of which a caller gives the first token, to
        ``pooled``. A graph of its own, so that runs that want states alone do not pay for it.
    """
    from stof_cupy.graph import Graph

    if not all(weights.has(f"{name}.{part}") for part in ("weight", "bias")):
        return None
    g = Graph("pooler")
    x = g.input("hidden", ("batch", "seq", hidden), "float")
    matrix = g.constant(f"{name}.weight", weights.take(f"{name}.weight", (hidden, hidden)))
    bias = g.constant(f"{name}.bias", weights.take(f"{name}.bias", (hidden,)))
    y = g.add(g.gemm(x, matrix), bias)
    # A cap of 1 is the tanh.
    g.output("pooled", g.softcap(y, g.constant("one", np.ones(hidden, np.float32))))
    return g
