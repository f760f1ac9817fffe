"""A graph's operators in their order, and which runs of them may be one segment.

Views are no operators: they move nothing. A segment is a run whose every result but the last is
read by the next operator of the run and by nothing else, and which one of :data:`TEMPLATES` fits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from stof_cupy.graph import Graph, Node
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.shapes import Shape

__all__ = ["ROWS", "TEMPLATES", "Chain", "Template"]

ROWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("x", "residual", "statistics"),
        "layer_norm": ("x",),
        "add": ("x", "y"),
        "gelu": ("x",),
        "scale": ("x",),
        "softmax": ("x",),
        "rms_norm": ("x",),
        "mul": ("x", "y"),
        "gated": ("x", "y"),
        "silu": ("x",),
        "relu": ("x",),
        "softcap": ("x",),
        "row_statistics": ("x",),
    }
)
"""Operators that compute each row from the same row of these ports, and from all of the others.

What is in this table can be part of any segment; an operator that is not stays alone, unless a
template names it.
"""


@dataclass(frozen=True)
class Template:
    """A form of segment.

    Attributes
    ----------
    name : str
    letters : str
        Regular expression over one letter an operator: C for compute-intensive, M for
        memory-intensive, in the order of the segment, and for what is not in `ROWS`: Q for a
        batched product, S for a mask, A for attention, L for any other.
    """

    name: str
    letters: str


TEMPLATES = (
    Template("CI", "[CQA]"),
    Template("MI", "[MSL]"),
    Template("MHA", "Q[MS]*MQ"),
    Template("CI+MI", "CM+"),
    Template("CI+CI", "CM*CM*"),
    Template("MI+MI", "MM+"),
)
"""The paper's (section 4.3), and single operators; at most two compute-intensive ones."""

_LETTERS = {"matmul": "Q", "masked": "S", "attention": "A", "turned_gemm": "C"}


class Chain:
    """The operators of a graph.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    graph : Graph
    ops : tuple of Node
        Of class CI or MI, inputs before users.
    kinds : tuple of str
        Their classes.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("block")
    >>> x = g.input("x", ("batch", "seq", 2), "float")
    >>> w, one = g.constant("w", np.ones((2, 2))), g.constant("one", np.ones(2))
    >>> g.output("y", g.layer_norm(g.add(g.gelu(g.gemm(x, w)), x), one, one, eps=1e-5))
    >>> chain = Chain(g)
    >>> [node.op for node in chain.ops], chain.template(0, 4).name, chain.template(1, 3).name
    (['gemm', 'gelu', 'add', 'layer_norm'], 'CI+MI', 'MI+MI')
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops = tuple(node for node in graph.nodes() if node.kind in ("CI", "MI"))
        self.kinds = tuple(node.kind for node in self.ops)
        self._uses = graph.uses()
        self._digests: dict[tuple[int, int], str] = {}
        self._letters = "".join(map(_letter, self.ops))
        # follows[i]: whether operator i may share a segment with the one before it.
        self._follows = [False] + [
            self._uses[one] == 1 and _reads(two, one)
            for one, two in zip(self.ops, self.ops[1:], strict=False)
        ]
        shapes = [_row_shape(node) for node in self.ops]
        # How many operators up to each do not follow the one before it, or have other rows.
        self._breaks = [0, *accumulate(not follows for follows in self._follows)]
        others = [one != two for one, two in zip([None, *shapes], shapes, strict=False)]
        self._turns = [0, *accumulate(others)]
        self._segments: list[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return len(self.ops)

    def template(self, start: int, stop: int) -> Template | None:
        """Return the template that operators ``[start, stop)`` fit; None: they are no segment."""
        if not 0 <= start < stop <= len(self.ops) or self._breaks[start + 1] != self._breaks[stop]:
            return None
        letters = self._letters[start:stop]
        for each in TEMPLATES:
            if re.fullmatch(each.letters, letters):
                if each.name == "MHA":
                    return each if _is_attention(self.ops[start:stop]) else None
                return each if self._turns[start + 1] == self._turns[stop] else None
        return None

    def segments(self) -> list[tuple[int, int]]:
        """Return all runs that are segments, those of one operator among them."""
        if self._segments is None:
            found = []
            for start in range(len(self.ops)):
                for stop in range(start + 1, len(self.ops) + 1):
                    if stop > start + 1 and not self._follows[stop - 1]:
                        break
                    if self.template(start, stop):
                        found.append((start, stop))
            self._segments = found
        return self._segments

    def digest(self, start: int, stop: int) -> str:
        """Return 16 hex digits of what a run of operators computes, wherever in a stack it stands.

        Equal for runs of equal operators, wiring, attributes and shapes, and of the same segments,
        whatever the constants hold: the layers of a stack. A layer of which something else reads
        what is between its operators is another one.
        """
        if (start, stop) not in self._digests:
            inside = {node: number for number, node in enumerate(self.ops[start:stop])}
            outside: dict[Node, int] = {}
            # What is read from elsewhere, too, has to be there: no segment may reach across it.
            text = [repr(self._follows[start + 1 : stop])]
            for node in inside:
                wires = []
                for each in node.inputs:
                    if each is None or each in inside:
                        wires.append(repr(None if each is None else inside[each]))
                    else:
                        number = outside.setdefault(each, len(outside))
                        form = each.op if each.kind == "view" else each.op == "constant"
                        wires.append(f"x{number} {form} {each.dtype} {each.shape}")
                text.append(f"{node.op} {wires} {node.attrs} {node.shape}")
            whole = "\n".join(text).encode()
            self._digests[start, stop] = hashlib.sha256(whole).hexdigest()[:16]
        return self._digests[start, stop]


def _letter(node: Node) -> str:
    if node.op in _LETTERS:
        return _LETTERS[node.op]
    if _row_shape(node) is None:
        return "L"
    return "C" if node.kind == "CI" else "M"


def _row_shape(node: Node) -> Shape | None:
    """Return the shape of the rows, which is all but the last axis; None if it has none."""
    if node.op not in ROWS or len(node.shape) < 2:
        return None
    for port, each in zip(OPS[node.op].ports, node.inputs, strict=True):
        # What repeats along leading axes is the same for all rows only if it has one axis.
        if each is None or port.name not in ROWS[node.op]:
            continue
        if each.shape[:-1] != node.shape[:-1] and not (port.name == "y" and len(each.shape) == 1):
            return None
    return node.shape[:-1]


def _reads(node: Node, other: Node) -> bool:
    """Whether `node` reads `other` itself, as one of the operands that it computes row by row."""
    ports = ROWS.get(node.op)
    return any(
        each is other and (ports is None or port.name in ports)
        for port, each in zip(OPS[node.op].ports, node.inputs, strict=True)
    )


def _is_attention(ops: Sequence[Node]) -> bool:
    """Whether operators, the first and last batched products, are softmax of one times the other.

    What the rewrite finds in a whole graph: so it is asked.
    """
    from stof_cupy.fusion.attention import attention_of

    inside = dict.fromkeys(ops, 1)
    return attention_of(ops[-1], _Ones(inside)) is not None


class _Ones(dict[Node, int]):
    """Uses of nodes within a run: those outside end the search."""

    def __missing__(self, node: Node) -> int:
        return 0
