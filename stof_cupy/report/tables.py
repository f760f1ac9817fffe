"""A table, as Markdown and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Table", "number", "ordered"]


@dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of tuple of str
        Each as long as `columns`.
    notes : tuple of str
        Sentences below it.

    Examples
    --------
    >>> table = Table(("mask", "ms"), (("causal", "1.25"), ("full", "12.5")), ("On a GPU.",))
    >>> print(table.text)
    mask      ms
    causal  1.25
    full    12.5
    On a GPU.
    >>> print(table.markdown.splitlines()[1])
    |---|---:|
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def markdown(self) -> str:
        """GitHub's Markdown; a paragraph for each note."""
        bars = ("---:" if right else "---" for right in self._right)
        lines = [f"| {' | '.join(self.columns)} |", f"|{'|'.join(bars)}|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])

    @property
    def text(self) -> str:
        """Columns that line up."""
        every = [self.columns, *self.rows]
        widths = [max(len(row[at]) for row in every) for at in range(len(self.columns))]
        lines = []
        for row in every:
            cells = (
                f"{cell:>{width}}" if right else f"{cell:{width}}"
                for cell, width, right in zip(row, widths, self._right, strict=True)
            )
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *self.notes])

    @property
    def _right(self) -> Sequence[bool]:
        """Whether a column is of numbers."""
        return [
            at > 0 and all(row[at][:1] in {"", *"0123456789+-."} for row in self.rows)
            for at in range(len(self.columns))
        ]


def number(value: float) -> str:
    """Return three significant digits, without an exponent.

    Examples
    --------
    >>> [number(x) for x in (0.012345, 1.0, 88.5158, 1234.5)]
    ['0.0123', '1.00', '88.5', '1230']
    """
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    digits = 0
    while digits < 9 and abs(rounded) * 10**digits < 99.95:
        digits += 1
    return f"{rounded:.{digits}f}"


def ordered(values: Iterable[str]) -> list[str]:
    """Return each value once: numbers by size, batches of tokens by tokens, others as they came.

    Examples
    --------
    >>> ordered(["4096", "128", "128"]), ordered(["sliding", "causal"])
    (['128', '4096'], ['sliding', 'causal'])
    >>> ordered(["16x2048", "1x128", "8x512"])
    ['1x128', '8x512', '16x2048']
    """
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=_size)
    except ValueError:
        return found


def _size(text: str) -> tuple[float, float]:
    """Return a number, or tokens and batch of ``8x512``, so that they can be sorted."""
    batch, _, tokens = text.rpartition("x")
    return float(tokens), float(batch or 0)
