"""Real GPT-2, LLaMA and Gemma 3 checkpoints agree with Hugging Face transformers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import CheckpointNotFoundError
from stof_cupy.graph import Executor
from stof_cupy.models import zoo
from stof_cupy.models.inputs import model_inputs
from stof_cupy.models.packaged import fetch
from stof_cupy.testing import assert_close, budget
from tests.models.test_decoders import close

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
            pytest.skip("Gemma 3 is not in the cache; `make test-models` fetches 240 MB")
        return path
    try:
        return zoo.smollm2() if name == "smollm2" else fetch(zoo.MICROFORMER)
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module", params=["microformer", "smollm2", "gemma3"])
def real(request) -> tuple[str, TransformerEngine]:
    return request.param, TransformerEngine(checkpoint(request.param), backend="numpy")


def prompts_of(golden: dict[str, np.ndarray], name: str) -> list[list[int]]:
    keys = [f"{name}/{i}/ids" for i in range(3)]
    return [golden[key].tolist() for key in keys if key in golden]


def test_hidden_states_and_logits(real, golden):
    name, engine = real
    for i, ids in enumerate(prompts_of(golden, name)):
        close(engine.run([ids])[0, -16:], golden[f"{name}/{i}/hidden"])
        logits = engine.run([ids], output="logits")[0, -1, ::97]
        close(logits, golden[f"{name}/{i}/logits"])


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
    # Teacher-forced on the golden tokens, where the first two logits are further apart than the
    # budget allows them to move.
    host = TransformerEngine(checkpoint(name), backend="numpy")
    device = TransformerEngine(checkpoint(name), backend="cuda", dtype=dtype)
    clear = 0
    for i, ids in enumerate(prompts_of(golden, name)):
        greedy = golden[f"{name}/{i}/greedy"]
        row = np.array([[*ids, *greedy[:-1]]])
        given = model_inputs(host._model, host._target, row, None, None, None, logits=True)
        low = Executor(host.graph, backend="numpy").run(
            given, observe=lambda _, y: y.astype(as_dtype(dtype)).astype(np.float32)
        )["logits"][0, len(ids) - 1 :]
        exact = host.run(row, output="logits")[0, len(ids) - 1 :]
        got = device.run(row, output="logits")[0, len(ids) - 1 :]
        assert_close(got, exact, low.astype(as_dtype(dtype)))
        top = np.sort(exact, axis=-1)[:, -2:]
        allowed = 2 * budget(exact, low.astype(as_dtype(dtype)), as_dtype(dtype))
        sure = top[:, 1] - top[:, 0] > allowed
        clear += sure.sum()
        assert np.array_equal(got.astype(np.float32).argmax(axis=-1)[sure], greedy[sure])
    assert clear
    prompts = prompts_of(golden, name)
    said = device.generate(prompts, max_new_tokens=16, stop=())
    assert [len(tokens) for tokens in said] == [16] * len(prompts)
