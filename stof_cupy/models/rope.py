"""The frequencies of rotary embeddings, with the scalings that let a model read longer texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.graph.frequencies import Frequencies
from stof_cupy.models.fields import Fields

__all__ = ["Rope", "read_rope", "rope_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rope:
    """Radians a position of each pair of elements, and the factor of what is turned."""

    frequency: Frequencies
    magnitude: float = 1.0


def read_rope(fields: Fields, head_dim: int, positions: int, base: float = 10000.0) -> Rope:
    """Return the rotary embedding that a config asks for.

    Parameters
    ----------
    fields : Fields
        Of the config: ``rope_theta`` and ``rope_scaling``, or ``rope_parameters`` with both.
    head_dim : int
    positions : int
        ``max_position_embeddings``.
    base : float
        Where the config does not say.

    Raises
    ------
    ConfigError
        If the scaling is of a kind not known here, or has a field that is wrong or unknown.
    """
    theta = fields.number("rope_theta", base)
    scaling = fields.raw("rope_scaling")
    both = fields.raw("rope_parameters")
    return rope_of(both or scaling or {}, head_dim, positions, theta)


def rope_of(scaling: Mapping[str, Any], head_dim: int, positions: int, base: float) -> Rope:
    """Return the rotary embedding of one scaling, whose own ``rope_theta`` comes before `base`.

    Examples
    --------
    >>> rope_of({}, 4, 100, 10000.0)
    Rope(frequency=<2 frequencies 1 to 0.01, 9d877756>, magnitude=1.0)
    """
    fields = Fields(scaling, "RoPE scaling", "rope_scaling")
    base = fields.number("rope_theta", base)
    newer, older = fields.raw("rope_type"), fields.raw("type")
    name = "type" if newer is None and older is not None else "rope_type"
    kind = fields.choice(name, _KINDS, "default")
    if head_dim % 2:
        raise fields.error("head_dim", "an even head dim")
    # In float32, as the models were trained.
    steps = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = (np.float32(1) / np.float32(base) ** steps).astype(np.float64)
    values, magnitude = kind(fields, plain, positions, base)
    fields.finish()
    with np.errstate(over="ignore"):
        if not np.isfinite(values.astype(np.float32)).all():
            raise fields.error("factor", "a scaling whose frequencies are finite")
    return Rope(Frequencies(values), magnitude)


def _default(fields: Fields, plain: Floats, positions: int, base: float) -> tuple[Floats, float]:
    return plain, 1.0


def _linear(fields: Fields, plain: Floats, positions: int, base: float) -> tuple[Floats, float]:
    """Positions interpolated: Chen et al., arXiv 2306.15595."""
    return plain / fields.number("factor"), 1.0


def _factors(fields: Fields, plain: Floats, positions: int, base: float) -> tuple[Floats, float]:
    """Divide each by its own factor, as GGUF files hold the result of a scaling."""
    given = fields.raw("factors", [])
    numbers = isinstance(given, list) and all(type(each) in (int, float) for each in given)
    factors = np.array(given if numbers else [], np.float64)
    if factors.shape != plain.shape or not (factors > 0).all():
        raise fields.error("factors", f"{len(plain)} positive numbers")
    return plain / factors, 1.0


def _llama3(fields: Fields, plain: Floats, positions: int, base: float) -> tuple[Floats, float]:
    """Long waves stretched, short ones kept, those between blended; as Llama 3.1 was published."""
    factor = fields.number("factor")
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    trained = fields.number("original_max_position_embeddings", positions)
    if high <= low:
        raise fields.error("high_freq_factor", f"more than low_freq_factor, {low:g}")
    turns = trained * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return plain * kept + plain / factor * (1 - kept), 1.0


def _yarn(fields: Fields, plain: Floats, positions: int, base: float) -> tuple[Floats, float]:
    """YaRN: Peng et al., arXiv 2309.00071."""
    factor = fields.number("factor")
    trained = fields.number("original_max_position_embeddings", positions)
    fast, slow = fields.number("beta_fast", 32), fields.number("beta_slow", 1)
    whole = fields.flag("truncate", True)
    dims = 2 * len(plain)

    def pair_that_turns(times: float) -> float:
        return dims * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    try:
        low, high = pair_that_turns(fast), pair_that_turns(slow)
        rounded = math.floor(low), math.ceil(high)
    except (ValueError, ArithmeticError):  # of a base of 1, or numbers near the ends of floats
        raise fields.error("rope_type", "a scaling whose numbers can be") from None
    if whole:
        low, high = rounded
    low, high = max(low, 0), min(high, dims - 1)
    stretched = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0, 1)
    values = plain * (1 - stretched) + plain / factor * stretched
    return values, _yarn_magnitude(fields, factor)


def _yarn_magnitude(fields: Fields, factor: float) -> float:
    given, m, m_all = (
        fields.optional(name) for name in ("attention_factor", "mscale", "mscale_all_dim")
    )
    if given is not None:
        return given

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    return grown(m) / grown(m_all) if m and m_all else grown(1)


_Kind = Callable[[Fields, Floats, int, float], tuple[Floats, float]]

_KINDS: Mapping[str, _Kind] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "factors": _factors,
}
"""``rope_type`` -> ``(fields, unscaled, positions, base) -> frequencies, magnitude``."""
