"""Schemes that were found, on disk: a JSON file each, so that nothing is tuned twice.

What a scheme was found for is written beside it: the device, the type, the class of shapes, the
operators, and the versions of what runs them. A file from another version counts as absent, and is
said once; one that cannot be read, too.
"""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stof_cupy import __version__, env
from stof_cupy.errors import StofError, StofWarning
from stof_cupy.files import UNUSABLE, write_whole
from stof_cupy.fusion.cost import shapes_class
from stof_cupy.fusion.kernels import KERNELS, Setting
from stof_cupy.fusion.products import CHOICES
from stof_cupy.fusion.scheme import Scheme

__all__ = ["Found", "SchemeStore", "is_current", "shapes_class", "versions"]

_SCHEMA = 1


@dataclass(frozen=True)
class Found:
    """A scheme, a setting for each segment, and the seconds it was found to take."""

    scheme: Scheme
    settings: tuple[Setting, ...]
    seconds: float


def versions() -> dict[str, Any]:
    """Return what a scheme depends on beside its problem."""
    return {
        "schema": _SCHEMA,
        "stof_cupy": __version__,
        "kernels": [kernel.name for kernel in KERNELS],
        "choices": hashlib.sha256(repr(CHOICES).encode()).hexdigest()[:16],
    }


def is_current(record: bytes) -> bool:
    """Whether a scheme's file is one that these versions read."""
    try:
        return bool(json.loads(record)["versions"] == versions())
    except UNUSABLE:
        return False


class SchemeStore:
    """The schemes below one directory.

    Parameters
    ----------
    root : Path, optional
        Made when the first scheme is stored. Default: ``schemes`` in the cache directory.
    """

    _warned: set[str] = set()  # noqa: RUF012  # of the process: what was said is said
    _lock = threading.Lock()

    def __init__(self, root: Path | None = None) -> None:
        self.root = env.cache_dir("schemes") if root is None else root

    def get(self, problem: Mapping[str, Any]) -> Found | None:
        """Return what was found for a problem by these versions, or None."""
        path = self._path(problem)
        try:
            record = json.loads(path.read_bytes())
            if record["problem"] != json.loads(json.dumps(dict(problem))):
                return None
            if record["versions"] != versions():
                self._say(
                    "version", f"scheme cache {self.root}: ignored entries of another version"
                )
                return None
            settings = tuple(
                tuple((str(name), int(value)) for name, value in each)
                for each in record["settings"]
            )
            found = Found(Scheme.parse(record["scheme"]), settings, float(record["seconds"]))
        except FileNotFoundError:
            return None
        except (*UNUSABLE, StofError):
            self._say("damaged", f"scheme cache {path}: ignored, it cannot be read")
            return None
        return found if len(found.settings) == len(found.scheme.sizes) else None

    def put(self, problem: Mapping[str, Any], found: Found) -> None:
        """Store what was found; where the directory cannot be written, warn once and go on."""
        record = {
            "versions": versions(),
            "problem": dict(problem),
            "scheme": found.scheme.hex,
            "settings": [[list(pair) for pair in each] for each in found.settings],
            "seconds": found.seconds,
        }
        text = json.dumps(record, indent=1) + "\n"
        try:
            write_whole(self._path(problem), text.encode())
        except OSError as error:
            self._say(
                "unwritable",
                f"scheme cache {self.root} cannot be written ({error}); what is tuned now is lost "
                f"when this process ends. Set {env.CACHE_DIR.name} to another place.",
            )

    def _path(self, problem: Mapping[str, Any]) -> Path:
        text = json.dumps(dict(problem), sort_keys=True)
        return self.root / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def _say(self, kind: str, message: str) -> None:
        with self._lock:
            said = f"{kind}:{self.root}" in self._warned
            self._warned.add(f"{kind}:{self.root}")
        if not said:
            warnings.warn(message, StofWarning, stacklevel=4)
