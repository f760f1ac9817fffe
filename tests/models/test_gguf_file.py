"""GGUF files: names, row order and values against the gguf package, damaged headers refused."""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stof_cupy.errors import (
    CheckpointError,
    ConfigError,
    MissingDependencyError,
    StofError,
    UnsupportedError,
    WeightError,
)
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.gguf_file import GgufFile, open_gguf
from stof_cupy.models.gguf_names import config_of, tensors_of

gguf = pytest.importorskip("gguf")

HIDDEN, HEADS, KV, DIM, FFN, VOCAB = 32, 4, 2, 8, 64, 11


def write(path: Path, arch: str = "llama", fields: dict | None = None, extra: dict | None = None):
    """Write a model of one layer; return the arrays as stored, by GGUF name."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(100)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5e5)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_eos_token_id(2)
    for name, value in (fields or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](name, value)
    shapes = {
        "token_embd": (VOCAB, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HEADS * DIM, HIDDEN),
        "blk.0.attn_k": (KV * DIM, HIDDEN),
        "blk.0.attn_v": (KV * DIM, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HEADS * DIM),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
        **(extra or {}),
    }
    stored = {f"{n}.weight": rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    types = iter(["Q8_0", "Q4_1", "Q5_0", "F16", "F32", "Q4_0"] * 3)
    for name, array in stored.items():
        kind = gguf.GGMLQuantizationType[next(types) if array.ndim > 1 else "F32"]
        blocks = gguf.quants.quantize(array, kind)
        stored[name] = gguf.quants.dequantize(blocks, kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def test_names_values_and_row_order(tmp_path):
    stored = write(tmp_path / "m.gguf")
    checkpoint = read_checkpoint(tmp_path / "m.gguf")
    layer = "model.layers.0."
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.0.attn_norm": f"{layer}input_layernorm",
        "blk.0.attn_v": f"{layer}self_attn.v_proj",
        "blk.0.attn_output": f"{layer}self_attn.o_proj",
        "blk.0.ffn_norm": f"{layer}post_attention_layernorm",
        "blk.0.ffn_gate": f"{layer}mlp.gate_proj",
        "blk.0.ffn_up": f"{layer}mlp.up_proj",
        "blk.0.ffn_down": f"{layer}mlp.down_proj",
    }
    for old, new in names.items():
        assert np.array_equal(checkpoint.tensors[f"{new}.weight"], stored[f"{old}.weight"])
    for old, new, heads in (("q", "q_proj", HEADS), ("k", "k_proj", KV)):
        got = checkpoint.tensors[f"{layer}self_attn.{new}.weight"]
        for head in range(heads):
            for i in range(DIM // 2):  # llama.cpp rotates rows 2i and 2i + 1, we i and i + half
                rows = stored[f"blk.0.attn_{old}.weight"][head * DIM :]
                assert np.array_equal(got[head * DIM + i], rows[2 * i])
                assert np.array_equal(got[head * DIM + DIM // 2 + i], rows[2 * i + 1])
    assert len(checkpoint.tensors) == len(stored)


def test_config(tmp_path):
    write(tmp_path / "m.gguf")
    assert read_checkpoint(tmp_path / "m.gguf").config == {
        "model_type": "llama",
        "max_position_embeddings": 100,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "vocab_size": VOCAB,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }


def test_gemma_norms_lose_the_one_that_gguf_adds(tmp_path):
    norms = {"blk.0.post_ffw_norm": (HIDDEN,), "blk.0.attn_q_norm": (DIM,)}
    stored = write(tmp_path / "m.gguf", "gemma3", {"gemma3.attention.sliding_window": 5}, norms)
    checkpoint = read_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config["model_type"] == "gemma3_text"
    assert checkpoint.config["sliding_window"] == 5
    got = checkpoint.tensors["model.layers.0.self_attn.q_norm.weight"]
    assert np.allclose(got + 1, stored["blk.0.attn_q_norm.weight"], atol=1e-6)
    got = checkpoint.tensors["model.layers.0.self_attn.q_proj.weight"]
    assert np.array_equal(got, stored["blk.0.attn_q.weight"])  # its rows are not reordered


@pytest.mark.parametrize(
    ("arch", "fields", "extra", "error", "match"),
    [
        ("mamba", {}, {}, UnsupportedError, "'mamba'"),
        ("llama", {"llama.expert_count": 8}, {}, ConfigError, "expert_count"),
        ("llama", {"llama.rope.scaling.type": "odd"}, {}, ConfigError, "'odd'"),
        ("llama", {"llama.rope.scaling.attn_factor": 2.0}, {}, ConfigError, "attn_factor: got 2.0"),
        ("llama", {"llama.rope.dimension_count": 4}, {}, ConfigError, "dimension_count: got 4"),
        ("llama", {}, {"blk.0.attn_sinks": (HIDDEN,)}, WeightError, "attn_sinks"),
    ],
)
def test_what_is_not_known_is_refused_by_name(arch, fields, extra, error, match, tmp_path):
    write(tmp_path / "m.gguf", arch, fields, extra)
    with pytest.raises(error, match=match):
        read_checkpoint(tmp_path / "m.gguf")


def test_rope_scaling(tmp_path):
    fields = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    write(tmp_path / "m.gguf", fields=fields)
    scaling = read_checkpoint(tmp_path / "m.gguf").config["rope_scaling"]
    assert scaling == {"rope_type": "linear", "factor": 4.0}
    more = {"type": "yarn", "original_context_length": 16, "finetuned": 1, "attn_factor": 1.0}
    more |= {"yarn_beta_fast": 8.0}
    fields |= {f"llama.rope.scaling.{name}": value for name, value in more.items()}
    write(tmp_path / "y.gguf", fields=fields)
    scaling = read_checkpoint(tmp_path / "y.gguf").config["rope_scaling"]
    said = {name: value for name, value in scaling.items() if value is not None}
    assert said == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 8.0,
    }
    stored = write(tmp_path / "f.gguf", extra={"rope_freqs": (DIM // 2,)})
    scaling = read_checkpoint(tmp_path / "f.gguf").config["rope_scaling"]
    assert scaling == {"rope_type": "factors", "factors": stored["rope_freqs.weight"].tolist()}


@pytest.mark.parametrize(("layers", "scalar"), [(62, 168.0), (48, None)])
def test_gemma3_27b_scales_scores_by_the_width_of_the_model(layers, scalar):
    """As llama.cpp does, by the number of layers: 5376 / 32, its heads being 128 wide."""
    own = {"embedding_length": 5376, "block_count": layers, "attention.head_count": 32}
    own |= {"attention.key_length": 128}
    fields = {f"gemma3.{name}": value for name, value in own.items()}
    config = config_of(GgufFile({"general.architecture": "gemma3", **fields}, {}))
    assert config.get("query_pre_attn_scalar") == scalar


def test_biases_are_there_where_the_file_has_them(tmp_path):
    parts = {"attn_q": HEADS * DIM, "attn_k": KV * DIM, "attn_v": KV * DIM, "attn_output": HIDDEN}
    parts |= {"ffn_gate": FFN, "ffn_up": FFN, "ffn_down": HIDDEN}
    own = {"embedding_length": HIDDEN, "attention.head_count": HEADS}
    fields = {f"llama.{name}": value for name, value in own.items()}
    tensors = {f"blk.0.{name}.bias": lambda n=n: np.arange(float(n)) for name, n in parts.items()}
    file = GgufFile({"general.architecture": "llama", **fields}, tensors)
    config = config_of(file)
    assert config["attention_bias"] and config["mlp_bias"]
    got = tensors_of(file, {**config, "num_key_value_heads": KV})
    assert got["model.layers.0.self_attn.k_proj.bias"]()[:DIM].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def head(*parts: bytes, tensors: int = 0, fields: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + b"".join(parts)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "GGUF file"),
        (b"GGML" + bytes(40), "another kind"),
        (head(version=1), "version: got 1"),
        (head(tensors=1 << 60), "number of tensors"),
        (head(fields=1 << 60), "number of fields"),
        (head(fields=3), "cut short"),
        (head(struct.pack("<Q", 1 << 62), fields=1), "length of a string"),
        (head(text("a"), struct.pack("<I", 77), fields=1), "type of a field"),
        (head(text("a"), struct.pack("<IIQ", 9, 0, 1 << 50), fields=1), "items of a list"),
        (head(text("a"), struct.pack("<IIQ", 9, 0, 1 << 20), fields=1), "cut short"),
        (head(text("a"), struct.pack("<IIQ", 9, 9, 1), fields=1), "no nesting"),
        (head(text("a"), struct.pack("<I", 99), tensors=1), "axes of 'a'"),
        (head(text("a"), struct.pack("<IQIQ", 1, 8, 0, 0), tensors=1), "cut short"),
        (head(text("a"), struct.pack("<IQIQ", 1, 1 << 62, 0, 0), tensors=1), "cut short"),
        (head(text("a"), struct.pack("<IQIQ", 1, 8, 8, 0), tensors=1), "block of Q8_0"),
    ],
)
def test_damaged_headers_cost_nothing(data, match, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=match):
        open_gguf(path)
    assert time.perf_counter() - start < 2


def test_unknown_element_type(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(head(text("a"), struct.pack("<IQIQ", 1, 8, 999, 0), tensors=1))
    with pytest.raises(UnsupportedError, match="type 999"):
        open_gguf(path)


def test_flipped_bytes_give_tensors_or_a_typed_error(tmp_path):
    path = tmp_path / "m.gguf"
    write(path)
    data = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(200):
        changed = bytearray(data)
        changed[int(rng.integers(1500))] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            read_checkpoint(path)
        except StofError:
            continue


def test_without_the_extra(tmp_path, monkeypatch):
    write(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependencyError, match=r"gguf.*pip install 'stof-cupy\[models\]'"):
        read_checkpoint(tmp_path / "m.gguf")
