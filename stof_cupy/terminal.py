"""How the command prints: headings, columns, and warnings of one line."""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stof_cupy.errors import StofWarning

__all__ = ["WIDTH", "plain_warnings", "show_fields", "title"]

WIDTH = 88
"""Characters of a line."""


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}\n{'-' * min(len(text), WIDTH)}")


def show_fields(fields: dict[str, str]) -> None:
    """Print names and values in two columns, values wrapped."""
    column = max(9, *(len(name) + 2 for name in fields))
    for name, value in fields.items():
        indent = " " * (column + 2)
        print(textwrap.fill(f"  {name:{column}}{value}", WIDTH, subsequent_indent=indent))


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show our warnings as one line, without a source position, which would be our own."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, StofWarning):
            print(f"stof-cupy: warning: {message}", file=sys.stderr)
        else:
            plain(message, category, *where, **more)

    with warnings.catch_warnings():
        plain, warnings.showwarning = warnings.showwarning, show
        yield
