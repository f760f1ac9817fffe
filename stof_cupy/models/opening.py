"""What a caller calls weights, opened: a path or a mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stof_cupy.errors import CheckpointNotFoundError, ConfigError, DTypeError, mismatch
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.inputs import host_arrays
from stof_cupy.models.packaged import mending

__all__ = ["checkpoint_folder", "open_weights"]


def open_weights(
    weights: str | os.PathLike[str] | Mapping[str, Any],
    config: Mapping[str, Any] | None,
    tokenizer: str | os.PathLike[str] | None = None,
) -> tuple[Mapping[str, Any], Mapping[str, Any], Path | None]:
    """Return config, tensors and tokenizer path; see :class:`stof_cupy.TransformerEngine`.

    Raises
    ------
    CheckpointError, ConfigError, DTypeError
        If there is no checkpoint, config or tokenizer, or `weights` is something else.
    """
    own = None if tokenizer is None else Path(tokenizer)
    if own is not None and not os.path.isfile(own):
        raise CheckpointNotFoundError(
            mismatch("tokenizer", repr(str(own)), "the path of a tokenizer.json or .gguf file")
        )
    if isinstance(weights, (str, os.PathLike)):
        with mending(Path(weights)):
            checkpoint = read_checkpoint(Path(weights))
        chosen = checkpoint.config if config is None else config
        if chosen is None:
            expected = "a mapping, because no config.json is beside the file"
            raise ConfigError(mismatch("config", None, expected))
        return chosen, checkpoint.tensors, own or checkpoint.tokenizer_path
    if not isinstance(weights, Mapping):
        expected = "the path of a checkpoint or a mapping of arrays"
        raise DTypeError(mismatch("weights", type(weights).__name__, expected))
    if config is None:
        raise ConfigError(mismatch("config", None, "a mapping, because weights are one"))
    return config, host_arrays(weights), own


def checkpoint_folder(weights: Any) -> Path | None:
    """Return the directory that a checkpoint is or lies in; None for a mapping."""
    if not isinstance(weights, (str, os.PathLike)):
        return None
    path = Path(weights)
    return path if path.is_dir() else path.parent
