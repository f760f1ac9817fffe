"""The two-stage search: which operators run as one, and with which settings.

Source: STOF (arXiv 2506.06095), section 4.4. Where the paper leaves a rule open, or where its rule
can be beaten at no cost, the docstrings say what is done here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stof_cupy.fusion.kernels import Setting
from stof_cupy.fusion.ledger import Ledger, Span, Trial
from stof_cupy.fusion.moves import moves
from stof_cupy.fusion.scheme import Scheme

__all__ = ["Outcome", "cheapest", "two_stage"]

_NOTHING = 0.003
"""Share of a time that is not worth a move or another iteration; timings vary by more."""


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Attributes
    ----------
    scheme : Scheme
    settings : tuple of Setting
        One a segment.
    seconds : float
        Sum over the segments.
    trials : tuple of Trial
        In order.
    timed, pruned : int
        Settings timed, and schemes or settings that analysis ruled out.
    """

    scheme: Scheme
    settings: tuple[Setting, ...]
    seconds: float
    trials: tuple[Trial, ...]
    timed: int
    pruned: int

    @classmethod
    def of(cls, ledger: Ledger, spans: Sequence[Span]) -> Outcome:
        """Return a scheme at the best settings that a ledger has."""
        best = [ledger.best(span) for span in spans]
        return cls(
            Scheme.from_spans(spans),
            tuple(setting for _, setting in best),
            math.fsum(seconds for seconds, _ in best),
            tuple(ledger.trials),
            ledger.timed,
            ledger.pruned,
        )


def cheapest(count: int, segments: Sequence[Span], cost: Callable[[Span], float]) -> list[Span]:
    """Return the scheme of least total cost, by dynamic programming over where segments end.

    Examples
    --------
    >>> cheapest(3, [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3)], lambda span: 1.0)
    [(0, 1), (1, 3)]
    """
    best: list[tuple[float, int]] = [(0.0, 0)] + [
        (math.inf, stop - 1) for stop in range(1, count + 1)
    ]
    for start, stop in sorted(segments, key=lambda span: (span[1], span[0])):
        total = best[start][0] + cost((start, stop))
        if total < best[stop][0]:
            best[stop] = (total, start)
    spans, stop = [], count
    while stop:
        start = best[stop][1]
        spans.append((start, stop))
        stop = start
    return spans[::-1]


def two_stage(
    ledger: Ledger,
    rules: Sequence[Span],
    *,
    seed: int = 0,
    stage2: bool = True,
    reward: bool = True,
) -> Outcome:
    """Search.

    The first scheme is the better of `rules` and of what analysis holds best of all schemes. The
    result is never worse than `rules` as far as timed: both are timed before anything else.

    Parameters
    ----------
    ledger : Ledger
        Of the space; says what may be spent.
    rules : sequence of Span
        The scheme of the exact rewrites.
    seed : int
        Of the random settings.
    stage2 : bool
        Whether settings are sampled after the scheme is found; for ablation.
    reward : bool
        Whether segments that gain are sampled more; for ablation.
    """
    rng = random.Random(seed)
    space = ledger.space
    segments, count = space.segments(), len(space.kinds)
    model = cheapest(count, segments, lambda span: ledger.model([span]))
    spans, seconds = list(rules), math.inf
    for stage, each in (("rules", list(rules)), ("model", model)):
        _sample(ledger, each, rng)
        cost = ledger.cost(each)
        kept = cost < seconds
        ledger.note(stage, each, cost, kept)
        if kept:
            spans, seconds = each, cost
    spans = _joined(ledger, _stage1(ledger, spans, rng))
    if stage2:
        _stage2(ledger, spans, rng, reward)
        spans = _joined(ledger, spans)
    return Outcome.of(ledger, spans)


def _sample(
    ledger: Ledger, spans: Sequence[Span], rng: random.Random, limit: float = math.inf
) -> None:
    """Time a few settings of segments that are new: the best by analysis, then random ones.

    The paper draws all of them at random; which of them analysis holds best is known for nothing,
    and if with that one the segments take longer than `limit`, the others will not be tried.
    """
    new = [span for span in spans if not ledger.known(span)]
    for span in new:
        ledger.time(span, ledger.ranked(span)[0])
    if ledger.cost(spans) > limit:
        return
    for span in new:
        others = ledger.ranked(span)[1:]
        for setting in rng.sample(others, min(len(others), ledger.budget.samples - 1)):
            ledger.time(span, setting)


def _stage1(ledger: Ledger, spans: list[Span], rng: random.Random) -> list[Span]:
    """Go depth-first from scheme to scheme: keep a move that pays, take back one that does not."""
    space, legal = ledger.space, set(ledger.space.segments())
    tried = {tuple(spans)}
    moved = True
    while moved and not ledger.spent:
        moved = False
        for move in moves(spans, space.kinds, legal):
            candidate = move.apply(spans)
            if tuple(candidate) in tried:
                continue
            tried.add(tuple(candidate))
            if ledger.model(move.new) > ledger.model(move.old) * ledger.budget.prune:
                ledger.pruned += 1
                continue
            _sample(ledger, move.new, rng, ledger.cost(move.old) * ledger.budget.hope)
            pays = ledger.cost(move.new) < ledger.cost(move.old) * (1 - _NOTHING)
            ledger.note(move.name, candidate, ledger.cost(candidate), pays)
            if pays:
                spans, moved = candidate, True
                break
    return spans


def _joined(ledger: Ledger, spans: list[Span]) -> list[Span]:
    """Return the best scheme of all segments that were timed, which takes no more timing."""
    known = [span for span in ledger.space.segments() if ledger.known(span)]
    best = cheapest(len(ledger.space.kinds), known, lambda span: ledger.best(span)[0])
    if ledger.cost(best) < ledger.cost(spans) * (1 - _NOTHING):
        ledger.note("join", best, ledger.cost(best), True)
        return best
    return spans


def _stage2(ledger: Ledger, spans: list[Span], rng: random.Random, reward: bool) -> None:
    """Sample settings: equal shares first, then one more for the segment that gained most.

    Of a share, half are those that analysis holds best, half are random. Each iteration has as many
    as the one before: the segment that gained least gives one up. It ends when nothing is left to
    try, or two iterations gained next to nothing.
    """
    distinct = list({ledger.space.key(span): span for span in spans}.values())
    weight = {
        span: sum(ledger.space.key(s) == ledger.space.key(span) for s in spans) for span in distinct
    }
    share = dict.fromkeys(distinct, ledger.budget.samples)
    idle = 0
    for _ in range(ledger.budget.rounds):
        gain = dict.fromkeys(distinct, 0.0)
        for span in distinct:
            before = ledger.best(span)[0]
            for setting in _drawn(ledger.untimed(span), share[span], rng):
                ledger.time(span, setting)
            gain[span] = (before - ledger.best(span)[0]) * weight[span]
        total = math.fsum(gain.values())
        ledger.note("sample", spans, ledger.cost(spans), total > 0)
        idle = 0 if total > _NOTHING * ledger.cost(spans) else idle + 1
        if ledger.spent or idle == 2 or not any(map(ledger.untimed, distinct)):
            return
        if reward and total > 0:
            winner = max(distinct, key=lambda span: gain[span])
            givers = [span for span in distinct if span is not winner and share[span] > 1]
            if givers:
                share[min(givers, key=lambda span: (gain[span], -share[span]))] -= 1
                share[winner] += 1


def _drawn(ranked: Sequence[Setting], count: int, rng: random.Random) -> list[Setting]:
    first = -(-count // 2)
    others = list(ranked[first:])
    return [*ranked[:first], *rng.sample(others, min(len(others), count - first))]
