"""How the command prints: headings, columns, and warnings of one line."""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from stof_cupy.errors import StofWarning

__all__ = ["WIDTH", "Progress", "plain_warnings", "show_fields", "title"]

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


class Progress:
    """A bar on stderr, drawn over itself; nothing where stderr is no terminal.

    Parameters
    ----------
    name : str
        What is going on.
    stream : file, optional
        Default: stderr at the time.

    Examples
    --------
    >>> from io import StringIO
    >>> bar = Progress("tuning", StringIO(), always=True)
    >>> bar(0.5, "piece 1 of 2")
    >>> bar._stream.getvalue().strip()
    'tuning [############            ]  50% piece 1 of 2'
    """

    def __init__(self, name: str, stream: TextIO | None = None, *, always: bool = False) -> None:
        self._name, self._stream = name, stream or sys.stderr
        self._shows = always or self._stream.isatty()
        self._drawn = False

    def __call__(self, share: float, text: str = "") -> None:
        """Draw a share from 0 to 1, and what is being done."""
        if not self._shows:
            return
        share = min(max(share, 0.0), 1.0)
        done = round(24 * share)
        line = f"{self._name} [{'#' * done:24}] {share:4.0%} {text}"
        self._stream.write(f"\r{line[:WIDTH]:{WIDTH}}")
        self._stream.flush()
        self._drawn = True

    def close(self) -> None:
        """Wipe the bar."""
        if self._drawn:
            self._stream.write(f"\r{'':{WIDTH}}\r")
            self._stream.flush()
            self._drawn = False
