"""A mask expression as a program of leaves for an accumulator, and what it needs on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit.mask_kernels import MASK_ARRAYS, MASK_DEPTH, MASK_NODES, FormulaCode
from stof_cupy.masks.device.nodes import (
    AND,
    INVERT_LEAF,
    INVERT_RESULT,
    KINDS,
    OR,
    REPLACE,
    XOR,
    Node,
    pack_program,
)
from stof_cupy.masks.device.uploads import Uploads
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.operators import Binary, Not
from stof_cupy.masks.view import View

__all__ = ["Builder", "Program", "TooLargeError"]

_UNARY = (Not, View)  # a tuple, because making a union takes longer than the question

_JOINS = {"&": AND, "|": OR, "^": XOR}

Fields = tuple[Any, ...]
Lower = Callable[["Builder", Any], tuple[str, Fields]]


class TooLargeError(UnsupportedError):
    """An expression of more leaves, arrays or nested operators than a kernel takes."""


@dataclass(frozen=True, eq=False)
class Program:
    """What `Lists` builds from.

    Attributes
    ----------
    packed : uint8 array
        See `nodes.pack_program`.
    count : int
        Nodes among them.
    formulas : tuple of FormulaCode
        To be compiled into the kernel.
    kinds : int
        A bit for each kind of node there is.
    lead : tuple of int
        Leading axes, padded to two: ``(batch or 1, heads or 1)``.
    prepare : tuple of functions
        What runs, on the current stream, before every build.
    kept : tuple
        Arrays that must live as long as the program.
    """

    packed: NDArray[np.uint8]
    count: int
    formulas: tuple[FormulaCode, ...]
    kinds: int
    lead: tuple[int, int]
    prepare: tuple[Callable[[], None], ...]
    kept: tuple[Any, ...]


@dataclass
class Builder:
    """Collects the nodes of an expression; `lower` says what a leaf is.

    Attributes
    ----------
    lead : tuple of int
        Leading axes of the whole, padded to two.
    lower : function
        Takes this and a leaf, returns the kind and the fields of its node. A field may be what
        `uploads.add` returned.
    """

    lead: tuple[int, int]
    lower: Lower
    nodes: list[Node] = field(default_factory=list)
    arrays: list[tuple[int, int, int]] = field(default_factory=list)
    formulas: list[FormulaCode] = field(default_factory=list)
    prepare: list[Callable[[], None]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    uploads: Uploads = field(default_factory=Uploads)
    _aside: int = 0

    def strides(self, lead: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
        """Return a leaf's strides along the two leading axes, 0 where it broadcasts."""
        padded = ((1, 0),) * (2 - len(lead)) + tuple(zip(lead, strides, strict=True))
        outer, inner = (stride if size > 1 else 0 for size, stride in padded)
        return outer, inner

    def load(self, pattern: Pattern, origin: tuple[int, int] = (0, 0)) -> None:
        """Emit nodes after which the accumulator is `pattern`."""
        if isinstance(pattern, Not):
            self.load(pattern.operand, origin)
            self.nodes[-1].invert ^= INVERT_RESULT
        elif isinstance(pattern, View):
            self.load(pattern.operand, _moved(origin, pattern))
        elif isinstance(pattern, Binary):
            first, second = pattern.left, pattern.right
            if _depth(second) > _depth(first):  # so that as few as can be are set aside
                first, second = second, first
            self.load(first, origin)
            self._join(second, origin, _JOINS[pattern.symbol])
        else:
            self._leaf(pattern, origin, REPLACE, 0)

    def _join(self, pattern: Pattern, origin: tuple[int, int], join: int) -> None:
        """Emit nodes that join `pattern` to the accumulator."""
        inverted = 0
        while isinstance(pattern, _UNARY):
            if isinstance(pattern, Not):
                inverted ^= INVERT_LEAF
            else:
                origin = _moved(origin, pattern)
            pattern = pattern.operand
        if not isinstance(pattern, Binary):
            self._leaf(pattern, origin, join, inverted)
            return
        self._aside += 1
        if self._aside > MASK_DEPTH:
            raise TooLargeError(mismatch("mask", "operators nested deeper", f"{MASK_DEPTH} levels"))
        self.nodes.append(Node("push"))
        self.load(pattern, origin)
        if inverted:
            self.nodes[-1].invert ^= INVERT_RESULT
        self.nodes.append(Node("pop", join))
        self._aside -= 1

    def _leaf(self, leaf: Pattern, origin: tuple[int, int], join: int, invert: int) -> None:
        kind, fields = self.lower(self, leaf)
        self.nodes.append(Node(kind, join, invert, origin, leaf.shape, fields))

    def finish(self) -> Program:
        """Upload what there is to upload and return the program.

        Raises
        ------
        TooLargeError
            If there are too many nodes or arrays.
        """
        if len(self.nodes) > MASK_NODES or len(self.arrays) > MASK_ARRAYS:
            got = f"{len(self.nodes)} nodes, {len(self.arrays)} arrays"
            expected = f"at most {MASK_NODES} nodes and {MASK_ARRAYS} arrays"
            raise TooLargeError(mismatch("mask", got, expected))
        base, buffer = self.uploads.finish()
        arrays = self.arrays
        if len(self.uploads):
            for node in self.nodes:
                node.fields = tuple(Uploads.address(base, each) for each in node.fields)
            arrays = [(Uploads.address(base, at), size, step) for at, size, step in arrays]
        return Program(
            packed=np.frombuffer(pack_program(self.nodes, arrays), np.uint8),
            count=len(self.nodes),
            formulas=tuple(self.formulas),
            kinds=sum({1 << KINDS[node.kind] for node in self.nodes}),
            lead=self.lead,
            prepare=tuple(self.prepare),
            kept=(buffer, *self.kept),
        )


def _moved(origin: tuple[int, int], view: View) -> tuple[int, int]:
    return origin[0] + view.origin[0], origin[1] + view.origin[1]


def _depth(pattern: Pattern) -> int:
    """Return how many accumulators are set aside at a time while `pattern` is loaded, plus one."""
    while isinstance(pattern, _UNARY):
        pattern = pattern.operand
    if not isinstance(pattern, Binary):
        return 0
    low, high = sorted((_depth(pattern.left), _depth(pattern.right)))
    return max(high, low + 1)
