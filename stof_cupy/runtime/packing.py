"""Sequences of different lengths as one: packed one after another, under a mask of documents.

A padded batch computes what nobody reads. Packed, a token costs as much as it should, and the mask
keeps the sequences apart. What an operator computes for a token must then not depend on where in
the array the token lies; :data:`ANYWHERE` lists the operators of which that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stof_cupy.graph import Graph, Node
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.substitute import Replacement, substitute
from stof_cupy.interop import to_device
from stof_cupy.masks import BsrMask, as_mask, document, from_spec

__all__ = [
    "ANYWHERE",
    "DOCUMENTS",
    "POSITIONS",
    "Packed",
    "Sequences",
    "pack_graph",
    "packed_mask",
    "positions",
]

ANYWHERE = frozenset({
    "add", "attention", "columns", "embedding", "gated", "gelu", "gemm", "layer_norm",
    "merge_heads", "mul", "relu", "rms_norm", "scale", "silu", "softcap", "split_heads",
})  # fmt: skip
"""Operators whose result for a token depends on no index, positions of `embedding` aside."""

POSITIONS, DOCUMENTS = "packed.positions", "packed.documents"
"""Inputs of a packed graph: where each token stands in its sequence, and who sees whom."""


def pack_graph(graph: Graph) -> Graph | None:
    """Return the graph for packed sequences, or None where it cannot be had.

    Its arrays are ``(1, tokens, ...)``. Masks are of all tokens; there are no lengths, and where an
    attention had no mask it reads the input ``packed.documents``. Tables of positions are looked up
    by the input ``packed.positions``, int ``(1, tokens)``.

    Parameters
    ----------
    graph : Graph
        With the dims ``batch`` and ``seq``; left as it is.

    Examples
    --------
    >>> g = Graph("block")
    >>> x = g.split_heads(g.input("x", ("batch", "seq", 4), "float"), heads=2)
    >>> g.output("y", g.merge_heads(g.attention(x, x, x)))
    >>> list(pack_graph(g).inputs)
    ['x', 'packed.documents']
    """
    if graph.dims != ("batch", "seq") or not all(map(_can_be_packed, graph.nodes())):
        return None
    return substitute(lambda node, uses: _packed(node), _with_inputs(graph))


def _can_be_packed(node: Node) -> bool:
    if node.op == "constant":
        return True
    if node.op == "input":
        return node.dtype in ("mask", "lengths") or node.shape[:2] == ("batch", "seq")
    if node.op not in ANYWHERE:
        return False
    if node.op in ("add", "mul"):  # of every token with its own row, or with one that is for all
        y = node.inputs[1]
        return y is not None and (len(y.shape) == 1 or y.shape == node.shape)
    if node.op == "attention":
        return node.shape[0] == "batch" and node.shape[2] == "seq" == _keys(node)
    return node.kind == "view" or node.shape[:2] == ("batch", "seq")


def _keys(node: Node) -> Any:
    k = node.inputs[1]
    return None if k is None else k.shape[2]


def _with_inputs(graph: Graph) -> Graph:
    """Return a copy with the inputs that packing adds, as far as they are read."""
    copy = substitute(lambda node, uses: None, graph)
    nodes = copy.nodes()
    if any(node.op == "embedding" and node.inputs[2] is not None for node in nodes):
        copy.input(POSITIONS, ("batch", "seq"), "int")
    if any(node.op == "attention" and node.inputs[3] is None for node in nodes):
        copy.input(DOCUMENTS, ("seq", "seq"), "mask")
    return copy


def _packed(node: Node) -> Replacement | None:
    if node.op == "attention":
        q, k, v, mask, _, *others = node.inputs

        def attention(graph: Graph, new: tuple[Node | None, ...]) -> Node:
            seen = graph.inputs[DOCUMENTS] if new[3] is None else new[3]
            # Relative biases go by distance, which within a sequence is what it was.
            operands = (*new[:3], seen, None, *new[4:])
            return graph.apply("attention", *operands, **dict(node.attrs))

        return Replacement((q, k, v, mask, *others), attention)
    if node.op == "embedding" and node.inputs[2] is not None:
        ports = [port.name for port in OPS["embedding"].ports]

        def embedding(graph: Graph, new: tuple[Node | None, ...]) -> Node:
            given = dict(zip(ports, new, strict=True))
            table = given.pop("position_table")
            rows = graph.apply("embedding", graph.inputs[POSITIONS], table)
            return graph.apply("add", graph.apply("embedding", **given), rows)

        return Replacement(node.inputs, embedding)
    return None


@dataclass(frozen=True)
class Sequences:
    """An input of integers in as many arrays as there are sequences; see `PackedProgram.run`.

    Attributes
    ----------
    rows : sequence of ndarray or None
        NumPy's, or CuPy's of the program's device, ``(length,)``; None where there are no tokens.
    look : callable
        Is given what they become, integers ``(1, tokens)`` on the program's device, and returns it
        as a run is to have it. Where runs are recorded that is after the launch and on a stream
        beside it: of int32 then, -1 for what that cannot hold, with zeros behind the tokens; what
        it returns is not read. What it launches there has to be done before the array may go.
    """

    rows: Sequence[Any]
    look: Callable[[Any], Any]

    def alike(self) -> Sequence[Any]:
        """Return the rows as integers of 32 bits each, or of 64 each."""
        widths = {row.itemsize for row in self.rows if row is not None}
        if widths in ({4}, {8}):
            return self.rows
        dtype = np.dtype(np.int64 if 8 in widths else np.int32)
        return [
            row if row is None or row.itemsize == dtype.itemsize else row.astype(dtype)
            for row in self.rows
        ]

    def together(self, device: int | None) -> Any:
        """Return what `look` returns of them, on `device` or on the host."""
        rows = [row for row in self.rows if row is not None]
        if len({row.dtype for row in rows}) > 1:  # of int64 and uint64 NumPy makes floats
            rows = [row.view(f"i{row.itemsize}") for row in self.alike() if row is not None]
        if device is None:
            return self.look(np.concatenate(rows)[None])
        import cupy

        return self.look(cupy.concatenate([to_device(row, device) for row in rows])[None])


def positions(lengths: Sequence[int]) -> NDArray[np.int32]:
    """Return where each token of packed sequences stands in its own, int32 ``(1, tokens)``.

    Examples
    --------
    >>> positions([3, 0, 2])
    array([[0, 1, 2, 0, 1]], dtype=int32)
    """
    count = np.asarray(lengths, np.int32)
    starts = np.cumsum(count, dtype=np.int32) - count
    return (np.arange(count.sum(), dtype=np.int32) - np.repeat(starts, count))[None]


_BY_DISTANCE: Mapping[str, dict[str, Any]] = {"full": {}, "causal": {"causal": True}}
"""Masks by spec that are the same wherever a sequence lies, as arguments of `masks.document`."""


class Packed(NamedTuple):
    """A mask of documents by its lengths alone: for `PackedProgram`, which seldom needs more.

    Attributes
    ----------
    lengths : tuple of int
        Tokens of each document, 0 or more.
    causal : bool
        Whether a token sees only itself and those before it.
    """

    lengths: tuple[int, ...]
    causal: bool = False

    @classmethod
    def of(cls, mask: Any, lengths: tuple[int, ...]) -> Any:
        """Return it for a mask that `packed_mask` takes, or what that returns if it is another."""
        if mask is None or (isinstance(mask, str) and mask in _BY_DISTANCE):
            return cls(lengths, mask == "causal")
        return packed_mask(mask, lengths)

    def made(self) -> Any:
        """Return the mask; of equal lengths the same object, see `packed_mask`."""
        return packed_mask("causal" if self.causal else None, self.lengths)


def packed_mask(mask: Any, lengths: tuple[int, ...]) -> Any:
    """Return the mask of packed sequences, each under the one that it has alone.

    Parameters
    ----------
    mask : None, str or callable
        A spec, or a function from a length to anything that `masks.as_mask` takes.
    lengths : tuple of int

    Returns
    -------
    BsrMask or Pattern
        ``(tokens, tokens)``; the last ones by spec are kept.

    Examples
    --------
    >>> packed_mask("causal", (2, 1)).toarray().astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    if mask is None or isinstance(mask, str):
        return _packed_spec("full" if mask is None else mask, lengths)
    return _diagonal([as_mask(mask(length), (length, length)) for length in lengths if length])


@lru_cache(maxsize=32)
def _packed_spec(spec: str, lengths: tuple[int, ...]) -> Any:
    if spec in _BY_DISTANCE:
        return document(lengths, **_BY_DISTANCE[spec])
    name, _, rest = spec.partition(":")
    if name == "sliding" and rest.startswith("w=") and rest[2:].isdigit():
        return document(lengths, window=int(rest[2:]))
    return _diagonal([as_mask(from_spec(spec, length)) for length in lengths if length])


def _diagonal(blocks: Sequence[BsrMask]) -> BsrMask:
    """Return masks along the diagonal of a larger one."""
    rows, cols, at = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for block in blocks:
        found = block.tocoo()
        rows.append(found.row.astype(np.int64) + at)
        cols.append(found.col.astype(np.int64) + at)
        at += block.shape[0]
    row, col = np.concatenate(rows), np.concatenate(cols)
    return BsrMask((np.ones(len(row), bool), (row, col)), shape=(at, at))
