"""A real BERT in a ``.bin`` file, with its pooling head, agrees with Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.errors import CheckpointNotFoundError
from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch
from stof_cupy.models.tokenizer import pad
from tests.models.test_decoders import close

GOLDEN = Path(__file__).parents[1] / "goldens" / "rxnfp.npz"


def test_reactions_in_one_ragged_batch():
    try:
        engine = TransformerEngine(fetch(zoo.RXNFP), backend="numpy")
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))
    with np.load(GOLDEN) as golden:
        rows = [golden[f"{i}/ids"].tolist() for i in range(3)]
        ids, lengths = pad(rows)
        hidden = engine.run(ids, lengths=lengths)
        pooled = engine.run(ids, lengths=lengths, output="pooled")
        assert len({*lengths.tolist()}) == 3
        for i, length in enumerate(lengths):
            close(hidden[i, :length:5], golden[f"{i}/hidden"])
            assert not hidden[i, length:].any()
            close(pooled[i], golden[f"{i}/pooled"])
