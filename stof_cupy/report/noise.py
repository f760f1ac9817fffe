"""How far a median, and a sum of logarithms of medians, may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from stof_cupy.report.results import Timing

__all__ = ["joint", "median_noise", "student"]

_SPREAD = 1.6832
"""Between the 20 % and the 80 % quantile of a normal distribution, in standard deviations."""


def median_noise(timing: Timing) -> float:
    """Return the standard error of a median as a share of it, from the spread of the rounds."""
    deviation = (timing.p80 - timing.p20) / _SPREAD
    return math.sqrt(math.pi / 2 / timing.rounds) * deviation / timing.p50


def joint(timings: Sequence[Timing], between: tuple[float, int]) -> tuple[float, float]:
    """Return the standard error of a sum of logarithms, and its degrees of freedom."""
    parts = [(median_noise(each) ** 2, each.rounds) for each in timings]
    variance, count = between
    parts.append((2 * variance, count))  # ours as well as the peer's
    total = math.fsum(square for square, _ in parts)
    if total == 0:
        return 0.0, math.inf
    lost = math.fsum(square * square / max(count - 1, 1) for square, count in parts)
    return math.sqrt(total), total * total / lost


def student(share: float, freedom: float) -> float:
    """Return a quantile of Student's distribution; with endless freedom of the normal one."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(share)
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))
