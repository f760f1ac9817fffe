"""From a graph to the fastest way to run it: pieces, the cache, the search, and a last look."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.fusion.bench import PieceSpace, Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.kernels import Setting
from stof_cupy.fusion.ledger import Budget, Ledger, Span, Trial
from stof_cupy.fusion.lower import Lowered, lower
from stof_cupy.fusion.pieces import Piece, pieces
from stof_cupy.fusion.report import PieceReport, Report
from stof_cupy.fusion.scheme import Scheme, differing
from stof_cupy.fusion.search import Outcome, two_stage
from stof_cupy.fusion.store import Found, SchemeStore, shapes_class
from stof_cupy.graph import Graph

__all__ = ["MODES", "Tuned", "tune"]

MODES: Mapping[str, Budget | None] = MappingProxyType(
    {
        "off": None,
        # A setting more is a kernel more to compile, which takes longer than to time it.
        "fast": Budget(seconds=4.0, samples=2, rounds=4, choices=4),
        "full": Budget(seconds=120.0, samples=5, rounds=32, choices=12),
    }
)
"""What each word of ``tune=`` may spend on a graph; None: the exact rewrites alone."""


_NUMBERED = ("kernel", "tile", "stream")
"""Parameters of settings that count from 0; others are at least 1."""


@dataclass(frozen=True)
class Tuned:
    """What runs, and how it came about."""

    lowered: Lowered
    report: Report


def tune(
    graph: Graph,
    site: Site,
    mode: str = "fast",
    *,
    seconds: float | None = None,
    store: SchemeStore | None = None,
    seed: int = 0,
    watch: Callable[[float, str], None] | None = None,
) -> Tuned:
    """Return the fastest way that is found to run a graph.

    Parameters
    ----------
    graph : Graph
        After `exact.structured`.
    site : Site
        Where it is to run; without a stopwatch analysis decides alone.
    mode : {"off", "fast", "full"}
        See :data:`MODES`.
    seconds : float, optional
        What the search may take, for another number than the mode's.
    store : SchemeStore, optional
        Asked first, and given what is found.
    seed : int
        Of what is drawn at random.
    watch : callable, optional
        Called as ``watch(share of the time that is spent, what is being done)``.

    Raises
    ------
    ArgumentError
        If there is no such mode.

    Examples
    --------
    >>> import numpy as np
    >>> from stof_cupy.fusion.cost import NUMPY
    >>> g = Graph("block")
    >>> x = g.input("x", ("batch", "seq", 64), "float")
    >>> one = g.constant("one", np.ones(64))
    >>> y = g.layer_norm(g.add(g.gemm(x, g.constant("w", np.eye(64))), x), one, one, eps=1e-5)
    >>> g.output("y", y)
    >>> tuned = tune(g, Site("numpy", "float32", None, NUMPY, {"batch": 4, "seq": 512}))
    >>> tuned.report.scheme.count
    3
    """
    if mode not in MODES:
        raise ArgumentError(mismatch("tune", repr(mode), " or ".join(map(repr, MODES))))
    budget = MODES[mode]
    if budget is not None and seconds is not None:
        budget = replace(budget, seconds=seconds)
    began = time.perf_counter()
    chain = Chain(graph)
    parts = pieces(chain)
    tuned = [_Piece(chain, part, site) for part in parts]
    if budget is not None and not all([each.recall(mode, store) for each in tuned]):
        site.compile(*(way for each in tuned if not each.cached for way in each.space.ways(budget)))
        weight = sum(part.stop - part.start for part in parts)
        with site.compiling(_lowered(chain, tuned, site)):  # what is timed is there already
            for number, each in enumerate(tuned):
                share = (each.piece.stop - each.piece.start) / weight
                allowed = replace(budget, seconds=budget.seconds * share)
                title = f"piece {number + 1} of {len(tuned)}"
                each.search(mode, allowed, store, seed, _told(watch, began, budget.seconds, title))
    return _finish(chain, tuned, site, mode, store, began)


def _told(
    watch: Callable[[float, str], None] | None, began: float, seconds: float, title: str
) -> Callable[[Trial], None] | None:
    if watch is None:
        return None

    def tell(trial: Trial) -> None:
        share = (time.perf_counter() - began) / seconds
        watch(min(share, 1.0), f"{title}: {trial.stage}, {trial.timed} timed")

    return tell


class _Piece:
    """One piece of the chain and its scheme, which is the rules' until it is searched."""

    def __init__(self, chain: Chain, piece: Piece, site: Site) -> None:
        self.piece = piece
        self.space = PieceSpace(chain, piece, site)
        self.rules = self.space.rules()
        self.outcome: Outcome | None = None
        self.cached = False
        self._site = site
        self._digest = chain.digest(piece.start, piece.stop)
        self._model = Ledger(self.space)
        self.spans: list[Span] = self.rules
        self.settings: list[Setting] = [()] * len(self.rules)

    def search(
        self,
        mode: str,
        budget: Budget,
        store: SchemeStore | None,
        seed: int,
        watch: Callable[[Trial], None] | None,
    ) -> None:
        if self.cached:
            return
        ledger = Ledger(self.space, budget, watch=watch)
        self.outcome = outcome = two_stage(ledger, self.rules, seed=seed)
        self.spans, self.settings = outcome.scheme.spans(), list(outcome.settings)
        self._model = ledger
        if store is not None and math.isfinite(outcome.seconds):
            store.put(self._problem(mode), Found(outcome.scheme, outcome.settings, outcome.seconds))

    def recall(self, mode: str, store: SchemeStore | None) -> bool:
        """Take what was found before; whether there is such."""
        found = None if store is None else self._stored(store, mode)
        if found is not None:
            self.spans, self.settings = found.scheme.spans(), list(found.settings)
            self.cached = True
        return self.cached

    def revert(self, store: SchemeStore | None, mode: str) -> None:
        """Go back to the rules, in the store too."""
        self.spans, self.settings = self.rules, [()] * len(self.rules)
        if store is not None:
            found = Found(
                Scheme.from_spans(self.rules), tuple(self.settings), self._model.cost(self.rules)
            )
            store.put(self._problem(mode), found)

    def _stored(self, store: SchemeStore, mode: str) -> Found | None:
        """Return what was found by a search of this mode or a longer one."""
        modes = list(MODES)
        for each in reversed(modes[modes.index(mode) :]):
            found = store.get(self._problem(each))
            if found is not None and self._runs(found):
                return found
        return None

    def _problem(self, mode: str) -> dict[str, Any]:
        site = self._site
        return {
            "mode": mode,
            "operators": self._digest,
            "device": site.machine.name,
            "backend": site.backend,
            "dtype": site.dtype,
            "shapes": shapes_class(site.sizes),
            "timed": site.stopwatch is not None,
        }

    def _runs(self, found: Found) -> bool:
        """Whether all segments are legal and their settings known here."""
        return found.scheme.count == len(self.space.kinds) and all(
            map(self._takes, found.scheme.spans(), found.settings)
        )

    def _takes(self, span: Span, setting: Setting) -> bool:
        """Whether a segment is legal and has settings of that form, at these sizes or others."""
        if span not in self.space.segments():
            return False
        if not setting and span in self.rules:
            return True
        forms = {tuple(name for name, _ in each) for each in self.space.settings(span)}
        right = all(value >= (name not in _NUMBERED) for name, value in setting)
        return right and tuple(name for name, _ in setting) in forms

    def whole(self, spans: Sequence[Span]) -> list[Span]:
        """Return spans in the whole chain, for every copy."""
        size = self.piece.stop - self.piece.start
        shifts = [self.piece.start + size * copy for copy in range(self.piece.copies)]
        return [(a + shift, b + shift) for shift in shifts for a, b in spans]

    def _shown(self, span: Span) -> str:
        setting = ", ".join(f"{name} {value}" for name, value in self._model.best(span)[1])
        return self.space.names(span) + (f" ({setting})" if setting else "")

    def report(self) -> PieceReport:
        """Return what was done, and what was gained where the scheme is not the rules'."""
        why = []
        for tuned, rules in differing(self.spans, self.rules):
            if all(map(self._model.known, (*tuned, *rules))):
                took, instead = self._model.cost(tuned), self._model.cost(rules)
                chosen = " | ".join(self._shown(span) for span in tuned)
                by_rules = " | ".join(self.space.names(span) for span in rules)
                why.append(f"{chosen}: {took * 1e6:.1f} us")
                why.append(f"  instead of {by_rules}: {instead * 1e6:.1f} us")
        return PieceReport(
            self.piece,
            tuple(self.space.names((at, at + 1)) for at in range(len(self.space.kinds))),
            Scheme.from_spans(self.spans),
            Scheme.from_spans(self.rules),
            tuple(self.settings),
            self.outcome,
            self.cached,
            tuple(why),
        )


def _finish(
    chain: Chain,
    tuned: Sequence[_Piece],
    site: Site,
    mode: str,
    store: SchemeStore | None,
    began: float,
) -> Tuned:
    """Lower all pieces; what was timed piece by piece is looked at once more as a whole."""
    lowered = _lowered(chain, tuned, site)
    seconds = rules_seconds = None
    changed = any(
        each.outcome is not None and (each.spans != each.rules or any(each.settings))
        for each in tuned
    )
    if changed and site.stopwatch is not None:
        rules = [span for each in tuned for span in each.whole(each.rules)]
        by_rules = lower(chain, rules, [()] * len(rules), site.backend)
        seconds, rules_seconds = site.seconds(lowered), site.seconds(by_rules)
        if rules_seconds < seconds:
            lowered = by_rules
            for each in tuned:
                each.revert(store, mode)
    report = Report(
        chain.graph.name,
        site.machine.name,
        dict(site.sizes),
        mode,
        site.stopwatch is not None,
        Scheme.from_spans([span for each in tuned for span in each.whole(each.spans)]),
        tuple(each.report() for each in tuned),
        time.perf_counter() - began,
        seconds,
        rules_seconds,
    )
    return Tuned(lowered, report)


def _lowered(chain: Chain, tuned: Sequence[_Piece], site: Site) -> Lowered:
    spans = [span for each in tuned for span in each.whole(each.spans)]
    settings = [s for each in tuned for _ in range(each.piece.copies) for s in each.settings]
    return lower(chain, spans, settings, site.backend)
