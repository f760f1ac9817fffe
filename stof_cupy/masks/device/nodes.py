"""The structs in which a kernel takes a mask expression: the mirror of ``cuda/mask/node.cuh``.

They are packed by :mod:`struct` with C's own alignment, which takes a microsecond a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from stof_cupy.jit.mask_kernels import MASK_ARRAYS, MASK_NODES, NODE_BYTES

__all__ = [
    "AND",
    "INVERT_LEAF",
    "INVERT_RESULT",
    "KINDS",
    "OR",
    "REPLACE",
    "XOR",
    "Node",
    "pack_program",
]

REPLACE, AND, OR, XOR = range(4)
"""How the value of a node joins the accumulator."""

INVERT_LEAF, INVERT_RESULT = 1, 2
"""Flags: complement the node's value before, or the accumulator after they are joined."""

_HEADER = Struct("8i")  # kind, join, invert, q, k, rows, cols, unused
_ARRAY = Struct("QqiI")  # address or bits of a scalar; elements; stride in bytes; elements again

_PAYLOADS = {
    "push": Struct(""),
    "pop": Struct(""),
    # offset, size, before, after, causal, key_start, key_stop, query_start, query_stop
    "band": Struct("9i"),
    # start, stop, lead[2]
    "intervals": Struct("2Q2q"),
    # query_stop, key_start, key_stop, reach, count
    "segments": Struct("4Qi"),
    # words
    "columns": Struct("Q"),
    # words, zero, words_count
    "diagonals": Struct("Q2i"),
    # listed, count, height, width, across
    "blocks": Struct("Qq3i"),
    # scores, cuts, thresholds; row, col, lead[2]; threshold_row, threshold_lead[2];
    # height, width, type; threshold
    "scores": Struct("3Q4q3q3if"),
    # row_ptr, full_ptr, cols, bitmap_id, bitmaps, mask_of, overflow; lead[2]
    "stored": Struct("7Q2i"),
    # size[3], window[3], step[3], causal[3]
    "neighborhood": Struct("12i"),
    # data, row, col, lead[2]
    "dense": Struct("Q4q"),
    # which, first
    "formula": Struct("2i"),
}
KINDS = {kind: number for number, kind in enumerate(_PAYLOADS)}
"""Number of each kind of node."""

_PAYLOAD_BYTES = NODE_BYTES - _HEADER.size


@dataclass
class Node:
    """One step of a program.

    Attributes
    ----------
    kind : str
        A key of `_PAYLOADS`.
    join, invert : int
        See `REPLACE` and `INVERT_LEAF`.
    origin : tuple of int
        Which element of the leaf is element (0, 0) of the mask.
    shape : tuple of int
        ``(queries, keys)`` of the leaf.
    fields : tuple
        What the payload holds, in order; addresses as integers.
    """

    kind: str
    join: int = REPLACE
    invert: int = 0
    origin: tuple[int, int] = (0, 0)
    shape: tuple[int, int] = (0, 0)
    fields: tuple[int | float, ...] = ()

    def pack(self) -> bytes:
        """Return the node as the kernel takes it."""
        header = _HEADER.pack(
            KINDS[self.kind], self.join, self.invert, *self.origin, *self.shape, 0
        )
        return header + _PAYLOADS[self.kind].pack(*self.fields).ljust(_PAYLOAD_BYTES, b"\0")


def pack_program(nodes: Sequence[Node], arrays: Sequence[tuple[int, int, int]]) -> bytes:
    """Return a program as the kernel takes it.

    Parameters
    ----------
    nodes : sequence of Node
        At most `MASK_NODES`.
    arrays : sequence of (int, int, int)
        What formulas name: address or scalar, elements, stride in bytes.
    """
    steps = b"".join(node.pack() for node in nodes).ljust(MASK_NODES * NODE_BYTES, b"\0")
    named = b"".join(_ARRAY.pack(at, size, step, min(size, 2**31)) for at, size, step in arrays)
    return steps + named.ljust(MASK_ARRAYS * _ARRAY.size, b"\0")
