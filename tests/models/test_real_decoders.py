"""Real GPT-2, LLaMA and Gemma 3 checkpoints agree with Hugging Face transformers."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import CheckpointNotFoundError
from stof_cupy.models import zoo
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.packaged import fetch
from stof_cupy.testing import assert_close
from tests.models.rounded import Rounded, check_on_the_gpu
from tests.models.test_decoders import close

pytestmark = pytest.mark.checkpoint

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDENS / "real_decoders.npz") as file:
        return dict(file)


def checkpoint(name: str) -> Path:
    pytest.importorskip("gguf")
    if name == "gemma3":
        path = zoo.gemma3_if_cached()
        if path is None:
            pytest.skip("Gemma 3 is not in the cache; `make test-models` fetches it")
        return path
    try:
        return zoo.smollm2() if name == "smollm2" else fetch(zoo.MICROFORMER)
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))


@lru_cache(1)
def loaded(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Return config and weights, for several engines to share: some take seconds to dequantise."""
    read = read_checkpoint(checkpoint(name))
    return read.config, {tensor: read.tensors[tensor] for tensor in read.tensors}


@pytest.fixture(scope="module", params=["microformer", "smollm2", "gemma3"])
def real(request) -> tuple[str, TransformerEngine]:
    return request.param, TransformerEngine(checkpoint(request.param), backend="numpy")


def prompts_of(golden: dict[str, np.ndarray], name: str) -> list[list[int]]:
    keys = [f"{name}/{i}/ids" for i in range(3)]
    return [golden[key].tolist() for key in keys if key in golden]


@pytest.fixture(scope="module")
def beside() -> dict[str, np.ndarray]:
    """What llama.cpp gives; llama_cpp.json says how far that is from transformers."""
    with np.load(GOLDENS / "llama_cpp.npz") as file:
        return dict(file)


def test_hidden_states_and_logits(real, golden, beside):
    name, engine = real
    for i, ids in enumerate(prompts_of(golden, name)):
        close(engine.run([ids])[0, -16:], golden[f"{name}/{i}/hidden"])
        logits = engine.run([ids], output="logits")[0, -1, ::97]
        close(logits, golden[f"{name}/{i}/logits"])
        if name != "microformer":
            # llama.cpp's GELU, which Gemma has, comes from a table of float16 numbers.
            close(logits, beside[f"{name}/{i}/float/logits"], 1e-5 if name == "smollm2" else 1e-3)


def test_llama_cpp_reads_4096_tokens(golden, beside):
    close(beside["gemma3/long/float/logits"], golden["gemma3/long/logits"], 1e-3)


@pytest.mark.parametrize(
    ("key", "same"),
    [
        ("smollm2/0", False),
        ("smollm2/1", True),
        ("smollm2/2", True),
        ("gemma3/0", False),
        ("gemma3/1", False),
    ],
)
def test_llama_cpp_says_the_same_in_floats(key, same, golden, beside):
    """And often other words where it quantises activations too, so those are no golden."""
    greedy = golden[f"{key}/greedy"]
    assert np.array_equal(beside[f"{key}/float/greedy"], greedy)
    assert np.array_equal(beside[f"{key}/quantised/greedy"], greedy) == same
    exact, quantised = (beside[f"{key}/{way}/logits"] for way in ("float", "quantised"))
    assert 0.01 < np.abs(exact - quantised).max() / np.abs(exact).max() < 0.1


def test_greedy_tokens_in_one_ragged_batch(real, golden):
    name, engine = real
    prompts = prompts_of(golden, name)
    got = engine.generate(prompts, max_new_tokens=16, stop=())
    assert got == [golden[f"{name}/{i}/greedy"].tolist() for i in range(len(prompts))]


def test_text_in_and_out(golden):
    engine = TransformerEngine(checkpoint("smollm2"), backend="numpy")
    prompts = [
        "The capital of France is",
        "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    ]
    assert engine.tokenize(prompts) == prompts_of(golden, "smollm2")[:2]
    said = engine.generate(prompts[:1], max_new_tokens=2)
    assert "Paris" in said[0]


def test_gemma_reads_4096_tokens_through_its_windows(golden):
    engine = TransformerEngine(checkpoint("gemma3"), backend="numpy")
    ids = golden["gemma3/long/ids"]
    assert (
        engine.tokenize([(GOLDENS.parent / "parity" / "texts.txt").read_text("utf-8")])[0][:1000]
        == ids[:1000].tolist()
    )
    hidden = engine.run(ids[None])[0]
    close(hidden[511::512], golden["gemma3/long/hidden"])
    # The second of two windows is enough to show that they matter.
    wide = engine.run(ids[None, :1024], layer_masks=dict.fromkeys(range(18), "causal"))[0]
    close(wide[:512], hidden[:512])
    assert not np.allclose(wide, hidden[:1024], atol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name, dtype",
    # Gemma's hidden states go beyond 100,000, which float16 has no numbers for.
    [*product(("microformer", "smollm2"), ("float16", "bfloat16")), ("gemma3", "bfloat16")],
)
def test_on_the_gpu_the_argmax_is_the_goldens_where_it_is_clear(name, dtype, golden):
    config, weights = loaded(name)
    rows = [
        (np.array([ids]), golden[f"{name}/{i}/greedy"][None])
        for i, ids in enumerate(prompts_of(golden, name))
    ]
    assert check_on_the_gpu(weights, config, dtype, rows) > 5


@pytest.mark.gpu
def test_gemma_reads_4096_tokens_on_the_gpu(golden):
    config, weights = loaded("gemma3")
    ids, hidden = golden["gemma3/long/ids"][None], golden["gemma3/long/hidden"]
    low = Rounded(weights, low="bfloat16", config=config).run(ids)[0, 511::512]
    got = TransformerEngine(weights, config=config, backend="cuda").run(ids)[0, 511::512]
    assert_close(got, hidden, low.astype(as_dtype("bfloat16")))
