"""Reads Hugging Face style directories.

``config.json``, safetensors weights (sharded or not) and, where there is one, ``tokenizer.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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

__all__ = ["Checkpoint", "read_checkpoint"]

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


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
    root = Path(path).expanduser()
    if not root.is_dir():
        what = "a file" if root.exists() else "no such directory"
        raise CheckpointNotFoundError(
            mismatch(
                "checkpoint",
                f"{str(root)!r} ({what})",
                f"a directory with config.json and {_WEIGHTS}",
            )
        )
    config = _read_object(root / "config.json", ConfigError)
    tokenizer = root / "tokenizer.json"
    return Checkpoint(config, _tensors(root), tokenizer if tokenizer.is_file() else None)


def _read_object(path: Path, error: type[CheckpointError]) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointNotFoundError(
            mismatch("checkpoint", f"no {path.name} in {str(path.parent)!r}", path.name)
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as bad:
        raise error(mismatch(str(path), f"unreadable JSON ({bad})", "a JSON object")) from bad
    if not isinstance(value, dict):
        raise error(mismatch(str(path), f"a JSON {type(value).__name__}", "a JSON object"))
    return value


def _tensors(root: Path) -> SafeTensors:
    if (root / _WEIGHTS).is_file():
        return SafeTensors([root / _WEIGHTS])
    if not (root / _INDEX).is_file():
        others = sorted(p.name for p in root.glob("*.bin")) + sorted(
            p.name for p in root.glob("*.gguf")
        )
        hint = f"{others[0]} is not read here, convert it to safetensors" if others else ""
        raise CheckpointNotFoundError(
            mismatch("checkpoint", f"no weights in {str(root)!r}", f"{_WEIGHTS} or {_INDEX}", hint)
        )
    shards = _read_object(root / _INDEX, CheckpointError).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
        raise CheckpointError(
            mismatch(f"{_INDEX}['weight_map']", type(shards).__name__, "an object of file names")
        )
    for name in sorted(set(shards.values())):
        # A shard is a sibling: an index must not make us open files elsewhere.
        if Path(name).name != name:
            raise CheckpointError(mismatch(_INDEX, repr(name), "the name of a file beside it"))
        if not (root / name).is_file():
            raise CheckpointNotFoundError(
                mismatch(
                    "checkpoint", f"no {name} in {str(root)!r}", f"a shard that {_INDEX} lists"
                )
            )
    tensors = SafeTensors([root / name for name in sorted(set(shards.values()))])
    missing = sorted(set(shards) - set(tensors))
    if missing:
        raise WeightError(
            mismatch("weights", f"no {missing[0]!r} in the shards", "every one listed")
        )
    return tensors


class SafeTensors(Mapping[str, np.ndarray[Any, Any]]):
    """Tensors of safetensors files, memory-mapped; an item is read when it is asked for."""

    def __init__(self, paths: list[Path]) -> None:
        safetensors = require("safetensors")
        self._files: dict[str, Any] = {}
        for path in paths:
            try:
                file: Any = safetensors.safe_open(path, framework="numpy")
            except (safetensors.SafetensorError, OSError) as bad:
                raise CheckpointError(
                    mismatch(str(path), f"unreadable ({bad})", "a safetensors file")
                ) from bad
            self._files.update(dict.fromkeys(file.keys(), file))

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        file = self._files[name]
        if file.get_slice(name).get_dtype() == "BF16":
            # NumPy knows the type's name only once ml_dtypes has registered it.
            import ml_dtypes  # noqa: F401
        tensor: np.ndarray[Any, Any] = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
