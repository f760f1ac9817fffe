"""How a checkpoint wants sentences made into vectors, by the files sentence-transformers writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stof_cupy.errors import ConfigError, mismatch
from stof_cupy.models.checkpoint import read_json, read_object

__all__ = ["SentenceConfig"]

_MODULES = "modules.json"
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
_INPUT = "sentence_bert_config.json"
_POOLING = "1_Pooling"
_MODE = "pooling_mode_"
_POOLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}
"""What files of different ages call the two ways known here."""


@dataclass(frozen=True)
class SentenceConfig:
    """What a checkpoint says of sentences beyond its model.

    Attributes
    ----------
    pooling : {"mean", "cls"}
        The mean of the hidden states, or that of the first token.
    max_length : int or None
        The most tokens of a sentence, special tokens included; None: what the model takes.
    lower_case : bool
        Whether sentences are put in lower case before they become tokens.
    """

    pooling: str = "mean"
    max_length: int | None = None
    lower_case: bool = False

    @classmethod
    def read(cls, root: Path) -> SentenceConfig:
        """Read the files in directory `root`; what they do not say, the defaults above do.

        Raises
        ------
        ConfigError
            If they ask for what is not done here, or are damaged.
        """
        folder = _pooling_folder(root / _MODULES)
        path = root / _INPUT
        given = read_object(path, ConfigError) if path.is_file() else {}
        return cls(
            _pooling(root / folder / "config.json"),
            _max_length(given, path),
            bool(given.get("do_lower_case", False)),
        )


def _pooling_folder(path: Path) -> str:
    """Check the modules that the file lists; return where that of pooling is described."""
    folder = _POOLING
    modules = read_json(path, ConfigError) if path.is_file() else []
    for module in modules if isinstance(modules, list) else [modules]:
        kind = module.get("type") if isinstance(module, dict) else module
        if str(kind).rpartition(".")[2] not in _KNOWN_MODULES:
            known = ", ".join(_KNOWN_MODULES)
            raise ConfigError(mismatch(str(path), f"the module {kind!r}", f"only {known}"))
        if str(kind).endswith("Pooling") and isinstance(module, dict) and "path" in module:
            folder = module["path"]
            if not isinstance(folder, str) or folder == ".." or Path(folder).name != folder:
                raise ConfigError(mismatch(str(path), repr(folder), "a folder beside it"))
    return folder


def _pooling(path: Path) -> str:
    if not path.is_file():
        return "mean"
    config = read_object(path, ConfigError)
    modes = [key.removeprefix(_MODE) for key, on in config.items() if key.startswith(_MODE) and on]
    modes = [config["pooling_mode"]] if "pooling_mode" in config else modes
    if len(modes) != 1 or str(modes[0]) not in _POOLINGS:
        raise ConfigError(mismatch(str(path), f"pooling modes {modes}", "one of 'mean' and 'cls'"))
    return _POOLINGS[modes[0]]


def _max_length(given: dict[str, Any], path: Path) -> int | None:
    value = given.get("max_seq_length")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(
            mismatch(f"{path}['max_seq_length']", repr(value), "an integer of at least 1, or null")
        )
    return value
