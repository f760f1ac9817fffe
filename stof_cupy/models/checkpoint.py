"""Reads Hugging Face style directories.

``config.json``, safetensors weights (sharded or not) and, where there is one, ``tokenizer.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
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
from stof_cupy.models.extras import require

__all__ = ["Checkpoint", "read_checkpoint", "read_json", "read_object"]

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_INTEGERS = (f"{sign}{bits}" for sign in "IU" for bits in (8, 16, 32, 64))
_DTYPES = ("F16", "BF16", "F32", "F64", *_INTEGERS, "BOOL")
"""Element types of safetensors that there is a NumPy type for."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk.

    Attributes
    ----------
    config : dict
        ``config.json`` as it stands.
    tensors : mapping of str to ndarray
        The weights by name; each is read from the memory-mapped file when it is asked for.
    tokenizer_path : Path or None
        ``tokenizer.json``, where there is one.
    """

    config: dict[str, Any]
    tensors: Mapping[str, np.ndarray[Any, Any]]
    tokenizer_path: Path | None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Open the checkpoint in directory `path`; no weight is read yet.

    Raises
    ------
    CheckpointNotFoundError
        If the directory, its ``config.json`` or its weights do not exist.
    ConfigError
        If ``config.json`` is not a JSON object.
    CheckpointError
        If the weights are not valid safetensors.
    MissingDependencyError
        Without the ``models`` extra.
    """
    root = Path(path)
    with suppress(RuntimeError):  # no such user, so the path as it is will not be found either
        root = root.expanduser()
    # os.path, because Path's own questions raise for a name that is too long.
    if not os.path.isdir(root):
        what = "a file" if os.path.exists(root) else "no such directory"
        raise CheckpointNotFoundError(
            mismatch(
                "checkpoint",
                f"{str(root)!r} ({what})",
                f"a directory with config.json and {_WEIGHTS}",
            )
        )
    config = read_object(root / "config.json", ConfigError)
    tokenizer = root / "tokenizer.json"
    return Checkpoint(config, _tensors(root), tokenizer if tokenizer.is_file() else None)


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


def _tensors(root: Path) -> SafeTensors:
    if (root / _WEIGHTS).is_file():
        return SafeTensors(_open(root / _WEIGHTS))
    if not (root / _INDEX).is_file():
        others = sorted(p.name for p in root.glob("*.bin")) + sorted(
            p.name for p in root.glob("*.gguf")
        )
        hint = f"{others[0]} is not read here, convert it to safetensors" if others else ""
        raise CheckpointNotFoundError(
            mismatch("checkpoint", f"no weights in {str(root)!r}", f"{_WEIGHTS} or {_INDEX}", hint)
        )
    shards = read_object(root / _INDEX, CheckpointError).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
        raise CheckpointError(
            mismatch(f"{_INDEX}['weight_map']", type(shards).__name__, "an object of file names")
        )
    files: dict[str, Any] = {}
    for name in sorted(set(shards.values())):
        # A shard is a sibling: an index must not make us open files elsewhere.
        if Path(name).name != name or name == "..":
            raise CheckpointError(mismatch(_INDEX, repr(name), "the name of a file beside it"))
        if not os.path.isfile(root / name):
            raise CheckpointNotFoundError(
                mismatch(
                    "checkpoint", f"no {name} in {str(root)!r}", f"a shard that {_INDEX} lists"
                )
            )
        files |= _open_shard(root / name, shards)
    return SafeTensors(files)


def _open_shard(path: Path, shards: Mapping[str, str]) -> dict[str, Any]:
    """Return what :func:`_open` does, once file and index agree on what is in the file."""
    opened = _open(path)
    listed = {tensor for tensor, shard in shards.items() if shard == path.name}
    if missing := sorted(listed - opened.keys()):
        expected = f"it there, as {_INDEX} says"
        raise WeightError(mismatch("weights", f"no {missing[0]!r} in {path.name}", expected))
    if extra := sorted(opened.keys() - listed):
        expected = f"it in {shards[extra[0]]!r}" if extra[0] in shards else "no such weight"
        got = f"{extra[0]!r} in {path.name}"
        raise WeightError(mismatch("weights", got, f"{expected}, as {_INDEX} says"))
    return opened


def _open(path: Path) -> dict[str, Any]:
    """Return, for the name of each tensor in a safetensors file, the open file."""
    safetensors = require("safetensors")
    try:
        file: Any = safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as bad:
        raise CheckpointError(
            mismatch(str(path), f"unreadable ({bad})", "a safetensors file")
        ) from bad
    return dict.fromkeys(file.keys(), file)


class SafeTensors(Mapping[str, np.ndarray[Any, Any]]):
    """Tensors of open safetensors files, by name; an item is read when it is asked for."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        file = self._files[name]
        dtype = file.get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            expected = f"one of {', '.join(_DTYPES)}"
            raise WeightError(mismatch(f"weight {name!r}", f"elements of type {dtype}", expected))
        if dtype == "BF16":
            # NumPy knows the type's name only once ml_dtypes has registered it.
            import ml_dtypes  # noqa: F401
        tensor: np.ndarray[Any, Any] = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
