"""Every ``STOF_*`` environment variable: its name, default and meaning, and nothing else.

Variables are read when they are needed, never at import. The table in the README is checked against
:data:`VARIABLES`.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stof_cupy.errors import StofWarning

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

__all__ = [
    "BACKEND",
    "CACHE_DIR",
    "NVRTC",
    "OVERLAP",
    "VARIABLES",
    "VERIFY",
    "Variable",
    "cache_dir",
]


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes
    ----------
    name : str
        The variable, ``STOF_`` included.
    default : str
        What holds when it is unset or empty.
    meaning : str
        One sentence for the README.
    """

    name: str
    default: str
    meaning: str

    def get(self) -> str:
        """Return the value now in the environment, or the default."""
        return os.environ.get(self.name) or self.default


CACHE_DIR = Variable(
    "STOF_CACHE_DIR",
    "~/.cache/stof_cupy",
    "Where compiled kernels, tuned schemes and downloaded models are kept.",
)
BACKEND = Variable(
    "STOF_BACKEND",
    "auto",
    'What `backend="auto"` means: `auto` (CUDA if there is a GPU), `cuda` or `numpy`.',
)
NVRTC = Variable(
    "STOF_NVRTC", "", "Path of the libnvrtc to compile with; empty: the one CuPy would load."
)
VERIFY = Variable(
    "STOF_VERIFY", "0", "`1` verifies the graph after every rewrite, not only once at the end."
)
OVERLAP = Variable(
    "STOF_OVERLAP",
    "1",
    "`0` lets no kernel be launched before the one before it has ended, as on GPUs before sm_90.",
)

VARIABLES = (CACHE_DIR, BACKEND, NVRTC, VERIFY, OVERLAP)


def cache_dir(*parts: str) -> Path:
    """Return a path below the cache directory; nothing is created.

    Where there is no home directory to put it in, a temporary one that lives as long as the process
    serves, with a warning.

    Examples
    --------
    >>> cache_dir("kernels").name
    'kernels'
    """
    where = CACHE_DIR.get()
    try:
        root = Path(where).expanduser()
    except RuntimeError as homeless:
        root = _temporary(where, str(homeless))
    return root.joinpath(*parts)


_kept: list[TemporaryDirectory[str]] = []
"""The directory goes when this object does: when the process ends."""


@cache
def _temporary(where: str, reason: str) -> Path:
    from tempfile import TemporaryDirectory

    _kept.append(TemporaryDirectory(prefix="stof_cupy-"))
    path: str = _kept[-1].name
    warnings.warn(
        f"cache directory {where!r}: {reason} Kernels and models are kept in {path!r} until this "
        f"process ends; set {CACHE_DIR.name} to keep them",
        StofWarning,
        stacklevel=3,
    )
    return Path(path)
