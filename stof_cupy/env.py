"""Every ``STOF_*`` environment variable: its name, default and meaning, and nothing else.

Variables are read when they are needed, never at import. The table in the README is checked against
:data:`VARIABLES`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BACKEND", "CACHE_DIR", "NVRTC", "VARIABLES", "VERIFY", "Variable", "cache_dir"]


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
    "STOF_CACHE_DIR", "~/.cache/stof_cupy", "Where compiled kernels and downloaded models are kept."
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

VARIABLES = (CACHE_DIR, BACKEND, NVRTC, VERIFY)


def cache_dir(*parts: str) -> Path:
    """Return a path below the cache directory; nothing is created.

    Examples
    --------
    >>> cache_dir("kernels").name
    'kernels'
    """
    return Path(CACHE_DIR.get()).expanduser().joinpath(*parts)
