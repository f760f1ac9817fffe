"""The search on spaces that are tables: what it finds, what it spends, and never does worse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.fusion.baselines import exhaustive, greedy_rules, random_search
from stof_cupy.fusion.ledger import Budget, Ledger, Span
from stof_cupy.fusion.moves import moves
from stof_cupy.fusion.scheme import Scheme
from stof_cupy.fusion.search import cheapest, two_stage

PAPER = ["CI", "MI", "CI", "MI", "MI", "MI", "CI", "CI", "MI", "MI", "CI", "MI", "CI", "MI", "MI"]


def legal(kinds: Sequence[str], longest: int = 5) -> list[Span]:
    """Runs with at most two CI, the first of them in front."""
    found = []
    for a in range(len(kinds)):
        for b in range(a + 1, min(a + longest, len(kinds)) + 1):
            part = kinds[a:b]
            if part.count("CI") <= 2 and (part[0] == "CI" or "CI" not in part):
                found.append((a, b))
    return found


class Table:
    """A space of made-up times: fusing pays or not by chance, settings have an optimum, and the
    analysis is right up to a factor that has a spread of its own."""

    def __init__(self, seed: int, kinds: Sequence[str] = PAPER, wrong: float = 0.15) -> None:
        self.kinds, rng = kinds, np.random.default_rng(seed)
        alone = [10.0 if kind == "CI" else 3.0 for kind in kinds]
        self.times: dict[tuple[Span, Any], float] = {}
        self.guess: dict[tuple[Span, Any], float] = {}
        self.asked: list[tuple[Span, Any]] = []
        for a, b in legal(kinds):
            base = sum(alone[a:b]) * (rng.uniform(0.6, 1.25) if b - a > 1 else 1)
            best = rng.integers(0, 24)
            for number in range(24):
                setting = (("rows", number),)
                time = base * (1 + 0.002 * (number - best) ** 2)
                self.times[(a, b), setting] = time * 1e-6
                self.guess[(a, b), setting] = time * 1e-6 * rng.lognormal(0, wrong)

    def segments(self) -> list[Span]:
        return legal(self.kinds)

    def key(self, span: Span) -> str:
        return str(span)

    def settings(self, span: Span) -> list[Any]:
        return [setting for each, setting in self.times if each == span]

    def predicted(self, span: Span, setting: Any) -> float:
        return self.guess[span, setting]

    def measure(self, span: Span, setting: Any) -> float:
        self.asked.append((span, setting))
        return self.times[span, setting]


def alone(space: Table) -> list[Span]:
    return [(i, i + 1) for i in range(len(space.kinds))]


def test_cheapest_is_the_best_of_all_schemes() -> None:
    rng = np.random.default_rng(0)
    kinds = PAPER[:8]
    for _ in range(20):
        cost = {span: rng.random() * (span[1] - span[0]) for span in legal(kinds)}
        found = cheapest(8, legal(kinds), cost.__getitem__)
        every = [
            Scheme.from_bits((0, *bits)).spans() for bits in itertools.product((0, 1), repeat=7)
        ]
        sums = [sum(cost[s] for s in spans) for spans in every if set(spans) <= set(cost)]
        assert sum(cost[span] for span in found) == pytest.approx(min(sums))


def test_within_three_percent_of_exhaustive_for_a_fifth_of_the_timings() -> None:
    worse, shares = [], []
    for seed in range(12):
        space, all_of_it = Table(seed), Table(seed)
        found = two_stage(Ledger(space), alone(space), seed=seed)
        best = exhaustive(Ledger(all_of_it))
        worse.append(found.seconds / best.seconds)
        shares.append(best.timed / found.timed)
        assert found.timed == len(space.asked) == len(set(space.asked))
        assert found.seconds == pytest.approx(
            sum(
                space.times[s, o] for s, o in zip(found.scheme.spans(), found.settings, strict=True)
            )
        )
    assert np.mean(worse) < 1.03
    assert min(shares) >= 5


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.floats(0, 1.5), st.booleans(), st.booleans())
def test_never_worse_than_the_rules(seed: int, wrong: float, stage2: bool, reward: bool) -> None:
    space = Table(seed, PAPER[:9], wrong)
    rules = Ledger(Table(seed, PAPER[:9], wrong))
    greedy = greedy_rules(rules, alone(space))
    ledger = Ledger(space)
    found = two_stage(ledger, alone(space), seed=seed, stage2=stage2, reward=reward)
    assert found.seconds <= greedy.seconds
    kept = [trial.seconds for trial in found.trials if trial.kept]
    assert kept == sorted(kept, reverse=True) and found.seconds == kept[-1]
    assert set(found.scheme.spans()) <= set(space.segments())


def test_equal_segments_are_timed_once() -> None:
    class Layers(Table):
        def key(self, span: Span) -> str:
            return f"{span[0] % 3}+{span[1] - span[0]}"

    space = Layers(3, ["CI", "MI", "MI"] * 4)
    for (a, b), setting in list(space.times):
        same = (a % 3, a % 3 + b - a)
        space.times[(a, b), setting] = space.times[same, setting]
        space.guess[(a, b), setting] = space.guess[same, setting]
    found = two_stage(Ledger(space), alone(space))
    assert len({(space.key(span), setting) for span, setting in space.asked}) == len(space.asked)
    whole, timed_once = Ledger(Table(3, ["CI", "MI", "MI"] * 4)), found.timed
    assert two_stage(whole, alone(space)).timed > 1.5 * timed_once


def test_reward_and_stage_two_pay() -> None:
    def mean(**options: Any) -> float:
        return float(
            np.mean(
                [
                    two_stage(
                        Ledger(Table(s), Budget(rounds=4)), alone(Table(s)), seed=s, **options
                    ).seconds
                    for s in range(15)
                ]
            )
        )

    full, equal, none = mean(), mean(reward=False), mean(stage2=False)
    assert full < none and equal < none


def test_random_search_needs_more() -> None:
    lost = 0
    for seed in range(8):
        found = two_stage(Ledger(Table(seed)), alone(Table(seed)), seed=seed)
        chance = random_search(Ledger(Table(seed)), found.timed, seed=seed)
        assert found.timed <= chance.timed <= found.timed + len(PAPER)
        lost += chance.seconds > found.seconds
    assert lost == 8


def test_time_ends_the_search_with_what_was_found() -> None:
    now = itertools.count()
    for allowed in (0, 1, 5, 40, 200):
        space = Table(1)
        ledger = Ledger(space, Budget(seconds=allowed), clock=lambda: float(next(now)))
        found = two_stage(ledger, alone(space))
        assert len(space.asked) <= allowed
        assert set(found.scheme.spans()) <= set(space.segments())
        assert len(found.settings) == len(found.scheme.sizes)
        if not allowed:
            assert found.scheme == Scheme.single(15) and found.seconds == math.inf


def test_what_cannot_be_run_is_not_chosen() -> None:
    space = Table(2)
    for key in space.times:
        if key[0] == (0, 2) or key[1] == (("rows", 3),):
            space.times[key] = math.inf
    found = two_stage(Ledger(space), alone(space))
    assert math.isfinite(found.seconds) and (0, 2) not in found.scheme.spans()


def test_hopeless_segments_are_not_timed() -> None:
    space = Table(4, wrong=0)
    for span, setting in space.times:
        if span[1] - span[0] > 1:
            space.times[span, setting] *= 10
            space.guess[span, setting] *= 10
    ledger = Ledger(space)
    found = two_stage(ledger, alone(space))
    assert found.scheme == Scheme.single(15)
    assert {b - a for (a, b), _ in space.asked} == {1} and found.pruned > 10


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("0 1 00000 11 0 111 00", "00 11111 00 1 000 11", "seize"),
        ("00 11111 00 1 000 11", "00 11111 00 1 0000 1", "seize"),
        ("00 11111 00 1 0000 1", "00 11111 000 1111 0", "compete"),
    ],
)
def test_figure_8_of_the_paper(before: str, after: str, name: str) -> None:
    spans = Scheme.from_bits(before).spans()
    free = [(a, b) for a in range(15) for b in range(a + 1, 16)]
    found = {Scheme.from_spans(m.apply(spans)): m.name for m in moves(spans, PAPER, free)}
    if name == "compete":  # the norm is between two segments with CI
        wanted = [m for m in moves(spans, PAPER, free) if m.name == "compete"]
        assert wanted[0].new == ((7, 10),)  # one CI, the other segment has two
    assert found[Scheme.from_bits(after)] in (name, "expand")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["CI", "MI"]), min_size=1, max_size=10), st.data())
def test_a_move_changes_what_it_says_and_stays_legal(kinds: list[str], data: Any) -> None:
    allowed = legal(kinds)
    cost = {span: data.draw(st.integers(1, 9)) for span in allowed}
    spans = cheapest(len(kinds), allowed, cost.__getitem__)
    for move in moves(spans, kinds, allowed):
        after = move.apply(spans)
        assert after != spans and set(after) <= set(allowed)
        assert Scheme.from_spans(after).count == len(kinds)
        assert move.old[0][0] == move.new[0][0] and move.old[-1][1] == move.new[-1][1]
