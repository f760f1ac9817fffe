"""The head on an encoder's first state, against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.errors import ArgumentError, WeightError
from tests.goldens.cases import BIG_BIRD, DINOV2, GPT2, LONGFORMER, SEED, VIT
from tests.models.test_decoders import engine_of

BERT = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 30,
    "max_position_embeddings": 6,
    "type_vocab_size": 2,
}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (BERT, "pooler.dense"),
        (LONGFORMER, "pooler.dense"),
        (BIG_BIRD, "pooler"),
        (VIT, "pooler.dense"),
    ],
)
def test_pooled(config, name):
    rng = np.random.default_rng(0)
    width = config["hidden_size"]
    w = (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
    b = rng.standard_normal(width).astype(np.float32)
    weights = {**models.random_weights(config, SEED), f"{name}.weight": w, f"{name}.bias": b}
    engine = TransformerEngine(weights, config=config, backend="numpy")
    x = rng.integers(2, 29, (3, 5))
    if "patch_size" in config:
        x = rng.standard_normal((3, 3, 28, 28)).astype(np.float32)
    first = engine.run(x)[:, 0].astype(np.float64)
    got = engine.run(x, output="pooled")
    assert got.shape == (3, width) and got.dtype == np.float32
    np.testing.assert_allclose(got, np.tanh(first @ w.T + b), atol=1e-5)
    with pytest.raises(WeightError, match=rf"{name}\.bias"):
        models.build(config, {**weights, f"{name}.bias": b[:-1]})


@pytest.mark.parametrize("config", [BERT, GPT2, DINOV2])
def test_without_a_head(config):
    with pytest.raises(ArgumentError, match="no such head"):
        engine_of(config).run(np.ones((1, 2), int), output="pooled")
