"""A small BERT with random weights, a batch for it, and the same as a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "vocab_size": 50,
    "max_position_embeddings": 150,
    "type_vocab_size": 3,
}


@pytest.fixture(scope="session")
def config() -> dict:
    return CONFIG


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    return models.random_weights(CONFIG, seed=3)


@pytest.fixture(scope="session")
def engine(weights) -> TransformerEngine:
    return TransformerEngine(weights, config=CONFIG, backend="numpy")


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 50, (3, 131), dtype=np.int32)


@pytest.fixture
def checkpoint(tmp_path: Path, weights, config) -> Path:
    """A model and a word-level tokenizer on disk."""
    save = pytest.importorskip("safetensors.numpy").save_file
    tokenizers = pytest.importorskip("tokenizers")
    save(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(50)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path
