"""One-line mask specs."""

from __future__ import annotations

import re

import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError
from stof_cupy.masks import Pattern, from_spec, spec_help
from stof_cupy.masks.spec import check_spec


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
        ("bigbird-hf:r=2,block=32", masks.bigbird_hf(300, random_blocks=2, block=32)),
        ("dilated:w=2,d=30,causal=1", masks.dilated(300, window=2, dilation=30, causal=True)),
        ("prefix:n=70", masks.prefix_lm(300, prefix=70)),
        ("sink:n=4,w=20", masks.sink_window(300, sinks=4, window=20)),
        ("chunked:n=64,before=1", masks.chunked(300, chunk=64, before=1)),
        ("global:g=4", masks.global_tokens(300, 4)),
        ("strided:n=16", masks.strided(300, stride=16)),
        ("fixed:n=16,c=2,causal=0", masks.fixed(300, stride=16, summary=2, causal=False)),
        ("neighborhood:w=7", masks.neighborhood(300, window=7)),
        ("neighborhood:w=7,width=20", masks.neighborhood((15, 20), window=7)),
        (
            "bigbird:w=1,g=0,r=2,block=16,seed=7",
            masks.bigbird(300, window_blocks=1, global_blocks=0, random_blocks=2, block=16, seed=7),
        ),
    ],
)
def test_specs(text: str, expected: Pattern) -> None:
    check_spec(text)
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
        ("neighborhood:w=3,width=7", "width: got 7, expected a divisor of 100"),
        ("causal:w=3", "'w=3' in 'causal:w=3', expected causal;"),
        ("sliding:w=-3", "window: got -3"),
    ],
)
def test_errors_say_what_is_known(text: str, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        from_spec(text, 100)


def test_help_lists_every_spec() -> None:
    lines = spec_help().splitlines()
    names = [re.match(r"[\w-]+", line)[0] for line in lines]
    assert {"full", "causal", "sliding", "longformer", "bigbird", "neighborhood"} <= set(names)
    for line in lines:  # what the help says is what is taken
        text = re.sub(r"=[A-Z_]+", "=1", line.replace("[", "").replace("]", ""))
        assert from_spec(text, 100).shape == (100, 100)
    assert "longformer:w=WINDOW,g=GLOBAL_TOKENS" in lines
    assert "sliding:w=WINDOW[,causal=CAUSAL]" in lines
    assert (
        "bigbird[:w=WINDOW_BLOCKS,g=GLOBAL_BLOCKS,r=RANDOM_BLOCKS,block=BLOCK,seed=SEED]" in lines
    )


@pytest.mark.parametrize(
    "text",
    [
        "sliding:w=-1",
        "neighborhood:w=0",
        "neighborhood:w=-2,width=4",
        "neighborhood:w=2,width=-4",
        "neighborhood:w=5,width=4",
    ],
)
def test_what_no_length_has_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        check_spec(text)
