"""Tokenizers out of GGUF metadata: both kinds, against what their rules say by hand."""

from __future__ import annotations

import pytest

from stof_cupy.errors import CheckpointError, UnsupportedError
from stof_cupy.models.gguf_tokenizer import tokenizer_of

tokenizers = pytest.importorskip("tokenizers")


def made(**own: object):
    fields = {f"tokenizer.ggml.{name}": value for name, value in own.items()}
    return tokenizer_of(fields, tokenizers, "x.gguf")


def bytes_(**own: object) -> dict:
    tokens = ["<s>", "a", "b", "1", "2", "\u0120", "ab", "\u0120a", "12"]
    merges = ["a b", "\u0120 a", "1 2"]
    return {"model": "gpt2", "tokens": tokens, "merges": merges, **own}


def pieces(**own: object) -> dict:
    tokens = [
        "<unk>",
        "<s>",
        "\u2581",
        "a",
        "b",
        "ab",
        "\u2581ab",
        "<0xC3>",
        "<0xA9>",
        "\u2581\u2581",
    ]
    scores = [0.0, 0, -5, -6, -7, -1, -2, 0, 0, 0]
    types = [2, 3, 1, 1, 1, 1, 1, 6, 6, 4]
    return {
        "model": "llama", "tokens": tokens, "scores": scores, "token_type": types,
        "unknown_token_id": 0, "add_space_prefix": False, **own,
    }  # fmt: skip


def test_bytes():
    plain = made(**bytes_(pre="gpt-2"))
    assert plain.encode("ab a ab 12").ids == [6, 7, 5, 6, 5, 8]
    assert plain.decode([6, 7, 2, 8]) == "ab ab12"
    digits = made(**bytes_(pre="smollm"))
    assert digits.encode("ab12").ids == [6, 3, 4]
    start = made(**bytes_(token_type=[3] + [1] * 8, bos_token_id=0, add_bos_token=True))
    assert start.encode("ab").ids == [0, 6] and start.encode("<s>a").ids == [0, 0, 1]
    assert start.decode([0, 6]) == "ab"


def test_pieces():
    plain = made(**pieces())
    assert plain.encode("ab ab").ids == [5, 6]
    assert plain.encode("a  ab").ids == [3, 9, 5]  # the user's token is found first
    assert plain.encode("\u00e9").ids == [7, 8] and plain.decode([7, 8]) == "\u00e9"
    assert plain.encode("<s>ab").ids == [1, 5] and plain.decode([1, 5, 6]) == "ab ab"
    prefixed = made(**pieces(add_space_prefix=True))
    assert prefixed.encode("ab").ids == [6] and prefixed.decode([6]) == "ab"


@pytest.mark.parametrize(
    ("own", "error", "match"),
    [
        ({}, CheckpointError, "tokens"),
        ({"tokens": ["a"], "token_type": [1, 1]}, CheckpointError, "as many of both"),
        ({"tokens": ["a"], "model": "bert"}, UnsupportedError, "'bert'"),
        (bytes_(pre="odd"), UnsupportedError, "'odd'"),
        (bytes_(merges=["a b c"]), CheckpointError, "pairs"),
        (bytes_(merges=["x y"]), CheckpointError, "unusable"),
        (pieces(scores=[1.0]), CheckpointError, "scores"),
    ],
)
def test_what_does_not_fit_is_refused(own, error, match):
    with pytest.raises(error, match=match):
        made(**own)
