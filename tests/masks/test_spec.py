"""One-line mask specs."""

from __future__ import annotations

import re

import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError
from stof_cupy.masks import Pattern, from_spec, spec_help


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full", masks.full(300)),
        ("causal", masks.causal(300)),
        ("sliding:w=64", masks.sliding_window(300, window=64)),
        (" sliding : w = 64 , causal = 1 ", masks.sliding_window(300, window=64, causal=True)),
        ("sliding:w=64,causal=0", masks.sliding_window(300, window=64)),
        ("longformer:w=25,g=6", masks.longformer(300, window=25, global_tokens=6)),
        ("longformer:g=6,w=25", masks.longformer(300, window=25, global_tokens=6)),
        ("bigbird", masks.bigbird(300)),
        (
            "bigbird:w=1,g=0,r=2,block=16,seed=7",
            masks.bigbird(300, window_blocks=1, global_blocks=0, random_blocks=2, block=16, seed=7),
        ),
    ],
)
def test_specs(text: str, expected: Pattern) -> None:
    made = from_spec(text, 300)
    assert made.tobsr().equals(expected)
    assert repr(made) == repr(expected)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "one of full, causal, sliding:w=WINDOW"),
        ("slidng:w=3", r"'slidng:w=3', expected one of full, causal, .*bigbird"),
        ("sliding", "sliding:w=WINDOW.*; w missing"),
        ("longformer:w=3", "; g missing"),
        ("sliding:width=3", "'width=3' in 'sliding:width=3'"),
        ("sliding:w=3,w=4", "'w=4' in"),
        ("sliding:w=3.5", "'w=3.5' in"),
        ("sliding:w=--3", "'w=--3' in"),
        ("sliding:w", "'w' in"),
        ("causal:w=3", "'w=3' in 'causal:w=3', expected causal;"),
        ("sliding:w=-3", "window: got -3"),
    ],
)
def test_errors_say_what_is_known(text: str, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        from_spec(text, 100)


def test_help_lists_every_spec() -> None:
    lines = spec_help().splitlines()
    assert [re.match(r"\w+", line)[0] for line in lines] == [
        "full",
        "causal",
        "sliding",
        "longformer",
        "bigbird",
    ]
    assert "longformer:w=WINDOW,g=GLOBAL_TOKENS" in lines
    assert "sliding:w=WINDOW[,causal=CAUSAL]" in lines
    assert lines[-1].startswith("bigbird[:w=WINDOW_BLOCKS,g=GLOBAL_BLOCKS,")
