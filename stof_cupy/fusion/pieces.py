"""Layers of a stack: equal runs of operators, found once and tuned once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise

from stof_cupy.fusion.chain import Chain

__all__ = ["Piece", "pieces"]


@dataclass(frozen=True)
class Piece:
    """Operators ``[start, stop)`` of a chain, and how often they follow each other from there."""

    start: int
    stop: int
    copies: int = 1


def pieces(chain: Chain) -> list[Piece]:
    """Cut a chain into what repeats and what lies between.

    Cuts are where no segment could reach across, as far as there are such places.

    Parameters
    ----------
    chain : Chain

    Returns
    -------
    list of Piece
        Which cover the chain.
    """
    crossed = {at for start, stop in chain.segments() for at in range(start + 1, stop)}
    return _cut(chain, set(range(len(chain) + 1)) - crossed, 0, len(chain))


def _cut(chain: Chain, boundaries: set[int], start: int, stop: int) -> list[Piece]:
    if start == stop:
        return []
    found = _longest_repeat(chain, boundaries, start, stop)
    if found is None:
        return [Piece(start, stop)]
    end = found.start + (found.stop - found.start) * found.copies
    return [
        *_cut(chain, boundaries, start, found.start),
        found,
        *_cut(chain, boundaries, end, stop),
    ]


def _longest_repeat(chain: Chain, boundaries: set[int], start: int, stop: int) -> Piece | None:
    """Return the repeat that covers most, of equals the shortest."""
    ops = [chain.digest(at, at + 1) for at in range(start, stop)]
    best, covered = None, 0
    # Two operators of one kind in a row are not a layer.
    for period in range(2, len(ops) // 2 + 1):
        differ = [at for at in range(len(ops) - period) if ops[at] != ops[at + period]]
        for left, right in pairwise([-1, *differ, len(ops) - period]):
            run = right - left - 1
            copies = run // period + 1
            if copies < 2 or copies * period <= covered:
                continue
            first, least = start + left + 1, None
            for begin in range(first, first + run % period + 1):
                cuts = _alike(chain, range(begin, begin + period * copies + 1, period))
                lost, size = len(set(cuts) - boundaries), cuts[-1] - cuts[0]
                more = size > covered or (size == covered and least is not None and lost < least)
                if len(cuts) > 2 and more:
                    best, covered, least = Piece(cuts[0], cuts[1], len(cuts) - 1), size, lost
    return best


def _alike(chain: Chain, cuts: range) -> range:
    """Return the part of `cuts` with the most copies in a row that are wired equally.

    Operators that are equal one by one may not be: one layer may show what the others hide.
    """
    digests = [chain.digest(a, b) for a, b in pairwise(cuts)]
    groups = [len(list(group)) for _, group in groupby(digests)]
    most = max(groups)
    before = sum(groups[: groups.index(most)])
    return cuts[before : before + most + 1]
