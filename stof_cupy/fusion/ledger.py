"""What a search has timed so far, what it may still spend, and what it made of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from stof_cupy.fusion.kernels import Setting
from stof_cupy.fusion.scheme import Scheme

__all__ = ["Budget", "Ledger", "Space", "Span", "Trial"]

Span: TypeAlias = "tuple[int, int]"


class Space(Protocol):
    """What there is to choose from: segments of operators, and settings of each.

    Operators are counted from 0; a span ``(start, stop)`` is a run of them.
    """

    @property
    def kinds(self) -> Sequence[str]:
        """Return the class of each operator."""

    def segments(self) -> Sequence[Span]:
        """Return all runs that can be one segment; every operator alone is among them."""

    def key(self, span: Span) -> str:
        """Return a name that equal segments share, so that they are timed once."""

    def settings(self, span: Span) -> Sequence[Setting]:
        """Return what a segment can be set to; at least one."""

    def predicted(self, span: Span, setting: Setting) -> float:
        """Return the time by analysis, seconds."""

    def measure(self, span: Span, setting: Setting) -> float:
        """Return the time by the clock, seconds; inf if it cannot be run."""


@dataclass(frozen=True)
class Budget:
    """What a search may spend.

    Attributes
    ----------
    seconds : float
        After which nothing more is timed; what was found till then counts.
    samples : int
        Settings timed of a segment when it is first met.
    prune : float
        A segment or setting that analysis expects to take that many times what it competes with is
        not timed.
    hope : float
        A segment that takes, at the setting that analysis holds best, that many times what it
        competes with is not timed at others.
    rounds : int
        Iterations of stage 2 at most.
    choices : int
        Settings of a segment that are looked at: those that analysis holds best.
    """

    seconds: float = math.inf
    samples: int = 3
    prune: float = 2.0
    hope: float = 1.15
    rounds: int = 32
    choices: int = 6


@dataclass(frozen=True)
class Trial:
    """One scheme that was tried.

    Attributes
    ----------
    stage : str
        ``"rules"``, ``"model"``, a move of stage 1, ``"join"`` or ``"sample"``.
    scheme : Scheme
    seconds : float
        Of all segments at their best settings so far; inf where analysis ruled it out.
    kept : bool
        Whether the search went on from it.
    timed : int
        Settings timed up to then.
    """

    stage: str
    scheme: Scheme
    seconds: float
    kept: bool
    timed: int


@dataclass
class Ledger:
    """Times by segment and setting, each taken once.

    Parameters
    ----------
    space : Space
    budget : Budget
    clock : callable
        Returns seconds; for tests.
    watch : callable, optional
        Called with every trial.
    """

    space: Space
    budget: Budget = field(default_factory=Budget)
    clock: Callable[[], float] = time.monotonic
    watch: Callable[[Trial], None] | None = None

    def __post_init__(self) -> None:
        self.trials: list[Trial] = []
        self.pruned = 0
        self._times: dict[tuple[str, Setting], float] = {}
        self._best: dict[str, tuple[float, Setting]] = {}
        self._by_model: dict[str, list[tuple[float, Setting]]] = {}
        self._start = self.clock()

    @property
    def timed(self) -> int:
        """How many settings of segments were timed."""
        return len(self._times)

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return self.clock() - self._start >= self.budget.seconds

    def time(self, span: Span, setting: Setting) -> float:
        """Return the time of a segment; taken if it is new and there is time, else inf."""
        key = self.space.key(span)
        if (key, setting) not in self._times:
            if self.spent:
                return math.inf
            seconds = self._times[key, setting] = self.space.measure(span, setting)
            if seconds < self._best.get(key, (math.inf, ()))[0]:
                self._best[key] = (seconds, setting)
        return self._times[key, setting]

    def best(self, span: Span) -> tuple[float, Setting]:
        """Return the best time of a segment and its setting; inf if none was timed."""
        found = self._best.get(self.space.key(span))
        return found or (math.inf, self.ranked(span)[0])

    def ranked(self, span: Span) -> list[Setting]:
        """Return settings by predicted time; those that are not worth timing are left out."""
        return [setting for _, setting in self._ranked(span)]

    def _ranked(self, span: Span) -> list[tuple[float, Setting]]:
        key = self.space.key(span)
        if key not in self._by_model:
            every = sorted((self.space.predicted(span, s), s) for s in self.space.settings(span))
            limit = every[0][0] * self.budget.prune
            likely = [each for each in every if each[0] <= limit]
            self._by_model[key] = likely[: self.budget.choices]
            self.pruned += len(every) - len(self._by_model[key])
        return self._by_model[key]

    def untimed(self, span: Span) -> list[Setting]:
        """Return what `ranked` has and nobody timed."""
        key = self.space.key(span)
        return [each for each in self.ranked(span) if (key, each) not in self._times]

    def known(self, span: Span) -> bool:
        """Whether a segment was timed."""
        return self.space.key(span) in self._best

    def cost(self, spans: Sequence[Span]) -> float:
        """Return the sum of the best times of segments."""
        return math.fsum(self.best(span)[0] for span in spans)

    def model(self, spans: Sequence[Span]) -> float:
        """Return the sum of the predicted times of segments at their best settings."""
        return math.fsum(self._ranked(span)[0][0] for span in spans)

    def note(self, stage: str, spans: Sequence[Span], seconds: float, kept: bool) -> None:
        """Write down a trial."""
        trial = Trial(stage, Scheme.from_spans(spans), seconds, kept, self.timed)
        self.trials.append(trial)
        if self.watch is not None:
            self.watch(trial)
