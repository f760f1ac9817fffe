"""Makes llama_cpp.npz and llama_cpp.json: llama.cpp on the GGUF files, beside real_decoders.npz.

``quantised``: the files as they are, as a user runs them: llama.cpp quantises activations too and
keeps its cache in float16. ``float``: the floats that the weights stand for, and a float32 cache:
that is what this package computes, but for GELU, which llama.cpp looks up in a table of float16
numbers. Needs real_decoders.npz, gguf and llama-cpp-python, which is compiled when it is installed
(half an hour on one core)::

    CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_CUDA=OFF" pip install llama-cpp-python==0.3.36
    PYTHONPATH=. python tests/goldens/make_llama_cpp.py
"""

from __future__ import annotations

import json
import tempfile
from importlib import metadata
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

from stof_cupy.models import zoo

HERE = Path(__file__).parent
COLUMNS = 97
LLAMA_CPP = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
"""The commit of llama.cpp in the sdist of llama-cpp-python 0.3.36."""


def floated(path: Path, target: Path) -> None:
    """Write a GGUF file with the floats that the weights of another stand for."""
    source = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, source.fields["general.architecture"].contents())
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=item)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in source.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def said(path: Path, prompts: list[np.ndarray], count: int, **how) -> np.ndarray:
    """Return logits (prompts, count, vocabulary); the best token of each follows."""
    longest = max(map(len, prompts)) + count
    model = llama_cpp.Llama(str(path), n_ctx=longest, n_threads=2, verbose=False, **how)
    logits = np.empty((len(prompts), count, model.n_vocab()), np.float32)
    for prompt, rows in zip(prompts, logits, strict=True):
        model.reset()
        model.eval(prompt.tolist())
        for row in rows:
            row[:] = np.ctypeslib.as_array(model._ctx.get_logits(), shape=row.shape)
            model.eval([int(row.argmax())])
    model.close()
    return logits


def main() -> None:
    with np.load(HERE / "real_decoders.npz") as file:
        golden = dict(file)
    ways = {"quantised": {}, "float": {"type_k": 0, "type_v": 0, "flash_attn": False}}
    made, told = {}, {}
    for name, path in (("smollm2", zoo.smollm2()), ("gemma3", zoo.gemma3())):
        keys = [f"{name}/{i}" for i in range(3) if f"{name}/{i}/ids" in golden]
        prompts = [golden[f"{key}/ids"] for key in keys]
        with tempfile.TemporaryDirectory() as folder:
            floats = Path(folder) / "floats.gguf"
            floated(path, floats)
            for way, how in ways.items():
                file = floats if way == "float" else path
                runs = said(file, prompts, golden[f"{keys[0]}/greedy"].size, **how)
                for key, logits in zip(keys, runs, strict=True):
                    record(made, told, golden, f"{key}/{way}", logits)
                if f"{name}/long/ids" in golden:
                    (logits,) = said(file, [golden[f"{name}/long/ids"]], 1, **how)
                    record(made, told, golden, f"{name}/long/{way}", logits)
    versions = {
        "llama_cpp_python": llama_cpp.__version__,
        "llama.cpp": LLAMA_CPP,
        "gguf": metadata.version("gguf"),
        "system": llama_cpp.llama_print_system_info().decode(),
    }
    np.savez_compressed(HERE / "llama_cpp.npz", **made)
    text = json.dumps({"versions": versions, "beside transformers": told}, indent=1)
    (HERE / "llama_cpp.json").write_text(text + "\n")


def record(made: dict, told: dict, golden: dict, key: str, logits: np.ndarray) -> None:
    """Keep some of the first logits, the tokens, and what they differ by from transformers'."""
    base = key.rpartition("/")[0]
    made[f"{key}/logits"] = first = logits[0, ::COLUMNS]
    want = golden[f"{base}/logits"]
    distance = np.abs(first - want).max() / np.abs(want).max()
    told[key] = {"logits differ by, of the largest": float(f"{distance:.2g}")}
    if f"{base}/greedy" in golden:
        made[f"{key}/greedy"] = tokens = logits.argmax(-1).astype(np.int32)
        equal = [*(tokens == golden[f"{base}/greedy"]), False]
        told[key]["tokens until they differ"] = equal.index(False)
    print(key, told[key], flush=True)


if __name__ == "__main__":
    main()
