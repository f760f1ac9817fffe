"""Pieces that families are built of; each adds its nodes to one graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from stof_cupy.graph import Graph, Node
    from stof_cupy.models.weights import Weights

__all__ = ["DECODER_DIMS", "DecoderInputs", "Layers", "tied_matrix"]

DECODER_DIMS = ("batch", "seq", "keys", "picked")
"""Symbolic dims of a decoder: `keys` is `seq` without a cache, `picked` the logits asked for.

Layers with a window have `near` keys in place of `keys`.
"""


@dataclass(frozen=True)
class Layers:
    """A graph under construction and the weights it takes."""

    graph: Graph
    weights: Weights

    def constant(self, name: str, *shape: int) -> Node:
        """Take a weight as it is."""
        return self.graph.constant(name, self.weights.take(name, shape))

    def linear(self, name: str, x: Node, rows: int, columns: int, *, bias: bool = True) -> Node:
        """``x @ weight.T + bias``, the weight (rows, columns)."""
        y = self.graph.gemm(x, self.constant(f"{name}.weight", rows, columns))
        return self.graph.add(y, self.constant(f"{name}.bias", rows)) if bias else y

    def layer_norm(self, name: str, x: Node, size: int, eps: float) -> Node:
        """LayerNorm with a weight and a bias."""
        weight, bias = (self.constant(f"{name}.{part}", size) for part in ("weight", "bias"))
        return self.graph.layer_norm(x, weight, bias, eps=eps)

    def rms_norm(self, name: str, x: Node, size: int, eps: float, *, plus: float = 0.0) -> Node:
        """RMSNorm by ``weight + plus``."""
        name = f"{name}.weight"
        weight = self.weights.take(name, (size,))
        if plus:
            weight = np.asarray(weight.astype(np.float32) + np.float32(plus))
        return self.graph.rms_norm(x, self.graph.constant(name, weight), eps=eps)

    def head(self, hidden: Node, table: Node, vocab: int, *, tied: bool) -> Node:
        """Return the logits of the rows asked for: a product with a matrix or with the `table`.

        `tied` to the table it is that, unless the checkpoint holds another matrix.
        """
        rows = self.graph.input("rows", ("batch", "picked"), "int")
        picked = self.graph.take_rows(hidden, rows)
        name = "lm_head.weight"
        if not tied:
            return self.graph.gemm(picked, self.constant(name, vocab, int(hidden.shape[2])))
        return self.graph.gemm(picked, tied_matrix(self.graph, self.weights, name, table))


def tied_matrix(graph: Graph, weights: Weights, name: str, table: Node) -> Node:
    """Return the matrix of a head that is tied to a `table`: the table, where both are equal.

    A checkpoint may hold another matrix all the same, whatever its config says; that is what the
    model was trained with, and what transformers takes.
    """
    shared: NDArray[Any] = graph.constants[table.name]
    if not weights.has(name):
        return table
    own = weights.take(name, shared.shape)
    return table if np.array_equal(own, shared) else graph.constant(name, own)


@dataclass(frozen=True)
class DecoderInputs:
    """What every decoder is given beside its tokens."""

    graph: Graph
    positions: Node
    lengths: Node

    @classmethod
    def declare(cls, graph: Graph) -> tuple[Node, DecoderInputs]:
        """Declare them; return the token ids too."""
        ids, positions = (
            graph.input(name, ("batch", "seq"), "int") for name in ("ids", "positions")
        )
        return ids, cls(graph, positions, graph.input("lengths", ("batch",), "lengths"))

    def mask(self, layer: int, *, near: bool = False) -> Node:
        """Declare the mask of a layer."""
        return self.graph.input(f"mask.{layer}", ("seq", "near" if near else "keys"), "mask")

    def cached(self, layer: int, k: Node, v: Node, *, near: bool = False) -> tuple[Node, Node]:
        """Return keys and values with those of earlier runs.

        With `near`, of the latest alone: the cache is a ring of other size.
        """
        both = []
        for name, x in (("k", k), ("v", v)):
            shape = (x.shape[0], x.shape[1], "near" if near else "keys", x.shape[3])
            cache = self.graph.input(f"cache_{name}.{layer}", shape, "cache")
            both.append(self.graph.kv_cache(x, self.positions, cache, ring=near))
        return both[0], both[1]
