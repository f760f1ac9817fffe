"""The binary code of a fusion scheme: one digit an operator, a change of digit is a boundary.

Source: STOF (arXiv 2506.06095), section 4.3. Digits of one segment are equal, those of neighbours
differ, and a digit by itself means nothing; the first is written 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from stof_cupy.errors import ArgumentError, mismatch

__all__ = ["Scheme", "differing"]


@dataclass(frozen=True)
class Scheme:
    """How operators in their order are cut into segments.

    Parameters
    ----------
    sizes : tuple of int
        Operators of each segment, at least 1.

    Raises
    ------
    ArgumentError
        If a size is not positive.

    Examples
    --------
    The BERT layer of the paper's figure 7, whose operators 2 to 6 are attention:

    >>> scheme = Scheme.from_bits("0 1 00000 111 000 11")
    >>> scheme.sizes, scheme.spans()[2]
    ((1, 1, 5, 3, 3, 2), (2, 7))
    >>> scheme.hex, Scheme.parse("15:20e3") == scheme
    ('15:20e3', True)
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in self.sizes):
            raise ArgumentError(mismatch("sizes", self.sizes, "positive integers"))

    @classmethod
    def from_bits(cls, bits: str | Iterable[int]) -> Scheme:
        """Read digits: a string of 0 and 1 and blanks, or integers; either digit may come first.

        Raises
        ------
        ArgumentError
            If there is another digit.
        """
        given = list(bits.replace(" ", "")) if isinstance(bits, str) else list(bits)
        digits = [str(int(d)) if str(d) in ("0", "1", "True", "False") else "" for d in given]
        if "" in digits:
            raise ArgumentError(mismatch("bits", repr(given[digits.index("")]), "0 or 1"))
        return cls(tuple(len([*run]) for _, run in groupby(digits)))

    @classmethod
    def from_spans(cls, spans: Sequence[tuple[int, int]]) -> Scheme:
        """Return the scheme of segments ``[start, stop)`` that follow each other from 0.

        Raises
        ------
        ArgumentError
            If they do not.
        """
        stops = [0, *(stop for _, stop in spans)]
        if [start for start, _ in spans] != stops[:-1]:
            raise ArgumentError(mismatch("spans", list(spans), "segments without gap or overlap"))
        return cls(tuple(stop - start for start, stop in spans))

    @classmethod
    def single(cls, count: int) -> Scheme:
        """Return the scheme in which every operator is alone."""
        return cls((1,) * count)

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """Read the hexadecimal form; see :attr:`hex`.

        Raises
        ------
        ArgumentError
            If it is not one.
        """
        match = re.fullmatch(r"(\d{1,6}):([0-9a-fA-F]+)", text)
        count = int(match[1]) if match else 0
        value = int(match[2], 16) if match else 0
        if match is None or value >> max(count - 1, 0):
            raise ArgumentError(
                mismatch("scheme", repr(text), "operators:digits in hexadecimal, e.g. '15:20e3'")
            )
        return cls.from_bits(f"{value:0{count}b}" if count else "")

    @property
    def count(self) -> int:
        """How many operators there are."""
        return sum(self.sizes)

    @property
    def bits(self) -> tuple[int, ...]:
        """One digit an operator; the first is 0."""
        return tuple(number % 2 for number, size in enumerate(self.sizes) for _ in range(size))

    @property
    def hex(self) -> str:
        """The number of operators, and the digits as a hexadecimal number: ``"15:20e3"``."""
        digits = "".join(map(str, self.bits))
        return f"{self.count}:{int(digits or '0', 2):0{-(-self.count // 4)}x}"

    def spans(self) -> list[tuple[int, int]]:
        """Return the segments as ``[start, stop)``."""
        stops = [sum(self.sizes[: number + 1]) for number in range(len(self.sizes))]
        return [(stop - size, stop) for stop, size in zip(stops, self.sizes, strict=True)]

    def __str__(self) -> str:
        """Return the digits with a blank at each boundary, as the paper prints them."""
        return " ".join(str(number % 2) * size for number, size in enumerate(self.sizes))


def differing(
    one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]
) -> list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """Return the shortest runs in which two schemes are cut differently, as both cut them.

    Examples
    --------
    >>> differing([(0, 1), (1, 3), (3, 4)], [(0, 1), (1, 2), (2, 3), (3, 4)])
    [([(1, 3)], [(1, 2), (2, 3)])]
    """
    stops = sorted({stop for _, stop in one} & {stop for _, stop in other})
    runs = []
    for start, stop in pairwise([0, *stops]):
        both = [[s for s in spans if start <= s[0] and s[1] <= stop] for spans in (one, other)]
        if both[0] != both[1]:
            runs.append((both[0], both[1]))
    return runs
