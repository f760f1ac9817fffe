"""GGUF's metadata and names as Hugging Face's, in which the families are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stof_cupy.errors import ConfigError, UnsupportedError, WeightError, mismatch
from stof_cupy.models.gguf_file import GgufFile

__all__ = ["ARCHITECTURES", "config_of", "tensors_of"]

Array = np.ndarray[Any, Any]

_COMMON = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

ARCHITECTURES: dict[str, dict[str, str]] = {
    "llama": {**_COMMON, "ffn_norm": "post_attention_layernorm"},
    "gemma3": {
        **_COMMON,
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
"""``general.architecture`` -> what the parts of a layer, ``blk.N.*``, are called."""

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_INERT = ("rope_freqs.weight",)
"""Read as part of the config."""

_KEYS = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}

_CHECKED = {"rope.dimension_count", "attention.value_length"}
"""Have to be the head dim."""

_SCALING = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""``rope.scaling.*`` -> what Hugging Face calls it."""

_GEMMA3_27B = 62
"""Layers of the one Gemma 3 whose scores are scaled by the width of the model; no field says so."""

_TOKENS = ("bos", "eos", "padding", "unknown")


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the config that a GGUF file's metadata amounts to.

    Raises
    ------
    UnsupportedError
        If the architecture is not one of :data:`ARCHITECTURES`.
    ConfigError
        If a field of it is not known here.
    """
    fields = file.fields
    arch = fields.get("general.architecture")
    if arch not in ARCHITECTURES:
        known = ", ".join(map(repr, ARCHITECTURES))
        raise UnsupportedError(mismatch("general.architecture", repr(arch), f"one of {known}"))
    own = {
        name.removeprefix(f"{arch}."): value
        for name, value in fields.items()
        if name.startswith(f"{arch}.")
    }
    config = {new: own[old] for old, new in _KEYS.items() if old in own}
    for name in own.keys() - _KEYS.keys() - _CHECKED:
        if not name.startswith("rope.scaling."):
            expected = "a field known here"
            raise ConfigError(mismatch(f"{arch}.{name}", repr(own[name]), expected))
    config["model_type"] = "gemma3_text" if arch == "gemma3" else arch
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for name, last in (("attention_bias", "attn_output"), ("mlp_bias", "ffn_down")):
        if f"blk.0.{last}.bias" in file.tensors:
            config[name] = True
    _fill_heads(config, own)
    if arch == "gemma3" and config.get("num_hidden_layers") == _GEMMA3_27B:
        heads = config["num_attention_heads"]
        config["query_pre_attn_scalar"] = config["hidden_size"] / heads
    tokens = fields.get("tokenizer.ggml.tokens")
    if "vocab_size" not in config and isinstance(tokens, list):
        config["vocab_size"] = len(tokens)
    for name in _TOKENS:
        if (key := f"tokenizer.ggml.{name}_token_id") in fields:
            short = {"padding": "pad", "unknown": "unk"}.get(name, name)
            config[f"{short}_token_id"] = fields[key]
    scaling = _scaling(file, own)
    if scaling is not None:
        config["rope_scaling"] = scaling
    # llama.cpp writes float32; what was meant is the short decimal.
    return {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in config.items()}


def _fill_heads(config: dict[str, Any], own: dict[str, Any]) -> None:
    """Add what the format leaves out where it is implied, and check what is said twice."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not all(type(n) is int and n > 0 for n in (hidden, heads)):
        got = f"embedding_length {hidden}, head_count {heads}"
        raise ConfigError(mismatch("GGUF metadata", got, "one positive number of each"))
    config.setdefault("head_dim", int(hidden or 0) // int(heads or 1))
    config.setdefault("num_key_value_heads", heads)
    for name in sorted(_CHECKED & own.keys()):
        if own[name] != config["head_dim"]:
            raise ConfigError(mismatch(name, own[name], config["head_dim"]))


def _scaling(file: GgufFile, own: dict[str, Any]) -> dict[str, Any] | None:
    """Return the RoPE scaling, or None."""
    given = {
        name.removeprefix("rope.scaling."): value
        for name, value in own.items()
        if name.startswith("rope.scaling.") and value is not None
    }
    for name in given.keys() - _SCALING.keys() - {"type", "finetuned"}:
        if not (name.endswith("attn_factor") and given[name] == 1):
            expected = "a field known here"
            raise ConfigError(mismatch(f"rope.scaling.{name}", repr(given[name]), expected))
    if "rope_freqs.weight" in file.tensors:
        return {"rope_type": "factors", "factors": file.tensors["rope_freqs.weight"]().tolist()}
    kind = given.get("type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ConfigError(mismatch("rope.scaling.type", repr(kind), "'none', 'linear' or 'yarn'"))
    names = _SCALING if kind == "yarn" else ("factor",)
    return {"rope_type": kind, **{_SCALING[name]: given.get(name) for name in names}}


def tensors_of(file: GgufFile, config: dict[str, Any]) -> dict[str, Callable[[], Array]]:
    """Return the tensors by Hugging Face names, their rows in Hugging Face order.

    Raises
    ------
    WeightError
        If one is not known here.
    """
    arch = file.fields["general.architecture"]
    parts = ARCHITECTURES[arch]
    out: dict[str, Callable[[], Array]] = {}
    for name, read in file.tensors.items():
        if name in _INERT:
            continue
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if name in _OUTER:
            new = _OUTER[name]
        elif match and match[2] in parts:
            new = f"model.layers.{match[1]}.{parts[match[2]]}.{match[3]}"
        else:
            raise WeightError(mismatch("weights", repr(name), f"only those of {arch!r}"))
        if arch == "llama" and match and match[2] in ("attn_q", "attn_k"):
            heads = config[f"num_{'attention' if match[2] == 'attn_q' else 'key_value'}_heads"]
            read = partial(_halves, read, heads)
        if arch == "gemma3" and new.endswith("norm.weight"):
            read = partial(_minus_one, read)
        out[new] = read
    return out


def _halves(read: Callable[[], Array], heads: int) -> Array:
    """Undo llama.cpp's order of rows, which rotates neighbours, to rotate halves."""
    rows = read()
    if rows.shape[:1] == () or rows.shape[0] % (2 * heads):
        raise WeightError(mismatch("weights", rows.shape, f"rows of {heads} heads of even size"))
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    halves: Array = pairs.swapaxes(1, 2).reshape(rows.shape)
    return halves


def _minus_one(read: Callable[[], Array]) -> Array:
    """Gemma multiplies by 1 + weight; GGUF holds the sum."""
    return np.asarray(read() - np.float32(1))
