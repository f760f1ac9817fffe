"""Opens checkpoints: Hugging Face style directories, GGUF and ONNX files.

A directory has ``config.json``, weights (safetensors, else ``pytorch_model.bin``; sharded or not)
and, where there is one, ``tokenizer.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    WeightError,
    mismatch,
)
from stof_cupy.models.gguf_file import open_gguf
from stof_cupy.models.gguf_names import config_of, tensors_of
from stof_cupy.models.lazy import LazyTensors
from stof_cupy.models.onnx_file import open_onnx
from stof_cupy.models.safetensors_file import open_safetensors
from stof_cupy.models.torch_file import open_torch

__all__ = ["Checkpoint", "read_checkpoint", "read_json", "read_object"]

Readers = dict[str, Callable[[], np.ndarray[Any, Any]]]

_FORMATS: tuple[tuple[str, Callable[[Path], Readers]], ...] = (
    ("model.safetensors", open_safetensors),
    ("pytorch_model.bin", open_torch),
)
"""File names of weights in a directory, the first that is there is read, and what opens them."""

_WEIGHTS = _FORMATS[0][0]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk.

    Attributes
    ----------
    config : dict or None
        ``config.json`` as it stands, or what the metadata of a GGUF file amounts to; None beside an
        ONNX file without one.
    tensors : mapping of str to ndarray
        The weights by name; each is read from the memory-mapped file when it is asked for.
    tokenizer_path : Path or None
        ``tokenizer.json``, where there is one, or the GGUF file.
    """

    config: dict[str, Any] | None
    tensors: Mapping[str, np.ndarray[Any, Any]]
    tokenizer_path: Path | None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Open the checkpoint at `path`, a directory or a ``.gguf`` or ``.onnx`` file.

    Of safetensors, torch and GGUF files no weight is read yet.

    Raises
    ------
    CheckpointNotFoundError
        If the directory, its ``config.json`` or its weights do not exist.
    ConfigError
        If ``config.json`` is not a JSON object.
    CheckpointError
        If the weights are damaged or are not what their file's name says.
    UnsupportedError
        If a GGUF file is of an architecture not known here.
    MissingDependencyError
        Without the ``models`` extra.
    """
    root = Path(path)
    with suppress(RuntimeError):  # no such user, so the path as it is will not be found either
        root = root.expanduser()
    # os.path, because Path's own questions raise for a name that is too long.
    if os.path.isfile(root) and root.suffix == ".gguf":
        return _gguf(root)
    if os.path.isfile(root) and root.suffix == ".onnx":
        beside = root.parent / "config.json"
        config = read_object(beside, ConfigError) if beside.is_file() else None
        return Checkpoint(config, LazyTensors(open_onnx(root)), _tokenizer(root.parent))
    if not os.path.isdir(root):
        what = "a file" if os.path.exists(root) else "no such directory"
        raise CheckpointNotFoundError(
            mismatch(
                "checkpoint",
                f"{str(root)!r} ({what})",
                f"a directory with config.json and {_WEIGHTS}, or a .gguf or .onnx file",
            )
        )
    config = read_object(root / "config.json", ConfigError)
    return Checkpoint(config, LazyTensors(_readers(root)), _tokenizer(root))


def _gguf(path: Path) -> Checkpoint:
    file = open_gguf(path)
    config = config_of(file)
    has_tokens = "tokenizer.ggml.tokens" in file.fields
    tensors = LazyTensors(tensors_of(file, config))
    return Checkpoint(config, tensors, path if has_tokens else None)


def _tokenizer(root: Path) -> Path | None:
    path = root / "tokenizer.json"
    return path if path.is_file() else None


def read_object(path: Path, error: type[CheckpointError]) -> dict[str, Any]:
    """Return the JSON object in the file `path`; raise `error` if there is none."""
    value = read_json(path, error)
    if not isinstance(value, dict):
        raise error(mismatch(str(path), f"a JSON {type(value).__name__}", "a JSON object"))
    return value


def read_json(path: Path, error: type[CheckpointError]) -> Any:
    """Return the value in the JSON file `path`; raise `error` if it is unreadable."""
    if not path.is_file():
        raise CheckpointNotFoundError(
            mismatch("checkpoint", f"no {path.name} in {str(path.parent)!r}", path.name)
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as bad:
        raise error(mismatch(str(path), f"unreadable JSON ({bad})", "JSON")) from bad


def _readers(root: Path) -> Readers:
    """Return the weights of a directory, in the first format that is there."""
    for name, opened in _FORMATS:
        if (root / name).is_file():
            return opened(root / name)
        if (root / f"{name}.index.json").is_file():
            return _shards(root, f"{name}.index.json", opened)
    others = sorted(p.name for p in root.iterdir() if p.suffix in (".gguf", ".onnx"))
    names = " or ".join(name for name, _ in _FORMATS)
    hint = f"or the path of {others[0]} itself" if others else ""
    raise CheckpointNotFoundError(
        mismatch("checkpoint", f"no weights in {str(root)!r}", names, hint)
    )


def _shards(root: Path, index: str, opened: Callable[[Path], Readers]) -> Readers:
    shards = read_object(root / index, CheckpointError).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
        raise CheckpointError(
            mismatch(f"{index}['weight_map']", type(shards).__name__, "an object of file names")
        )
    readers: Readers = {}
    for name in sorted(set(shards.values())):
        # A shard is a sibling: an index must not make us open files elsewhere.
        if Path(name).name != name or name == "..":
            raise CheckpointError(mismatch(index, repr(name), "the name of a file beside it"))
        if not os.path.isfile(root / name):
            raise CheckpointNotFoundError(
                mismatch("checkpoint", f"no {name} in {str(root)!r}", f"a shard that {index} lists")
            )
        found = opened(root / name)
        _agree(index, name, shards, found)
        readers |= found
    return readers


def _agree(index: str, file: str, shards: Mapping[str, str], found: Readers) -> None:
    """Raise WeightError unless file and index agree on what is in the file."""
    listed = {tensor for tensor, shard in shards.items() if shard == file}
    if missing := sorted(listed - found.keys()):
        expected = f"it there, as {index} says"
        raise WeightError(mismatch("weights", f"no {missing[0]!r} in {file}", expected))
    if extra := sorted(found.keys() - listed):
        expected = f"it in {shards[extra[0]]!r}" if extra[0] in shards else "no such weight"
        got = f"{extra[0]!r} in {file}"
        raise WeightError(mismatch("weights", got, f"{expected}, as {index} says"))
