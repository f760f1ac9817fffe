"""Text to ids: a tokenizer file's own padding and truncation are not heard."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointNotFoundError,
    DTypeError,
    MissingDependencyError,
    StofWarning,
)
from stof_cupy.models.tokenizer import Tokenizer, pad
from tests.goldens.cases import T5

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "to", "be", "or", "not"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A word-level tokenizer saved, as real ones are, with padding to 9 and truncation to 3."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, processors

    backend = Backend(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.enable_padding(length=9)
    backend.enable_truncation(3)
    file = tmp_path / "tokenizer.json"
    backend.save(str(file))
    return file


def test_neither_padded_nor_cut(path):
    rows = Tokenizer(path, 8)(["to be or not to be", "be", ""], 100)
    assert rows == [[2, 4, 5, 6, 7, 4, 5, 3], [2, 5, 3], [2, 3]]


def test_long_texts_are_cut_before_the_closing_token_and_warned_of(path):
    with pytest.warns(StofWarning, match="2 of 3 are longer than 5 tokens.*number 1") as caught:
        rows = Tokenizer(path, 8)(["be", "to be or not", "not to be or"], 5)
    assert rows == [[2, 5, 3], [2, 4, 5, 6, 3], [2, 7, 4, 5, 3]]
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("texts", ["to be", [b"to be"], b"to be", [["to"]], [None], None, 3])
def test_only_sequences_of_str(path, texts):
    with pytest.raises(DTypeError, match="sequence of str"):
        Tokenizer(path, 9)(texts, 9)


def test_a_generator_is_read_once(path):
    assert Tokenizer(path, 8)((text for text in ["to", "be"]), 9) == [[2, 4, 3], [2, 5, 3]]


def test_lone_surrogate_is_named(path):
    with pytest.raises(ArgumentError, match=r"sentences\[1\]: got '\\ud800'"):
        Tokenizer(path, 8)(["be", "\ud800"], 9)


def test_special_tokens_need_room(path):
    assert Tokenizer(path, 8)([""], 2) == [[2, 3]]
    with pytest.raises(ArgumentError, match="max_length: got 1, expected at least 2"):
        Tokenizer(path, 8)([""], 1)


def test_tokenizer_of_another_model(path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*ids up to 7.*vocab_size.*is 7"):
        Tokenizer(path, 7)


def test_lower_case(path):
    assert Tokenizer(path, 8, lower_case=True)(["TO be"], 9) == [[2, 4, 5, 3]]
    assert Tokenizer(path, 8)(["TO be"], 9) == [[2, 1, 5, 3]]


@pytest.mark.parametrize("text", ["", "{}", "not json"])
def test_unreadable_file(path, text):
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(path, 9)


CHARSMAPS = {
    "nothing": "",
    "three bytes": "AAAA",
    "a table of 4 GB": "//////////8=",  # for which the library would set 8 GB aside
    "no base64": "!!!!",
    "no text": 3,
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("charsmap", CHARSMAPS.values(), ids=CHARSMAPS)
def test_a_character_map_that_is_cut_short_is_not_read(path, charsmap, nested, monkeypatch):
    file = json.loads(path.read_text())
    normal = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    file["normalizer"] = {"type": "Sequence", "normalizers": [normal]} if nested else normal
    path.write_text(json.dumps(file).replace("Precompiled", "\\u0050recompiled"))
    monkeypatch.setattr(tokenizers.Tokenizer, "from_file", lambda path: pytest.fail("read"))
    with pytest.raises(CheckpointError, match="a charsmap"):
        Tokenizer(path, 9)


FAILING = {
    "no unknown token": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}},
    "no unknown piece": {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}},
    "a panic: a map that points beyond itself": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////9h"}
    },
    "a panic: an expression without end": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    },
}


@pytest.mark.parametrize("change", FAILING.values(), ids=FAILING)
def test_a_tokenizer_that_fails_is_named(path, change):
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    tokenizer = Tokenizer(path, 8)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: got unable to encode"):
        tokenizer(["to be a\u0301 " + 40 * "a" + "b"], 9)


def test_what_is_no_trouble_of_the_tokenizer_is_not_caught(path, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizers.Tokenizer, "from_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Tokenizer(path, 9)


@pytest.mark.parametrize("token", [-1, 2**32, "a", None, 1.0])
def test_only_ids_are_decoded(path, token):
    assert Tokenizer(path, 8).decode([[4, np.int64(5)]]) == ["to be"]
    with pytest.raises(ArgumentError, match="token: got"):
        Tokenizer(path, 8).decode([[4], [token]])


def test_missing_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'stof-cupy\[models\]'"):
        Tokenizer(path, 9)


def test_pad():
    ids, lengths = pad([[1], [], [2, 3]], value=7)
    assert ids.dtype == lengths.dtype == np.int32
    assert ids.tolist() == [[1, 7], [7, 7], [2, 3]] and lengths.tolist() == [1, 0, 2]
    assert pad([])[0].shape == (0, 0)


def test_a_tokenizer_of_ones_own(tmp_path):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a"))
    words.save(str(tmp_path / "words.json"))
    how = {"config": T5, "backend": "numpy"}
    weights = models.random_weights(T5)
    engine = TransformerEngine(weights, tokenizer=tmp_path / "words.json", **how)
    assert engine.tokenize(["b"]) == [[1]]
    with pytest.raises(CheckpointNotFoundError, match=r"tokenizer: got '.*none\.json'"):
        TransformerEngine(weights, tokenizer=tmp_path / "none.json", **how)
