"""Optional packages, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from stof_cupy.errors import MissingDependencyError, mismatch

__all__ = ["require"]


def require(name: str, extra: str = "models") -> Any:
    """Return the module `name`, which the extra `extra` brings.

    Raises
    ------
    MissingDependencyError
        Naming the extra that brings it.
    """
    try:
        return import_module(name)
    except ImportError as absent:
        hint = f"pip install 'stof-cupy[{extra}]'"
        raise MissingDependencyError(mismatch(name, "not installed", "installed", hint)) from absent
