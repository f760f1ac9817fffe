"""Progress on stderr, through tqdm, and none where none is wanted."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from stof_cupy.models.extras import require

__all__ = ["bar"]


class _NoBar:
    def update(self, count: int = 1) -> None:
        """Show nothing."""


def bar(total: int, show: bool, *, unit: str, title: str = "") -> AbstractContextManager[Any]:
    """Return a context with a progress bar that has ``update(count)``.

    Raises
    ------
    MissingDependencyError
        If one is to be shown without the ``models`` extra.
    """
    if not show:
        return nullcontext(_NoBar())
    shown: AbstractContextManager[Any] = require("tqdm").tqdm(
        total=total, unit=unit, desc=title or None
    )
    return shown
