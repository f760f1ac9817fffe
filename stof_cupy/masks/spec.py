"""Masks from one line of text, for the command line: ``"longformer:w=256,g=64"``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks import block_patterns, patterns, sparse_patterns
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.neighborhoods import neighborhood

__all__ = ["check_spec", "from_spec", "spec_help"]


@dataclass(frozen=True)
class _Spec:
    """What a name stands for: a function, its parameters by key, and the keys it must be given.

    `least` returns, for those parameters, a sequence length that there is such a mask of.
    """

    build: Callable[..., Pattern]
    keys: dict[str, str]
    required: tuple[str, ...] = ()
    least: Callable[..., int] = lambda **_: 1


def _neighborhood(s: int, window: int, width: int = 0) -> Pattern:
    """Return the pattern on a line, or on an image of `width` columns."""
    if width and s % width:
        raise ArgumentError(mismatch("width", width, f"a divisor of {s}, the sequence length"))
    return neighborhood((s // width, width) if width else s, window=window)


def _least_neighborhood(window: int, width: int = 0) -> int:
    return max(window, 1) * max(abs(width), 1)


_WINDOW = {"w": "window", "causal": "causal"}
_RANDOM = {"r": "random_blocks", "block": "block", "seed": "seed"}

_SPECS = {
    "full": _Spec(patterns.full, {}),
    "causal": _Spec(patterns.causal, {}),
    "sliding": _Spec(patterns.sliding_window, _WINDOW, ("w",)),
    "dilated": _Spec(patterns.dilated, {"w": "window", "d": "dilation", **_WINDOW}, ("w", "d")),
    "prefix": _Spec(patterns.prefix_lm, {"n": "prefix"}, ("n",)),
    "sink": _Spec(patterns.sink_window, {"n": "sinks", "w": "window"}, ("n", "w")),
    "chunked": _Spec(
        patterns.chunked,
        {"n": "chunk", "before": "before", "after": "after", "causal": "causal"},
        ("n",),
    ),
    "global": _Spec(sparse_patterns.global_tokens, {"g": "tokens"}, ("g",)),
    "longformer": _Spec(
        sparse_patterns.longformer, {"w": "window", "g": "global_tokens"}, ("w", "g")
    ),
    "strided": _Spec(sparse_patterns.strided, {"n": "stride", "causal": "causal"}, ("n",)),
    "fixed": _Spec(
        sparse_patterns.fixed, {"n": "stride", "c": "summary", "causal": "causal"}, ("n", "c")
    ),
    "bigbird": _Spec(
        block_patterns.bigbird, {"w": "window_blocks", "g": "global_blocks", **_RANDOM}
    ),
    "bigbird-hf": _Spec(block_patterns.bigbird_hf, _RANDOM),
    "neighborhood": _Spec(
        _neighborhood, {"w": "window", "width": "width"}, ("w",), _least_neighborhood
    ),
}


def spec_help() -> str:
    """Return the known specs in one line each, for a command's help.

    Examples
    --------
    >>> print(spec_help().splitlines()[2])
    sliding:w=WINDOW[,causal=CAUSAL]
    """
    return "\n".join(_usage(name) for name in _SPECS)


def _usage(name: str) -> str:
    spec = _SPECS[name]
    items = {key: f"{key}={parameter.upper()}" for key, parameter in spec.keys.items()}
    needed = ",".join(items.pop(key) for key in spec.required)
    text = f"{name}:{needed}" if needed else name
    return text + (f"[{',' if needed else ':'}{','.join(items.values())}]" if items else "")


def from_spec(text: str, s: int) -> Pattern:
    """Return the pattern that `text` names, for `s` queries and keys.

    Parameters
    ----------
    text : str
        ``name`` or ``name:key=value,...`` with integer values, as `spec_help` lists them: ``full``,
        ``causal``, ``sliding:w=64``, ``sliding:w=64,causal=1``, ``longformer:w=256,g=64``,
        ``bigbird:w=3,g=2,r=3,block=64,seed=0``, ``neighborhood:w=7,width=64`` and more.
    s : int
        Sequence length.

    Raises
    ------
    ArgumentError
        If the name or a key is unknown, a key is missing or given twice, or a value is not an
        integer; the message lists what is known.

    Examples
    --------
    >>> from_spec("sliding:w=64", 1000)
    <Pattern (1000, 1000): sliding_window(window=64)>
    """
    spec, values = _parsed(text)
    return spec.build(s, **values)


def check_spec(text: str) -> None:
    """Raise ArgumentError if `text` names no mask, or one that no sequence can have.

    Examples
    --------
    >>> check_spec("neighborhood:w=3,width=8")
    >>> check_spec("sliding:w=-1")
    Traceback (most recent call last):
        ...
    stof_cupy.errors.ArgumentError: window: got -1, expected an integer of at least 0
    """
    spec, values = _parsed(text)
    spec.build(spec.least(**values), **values)


def _parsed(text: str) -> tuple[_Spec, dict[str, int]]:
    """Return what a text names, and its values by parameter."""
    if not isinstance(text, str):
        raise ArgumentError(mismatch("mask", repr(text), "a str such as 'sliding:w=64'"))
    name, colon, rest = (part.strip() for part in text.partition(":"))
    spec = _SPECS.get(name)
    if spec is None:
        raise ArgumentError(
            mismatch("mask", repr(text), f"one of {', '.join(map(_usage, _SPECS))}")
        )
    values: dict[str, int] = {}
    for item in rest.split(",") if colon else ():
        key, _, value = (part.strip() for part in item.partition("="))
        known = key in spec.keys and spec.keys[key] not in values
        if not (known and re.fullmatch("-?[0-9]{1,18}", value)):  # int64, not what int() takes
            got = f"{item.strip()!r} in {text!r}"
            raise ArgumentError(
                mismatch("mask", got, _usage(name), "each key once, integer values")
            )
        values[spec.keys[key]] = int(value)
    missing = [key for key in spec.required if spec.keys[key] not in values]
    if missing:
        raise ArgumentError(
            mismatch("mask", repr(text), _usage(name), f"{', '.join(missing)} missing")
        )
    return spec, values
