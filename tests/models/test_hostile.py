"""Hostile checkpoints of every format: a typed error or a model, in bounded time and memory.

Each case changes a sound file and reads it as an engine does: config, every tensor, tokenizer.
Anything but a `StofError` fails, and so does a read that takes long or allocates far beyond the
file.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.errors import CheckpointError, StofError, UnsupportedError, WeightError
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.gguf_file import open_gguf
from stof_cupy.models.gguf_tokenizer import tokenizer_of
from stof_cupy.models.tokenizer import Tokenizer
from tests.goldens import cases

GOLDENS = Path(__file__).parents[1] / "goldens"
FAMILIES = [
    cases.GPT2, cases.LLAMA, cases.GEMMA3, cases.T5, cases.VIT, cases.DINOV2, cases.LONGFORMER,
    cases.BIG_BIRD,
]  # fmt: skip
MOST_SECONDS, MOST_BYTES = 10.0, 64 << 20
ODD_BYTES = (0, 1, 0x7F, 0x80, 0xFF)
ODD_SIZES = (0, 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1)
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 3, 2**31, 2**40, 10**13, 10**30, 10**400, 1e308, 1.5, float("nan"),
    "x", "", "9" * 50, [], [1], ["x"], {}, {"a": 1},
)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.simplefilter("ignore")


def read(path: Path, vocab: int = 11) -> bool:
    """Read all there is; return whether it was refused."""
    tracemalloc.start()  # here alone: it makes what allocates three times as slow
    start = time.perf_counter()
    try:
        checkpoint = read_checkpoint(path)
        if checkpoint.config is None:
            dict(checkpoint.tensors)
        else:
            models.build(checkpoint.config, checkpoint.tensors)
        if checkpoint.tokenizer_path is not None:
            Tokenizer(checkpoint.tokenizer_path, vocab)
        return False
    except StofError:
        return True
    finally:
        seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert seconds < MOST_SECONDS
        assert peak < MOST_BYTES


def damaged(data: bytes, rng: random.Random, start: int, stop: int) -> bytes:
    """Return the data with a few bytes, or a number of 4 or 8 bytes, changed to odd ones."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        size = rng.choice((1, 1, 4, 8))
        value = rng.choice(ODD_SIZES if size > 1 else (*ODD_BYTES, rng.randrange(256)))
        at = rng.randrange(start, stop - size)
        changed[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(changed)


def fuzz(path: Path, data: bytes, count: int, start: int = 0, stop: int | None = None) -> float:
    """Return the share of damaged files that was refused."""
    rng = random.Random(count)
    refused = 0
    for _ in range(count):
        path.write_bytes(damaged(data, rng, start, len(data) if stop is None else stop))
        refused += read(path if path.suffix in (".gguf", ".onnx") else path.parent)
    return refused / count


def talking(path: Path) -> bytes:
    """Return a GGUF file with a tokenizer, every part of it sound."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("tokenizers")
    from tests.models.test_gguf_file import VOCAB, write

    write(path, fields={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "default"})
    assert gguf and VOCAB == 11
    data = path.read_bytes()
    # Its writer takes lists through methods of their own: one more field, by hand.
    field = _string("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 0)
    tensors, fields = struct.unpack("<QQ", data[8:24])
    after = len(data[: data.index(_string("token_embd.weight"))])
    header = data[:8] + struct.pack("<QQ", tensors, fields + 1) + data[24:after] + field
    facts, body = _cut(data, after)
    return header + facts + bytes(-(len(header) + len(facts)) % 32) + body


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _cut(data: bytes, at: int) -> tuple[bytes, bytes]:
    """Return the facts of all tensors, which begin at `at`, and the data behind them."""
    start = at
    for _ in range(struct.unpack("<Q", data[8:16])[0]):
        at += 8 + struct.unpack("<Q", data[at : at + 8])[0]
        at += 4 + 8 * struct.unpack("<I", data[at : at + 4])[0] + 12
    return data[start:at], data[-(-at // 32) * 32 :]


def test_gguf(tmp_path):
    path = tmp_path / "m.gguf"
    data = talking(path)
    path.write_bytes(data)
    assert not read(path)
    end = data.index(_string("blk.0.ffn_down.weight")) + 80
    assert 0.5 < fuzz(path, data, 400, 4, end) < 1


def test_gguf_of_a_quantisation_that_is_not_known(tmp_path):
    gguf = pytest.importorskip("gguf")
    types = gguf.GGMLQuantizationType
    kind = next(t for t in types if t not in gguf.quants._type_traits and t not in (0, 1, 28))
    block, size = gguf.GGML_QUANT_SIZES[kind]
    facts = _string("a") + struct.pack("<IQIQ", 1, block, kind, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + facts
    path = tmp_path / "m.gguf"
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(size))
    with pytest.raises(UnsupportedError, match=f"'a'.*{kind.name}"):
        open_gguf(path).tensors["a"]()


@pytest.mark.parametrize("shape", [(0,), (32, 0), (0, 2**40), (2**31, 2**33)])
def test_gguf_sizes_that_cannot_be(shape, tmp_path):
    pytest.importorskip("gguf")
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + _string("a") + dims + struct.pack("<IQ", 8, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes(header + bytes(4096))
    with pytest.raises(CheckpointError, match="'a'"):
        open_gguf(path).tensors["a"]()


TOKENS: dict[str, Any] = {
    "model": "gpt2", "tokens": ["a", "b", "ab", "<x>"], "token_type": [1, 1, 1, 3],
    "merges": ["a b"], "bos_token_id": 0, "add_bos_token": True, "pre": "default",
}  # fmt: skip
PIECES: dict[str, Any] = {
    "model": "llama", "tokens": ["a", "b", "ab", "<x>", "<0x41>"], "token_type": [1, 1, 1, 3, 6],
    "scores": [0.0, -1.0, -2.0, 0.0, 0.0], "bos_token_id": 0, "add_bos_token": True,
    "unknown_token_id": 3, "add_space_prefix": True,
}  # fmt: skip
ODD_LISTS: tuple[Any, ...] = (
    [1] * 4, [1.5] * 5, [float("nan")] * 5, [True] * 5, ["a"] * 5, ["a b"], ["a  b"], ["x y"],
    ["a" * 200_000, "b", "c", "d"], ["a", "a", "b", "b", "c"], ["$A", "b", "ab", "<x>", "$B"],
)  # fmt: skip


@pytest.mark.parametrize("sound", [TOKENS, PIECES], ids=["bytes", "pieces"])
def test_tokens(sound):
    tokenizers = pytest.importorskip("tokenizers")

    def made(own: dict[str, Any]) -> Any:
        fields = {f"tokenizer.ggml.{name}": value for name, value in own.items()}
        return tokenizer_of(fields, tokenizers, "m.gguf")

    assert made(sound).encode("ab").ids
    refused = 0
    for name in sound:
        for value in (*ODD[:10], *ODD[11:], *ODD_LISTS):
            start = time.perf_counter()
            try:
                made({**sound, name: value}).encode("ab a")
            except StofError:
                refused += 1
            assert time.perf_counter() - start < MOST_SECONDS, name
    assert refused > 50


def saved(root: Path, config: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Write a model; return header and body of its safetensors file."""
    save = pytest.importorskip("safetensors.numpy").save
    root.mkdir(exist_ok=True)
    (root / "config.json").write_text(json.dumps(config))
    data = save(models.random_weights(config))
    (root / "model.safetensors").write_bytes(data)
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:end]), data[end:]


def test_safetensors_bytes(tmp_path):
    _, body = saved(tmp_path / "m", cases.GPT2)
    assert not read(tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    data = path.read_bytes()
    assert fuzz(path, data, 300, 0, len(data) - len(body)) > 0.9


def test_safetensors_headers(tmp_path):
    header, body = saved(tmp_path / "m", cases.GPT2)
    path, name = tmp_path / "m" / "model.safetensors", next(iter(header))

    def refused(text: bytes, size: int | None = None) -> bool:
        length = len(text) if size is None else size
        path.write_bytes(struct.pack("<Q", length) + text + body)
        return read(tmp_path / "m")

    assert not refused(json.dumps(header).encode())
    shapes = ([2**62, 4], [0], [-1], [2**64], [0, 2**63], [1.5, 2], [[1], 2], [8, 4], ["0", "4"])
    for key in ("dtype", "shape", "data_offsets"):
        for value in (*ODD, *shapes, "F8_E4M3", "F4", "I32", "BOOL", "F64"):
            text = json.dumps({**header, name: {**header[name], key: value}})
            assert refused(text.encode()), (key, value)
    deep = b"[" * 100_000 + b"]" * 100_000
    empty = b'{"dtype":"F32","shape":[0,4611686018427387904],"data_offsets":[0,0]}'
    for text in (b"[]", b"null", b"{}", b'"x"', b"\xff\xfe", b'{"a":' + deep + b"}", deep, empty):
        assert refused(text)
    for size in (0, 1, 10**8, 2**63, 2**64 - 1):
        assert refused(json.dumps(header).encode(), size)


def test_many_names_are_not_compared_with_one_that_is_missing(tmp_path):
    weights = {f"wte.weight_{i}": np.zeros(0, np.float32) for i in range(20_000)}
    with pytest.raises(WeightError, match=r"without it, expected 'wte\.weight'$"):
        models.build(cases.GPT2, weights)


@pytest.mark.parametrize("shape", [[1] * 65, [0, 2**62, 8], [0] * 65])
def test_shapes_that_numpy_has_not(shape, tmp_path):
    size = 0 if 0 in shape else 4
    facts = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
    text = json.dumps({"wte.weight": facts}).encode()
    saved(tmp_path / "m", cases.GPT2)
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    with pytest.raises(WeightError, match=r"wte\.weight.*NumPy"):
        read_checkpoint(tmp_path / "m").tensors["wte.weight"]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config["model_type"])
def test_configs(config, tmp_path):
    saved(tmp_path / "m", config)
    assert not read(tmp_path / "m")
    scalings = (
        {"rope_type": "yarn", "factor": 1e300},
        {"rope_type": "linear", "factor": 10**400},
        {"rope_type": "llama3", "factor": 1e-300, "low_freq_factor": 1e-9, "high_freq_factor": 9},
    )
    more = ("head_dim", "rope_scaling", "layer_types", "attention_window", "sliding_window_pattern")
    refused, path = 0, tmp_path / "m" / "config.json"
    for key in (*config, *more):
        for value in (*ODD, *(scalings if key == "rope_scaling" else ())):
            path.write_text(json.dumps({**config, key: value}))
            refused += read(tmp_path / "m")
    assert refused > 10 * len(config)
    sizes = {key: 2**40 for key, value in config.items() if type(value) is int and value > 1}
    path.write_text(json.dumps({**config, **sizes, "attention_window": 64}))
    assert read(tmp_path / "m")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 10**5, "\0", "{"])
def test_json(text, tmp_path):
    saved(tmp_path / "m", cases.GPT2)
    (tmp_path / "m" / "config.json").write_text(text)
    assert read(tmp_path / "m")


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config["model_type"])
def test_missing_weights_and_weights_of_other_sizes(config):
    weights = models.random_weights(config)
    models.build(config, weights)
    for name in weights:
        rest = {other: array for other, array in weights.items() if other != name}
        for wrong in (rest, {**rest, name: weights[name][:-1]}):
            with pytest.raises(WeightError) as caught:
                models.build(config, wrong)
            assert name.removeprefix("transformer.").split(".", 1)[-1] in str(caught.value)


def test_onnx(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    arrays: dict[str, Any] = {
        "a.weight": np.ones((3, 4), np.float32),
        "b_quantized": np.ones((4, 2), np.uint8),
        "b_scale": np.float32(2),
        "b_zero_point": np.uint8(1),
        "onnx::MatMul_1": np.ones((2, 3), np.float32),
    }
    product = helper.make_node("MatMul", ["x", "onnx::MatMul_1"], ["y"], name="/enc/q/MatMul")
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    model = helper.make_model(helper.make_graph([product], "g", [], [], stored))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert not read(path)
    assert 0.2 < fuzz(path, path.read_bytes(), 600) < 1
    refused = 0
    for i in range(len(arrays)):
        for kind in (*range(0, 30, 3), 29, 99):
            for dims in ([0], [-1], [2**62], [0, 2**62], [2**40, 2**40], [1] * 100):
                changed = onnx.ModelProto()
                changed.CopyFrom(model)
                tensor = changed.graph.initializer[i]
                tensor.data_type = kind
                tensor.ClearField("dims")
                tensor.dims.extend(dims)
                path.write_bytes(changed.SerializeToString())
                refused += read(path)
    assert refused > 200


TWINS = b")q\x00" + b"h\x00\x86q\x00" * 60
"""A tuple of a tuple twice, and so on: 300 bytes that to hash or to print takes for ever."""
MAGIC = b"".join(
    pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
)
EMPTY = pickle.dumps({}, 2)

PICKLES = {
    "twins": b"\x80\x02" + TWINS + b".",
    "twins as a value": b"\x80\x02}X\x01\x00\x00\x00a" + TWINS + b"s.",
    "twins as a key": b"\x80\x02}" + TWINS + b"K\x01s.",
    "twins as a global": b"\x80\x02" + TWINS + b"X\x01\x00\x00\x00a\x93.",
    "twins as a storage": b"\x80\x02" + TWINS + b"Q.",
    "twins as storages": MAGIC + EMPTY + b"\x80\x02]" + TWINS + b"a." + bytes(64),
    "twins for arguments": b"\x80\x02ccollections\nOrderedDict\n" + TWINS + b"R.",
    "a list as a storage": MAGIC + EMPTY + pickle.dumps([[1]], 2) + bytes(64),
    "a list of itself": MAGIC + b"\x80\x02]q\x00h\x00a." + EMPTY,
    "a dict of itself": MAGIC + b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s." + EMPTY,
    "many marks": b"\x80\x02" + b"(" * 10**5 + b".",
    "deep tuples": MAGIC + b"\x80\x02)" + b"\x85" * 200_000 + b"." + EMPTY,
    "a long integer": b"\x80\x02\x8b" + struct.pack("<i", 10**6) + b"\xff" * 10**6 + b".",
    "a long of less than nothing": b"\x80\x02\x8b" + struct.pack("<i", -5) + b".",
    "digits": b"I" + b"9" * 10**6 + b"\n.",
    "a string of more than there is": b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"a.",
    "half a character": b"V\\ud800\n.",
}


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("zipped", [False, True])
def test_pickles(name, zipped, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    path = tmp_path / "pytorch_model.bin"
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", PICKLES[name])
    else:
        path.write_bytes(PICKLES[name])
    assert read(tmp_path)


@pytest.mark.parametrize("name", ["torch_zip.bin", "torch_legacy.bin"])
def test_torch_bytes(name, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert fuzz(tmp_path / "pytorch_model.bin", (GOLDENS / name).read_bytes(), 400) == 1


def attacks(ran: Path) -> dict[str, Callable[[], Any]]:
    """Return what makes an object whose pickle would run a command."""

    class Command:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {ran}",)

    class Code:
        def __reduce__(self) -> Any:
            return eval, (f"open({str(ran)!r}, 'w')",)

    class State:
        def __reduce__(self) -> Any:
            return np.dtype, ("f4",), {"a": Command()}

    return {"command": Command, "code": Code, "state": State, "nested": lambda: {"w": [Code()]}}


@pytest.mark.parametrize("attack", ["command", "code", "state", "nested"])
@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_executed(attack, protocol, tmp_path):
    ran = tmp_path / "ran"
    evil = pickle.dumps({"wte.weight": attacks(ran)[attack]()}, protocol)
    root = tmp_path / "m"
    root.mkdir()
    (root / "config.json").write_text(json.dumps(cases.GPT2))
    with zipfile.ZipFile(root / "pytorch_model.bin", "w") as archive:
        archive.writestr("x/data.pkl", evil)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="pickle"):
            TransformerEngine(root, backend="numpy")
        assert not ran.exists()
        (root / "pytorch_model.bin").write_bytes(evil)
    if attack == "code":  # the attack is one
        pickle.loads(evil)["wte.weight"].close()
        assert ran.exists()


def test_zip_bombs(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    path = tmp_path / "pytorch_model.bin"
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("x/data.pkl", EMPTY)
            archive.writestr("x/data/0", bytes(2 * MOST_BYTES if method == 8 else 1 << 20))
        tracemalloc.start()
        with pytest.raises(CheckpointError, match="compressed"):
            read_checkpoint(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES
    # Many names of one member's bytes.
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", EMPTY)
        archive.writestr("x/data/0", bytes(1 << 20))
        for i in range(1, 200):
            twin = zipfile.ZipInfo(f"x/data/{i}")
            first = archive.getinfo("x/data/0")
            twin.header_offset, twin.file_size = first.header_offset, first.file_size
            twin.compress_size, twin.CRC = first.compress_size, first.CRC
            archive.filelist.append(twin)
    assert path.stat().st_size < 2 << 20
    assert read(tmp_path)
