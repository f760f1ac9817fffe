"""What the two-stage search is compared with, on the same ledger: rules, chance, and everything."""

from __future__ import annotations

import random
from collections.abc import Sequence

from stof_cupy.fusion.ledger import Ledger, Span
from stof_cupy.fusion.search import Outcome, cheapest

__all__ = ["exhaustive", "greedy_rules", "random_search"]


def exhaustive(ledger: Ledger) -> Outcome:
    """Time every setting of every segment, and return the best scheme of them."""
    space = ledger.space
    for span in space.segments():
        for setting in space.settings(span):
            ledger.time(span, setting)
    spans = cheapest(len(space.kinds), space.segments(), lambda span: ledger.best(span)[0])
    ledger.note("exhaustive", spans, ledger.cost(spans), True)
    return Outcome.of(ledger, spans)


def greedy_rules(ledger: Ledger, rules: Sequence[Span]) -> Outcome:
    """Time the exact rewrites alone, at the settings that analysis holds best."""
    for span in rules:
        ledger.time(span, ledger.ranked(span)[0])
    ledger.note("rules", rules, ledger.cost(rules), True)
    return Outcome.of(ledger, rules)


def random_search(ledger: Ledger, timings: int, *, seed: int = 0) -> Outcome:
    """Draw schemes and settings at random until `timings` were timed; return the best scheme.

    Every legal next segment is equally likely, and every setting of it.
    """
    rng = random.Random(seed)
    space, count = ledger.space, len(ledger.space.kinds)
    by_start: dict[int, list[Span]] = {}
    for span in space.segments():
        by_start.setdefault(span[0], []).append(span)
    best: list[Span] = []
    # Equal draws cost nothing, so their number is bounded as well.
    for _ in range(100 * timings):
        if ledger.spent or (best and ledger.timed >= timings):
            break
        spans, at = [], 0
        while at < count:
            spans.append(rng.choice(by_start[at]))
            at = spans[-1][1]
        for span in spans:
            ledger.time(span, rng.choice(list(space.settings(span))))
        kept = not best or ledger.cost(spans) < ledger.cost(best)
        best = spans if kept else best
        ledger.note("random", spans, ledger.cost(spans), kept)
    return Outcome.of(ledger, best)
