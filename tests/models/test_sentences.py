"""What a checkpoint says of sentences is heard, and what is not done here is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stof_cupy.errors import ConfigError
from stof_cupy.models.sentences import SentenceConfig

MODES = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": False}


def write(root: Path, name: str, value: object) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(json.dumps(value))


def modules(*names: str) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.models.{name}"} for name in names]


def test_nothing_said(tmp_path):
    assert SentenceConfig.read(tmp_path) == SentenceConfig("mean", None, False)


@pytest.mark.parametrize(
    ("given", "pooling"),
    [
        (MODES | {"pooling_mode_mean_tokens": True}, "mean"),
        (MODES | {"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_said(tmp_path, given, pooling):
    write(tmp_path, "modules.json", modules("Transformer", "Pooling", "Normalize"))
    write(tmp_path, "1_Pooling/config.json", given)
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 256, "do_lower_case": True})
    assert SentenceConfig.read(tmp_path) == SentenceConfig(pooling, 256, True)


def test_pooling_is_described_where_the_modules_say(tmp_path):
    listed = modules("Transformer", "Pooling")
    listed[1]["path"] = "2_Pooling"
    write(tmp_path, "modules.json", listed)
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode": "mean"})
    write(tmp_path, "2_Pooling/config.json", {"pooling_mode": "cls"})
    assert SentenceConfig.read(tmp_path).pooling == "cls"


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("1_Pooling/config.json", MODES, r"pooling modes \[\]"),
        ("1_Pooling/config.json", MODES | {"pooling_mode_max_tokens": True}, "max_tokens"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "cls_token.*mean_tokens",
        ),
        ("1_Pooling/config.json", {"pooling_mode": ["mean"]}, "mean"),
        ("1_Pooling/config.json", [], "JSON object"),
        ("sentence_bert_config.json", {"max_seq_length": "256"}, "max_seq_length.*'256'"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length.*0"),
        ("modules.json", modules("Transformer", "Pooling", "Dense"), "Dense"),
        ("modules.json", 3, "3"),
        ("modules.json", [{"type": "Pooling", "path": "../other"}], r"'\.\./other'"),
        ("modules.json", [{"type": "Pooling", "path": 2}], "got 2"),
    ],
)
def test_not_done_here(tmp_path, name, value, match):
    write(tmp_path, name, value)
    with pytest.raises(ConfigError, match=match):
        SentenceConfig.read(tmp_path)
