"""Moves of stage 1: how one scheme becomes another (STOF, arXiv 2506.06095, section 4.4.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stof_cupy.fusion.ledger import Span

__all__ = ["Move", "moves"]


@dataclass(frozen=True)
class Move:
    """A change of a few neighbouring segments.

    Attributes
    ----------
    name : {"expand", "seize", "compete", "cut"}
    old, new : tuple of spans
        What is replaced by what.
    """

    name: str
    old: tuple[Span, ...]
    new: tuple[Span, ...]

    def apply(self, spans: Sequence[Span]) -> list[Span]:
        """Return the scheme after the move."""
        at = spans.index(self.old[0])
        return [*spans[:at], *self.new, *spans[at + len(self.old) :]]


def moves(spans: Sequence[Span], kinds: Sequence[str], legal: Collection[Span]) -> list[Move]:
    """Return the moves from a scheme, in the order in which they are tried.

    ``expand`` merges two neighbours; ``seize`` gives a segment with a compute-intensive operator
    the nearest one of a neighbour that has none; where two segments want the same operator they
    ``compete``, and the one with a single compute-intensive operator has it first. The paper's
    search cannot take back what the first scheme merged, so there is ``cut`` as well.

    Parameters
    ----------
    spans : sequence of Span
    kinds : sequence of {"CI", "MI"}
    legal : collection of Span

    Examples
    --------
    >>> legal = {(0, 1), (1, 2), (0, 2), (2, 3), (1, 3), (0, 3)}
    >>> [m.name for m in moves([(0, 1), (1, 3)], ["CI", "MI", "MI"], legal)]
    ['seize', 'expand', 'cut']
    """
    heavy = [sum(kind == "CI" for kind in kinds[a:b]) for a, b in spans]
    takes = [each for each in _takes(spans, heavy) if set(each.new) <= set(legal)]
    wanted = Counter(each.op for each in takes)
    takes.sort(key=lambda each: each.taker_ci != 1)
    found = [
        Move("compete" if wanted[each.op] > 1 else "seize", each.old, each.new) for each in takes
    ]
    return found + [move for move in (*_merged(spans), *_cut(spans)) if set(move.new) <= set(legal)]


@dataclass(frozen=True)
class _Take:
    """A segment with `taker_ci` compute-intensive operators takes one operator of a neighbour."""

    op: int
    taker_ci: int
    old: tuple[Span, ...]
    new: tuple[Span, ...]


def _takes(spans: Sequence[Span], heavy: Sequence[int]) -> Iterator[_Take]:
    for at, (start, stop) in enumerate(spans):
        if not heavy[at]:
            continue
        if at + 1 < len(spans) and not heavy[at + 1]:
            a, b = spans[at + 1]
            rest = ((a + 1, b),) if b - a > 1 else ()
            yield _Take(a, heavy[at], (spans[at], (a, b)), ((start, stop + 1), *rest))
        if at and not heavy[at - 1]:
            a, b = spans[at - 1]
            rest = ((a, b - 1),) if b - a > 1 else ()
            yield _Take(b - 1, heavy[at], ((a, b), spans[at]), (*rest, (start - 1, stop)))


def _merged(spans: Sequence[Span]) -> Iterator[Move]:
    for one, two in pairwise(spans):
        yield Move("expand", (one, two), ((one[0], two[1]),))


def _cut(spans: Sequence[Span]) -> Iterator[Move]:
    for start, stop in spans:
        for at in range(start + 1, stop):
            yield Move("cut", ((start, stop),), ((start, at), (at, stop)))
