"""Neighbourhoods on a 1-, 2- or 3-D lattice of tokens, with NATTEN's manners at the borders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks.bitmap import LOW_BITS, TILE, Words, pack_bits
from stof_cupy.masks.check import at_least
from stof_cupy.masks.expression import Leaf, Pattern
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import Int64s, grid

__all__ = ["Neighborhood", "neighborhood"]


def neighborhood(
    lattice: int | Sequence[int],
    *,
    window: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    causal: bool | Sequence[bool] = False,
) -> Pattern:
    """Each token sees a box of tokens around itself (neighbourhood attention, NATTEN).

    At a border the box is moved inwards, as in NATTEN (arXiv 2204.07143), so that every token sees
    exactly ``prod(window)`` tokens: Swin-like zero padding this is not. Along an axis of `size`
    tokens, token ``i`` of every `dilation`-th one sees the `window` tokens from ``clip(i - window
    // 2, 0, size - window)`` on, all counted among those that are a multiple of `dilation` away.
    A causal axis sees the token itself and up to ``window - 1`` before it, not moved.

    Parameters
    ----------
    lattice : int or sequence of 1 to 3 int
        Tokens along each axis, the last one fastest: ``(height, width)`` of a flattened image.
    window : int or sequence of int
        Tokens seen along each axis, or one number for all; NATTEN's ``kernel_size``.
    dilation : int or sequence of int
        Step from one to the next along each axis.
    causal : bool or sequence of bool
        Whether an axis looks back only.

    Raises
    ------
    ArgumentError
        If the lattice has not 1 to 3 axes, a window or dilation is less than 1, or ``window *
        dilation`` is larger than its axis.

    Examples
    --------
    >>> neighborhood(6, window=3).toarray().astype(int)
    array([[1, 1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [0, 1, 1, 1, 0, 0],
           [0, 0, 1, 1, 1, 0],
           [0, 0, 0, 1, 1, 1],
           [0, 0, 0, 1, 1, 1]])
    >>> neighborhood((16, 16), window=(3, 5), dilation=(2, 1)).nnz == 16 * 16 * 3 * 5
    True
    """
    sizes = tuple(lattice) if isinstance(lattice, Sequence) else (lattice,)
    sizes = tuple(at_least(1, "lattice", size) for size in sizes)
    if not 1 <= len(sizes) <= 3:
        raise ArgumentError(mismatch("lattice", repr(lattice), "1 to 3 axes"))
    windows = [at_least(1, "window", n) for n in _each("window", window, len(sizes))]
    steps = [at_least(1, "dilation", n) for n in _each("dilation", dilation, len(sizes))]
    backward = [bool(flag) for flag in _each("causal", causal, len(sizes))]
    for size, count, step in zip(sizes, windows, steps, strict=True):
        if count * step > size:
            got = f"{count} tokens, dilation {step}"
            raise ArgumentError(mismatch("window", got, f"window * dilation of at most {size}"))
    axes = [_Axis(*each) for each in zip(sizes, windows, steps, backward, strict=True)]
    label = f"neighborhood({'x'.join(map(str, sizes))}, window={'x'.join(map(str, windows))}"
    if prod(steps) > 1:
        label += f", dilation={'x'.join(map(str, steps))}"
    if any(backward):
        label += f", causal={backward[0] if len(set(backward)) == 1 else tuple(backward)}"
    return Neighborhood(axes, f"{label})")


def _each(name: str, value: Any, axes: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    if len(values) != axes:
        raise ArgumentError(mismatch(name, repr(value), f"one for all, or {axes}, one per axis"))
    return values


class _Axis:
    """What each coordinate of one axis sees: ``count`` coordinates from ``first``, `step` apart."""

    def __init__(self, size: int, window: int, step: int, causal: bool) -> None:
        at = np.arange(size, dtype=np.int64)
        place, phase = np.divmod(at, step)  # among those a multiple of `step` away
        if causal:
            start = np.maximum(place - window + 1, 0)
            self.count = place + 1 - start
        else:
            there = (size - phase + step - 1) // step
            start = np.clip(place - window // 2, 0, there - window)
            self.count = np.full(size, window, np.int64)
        self.size: Final = size
        self.window: Final = window
        self.step: Final = step
        self.causal: Final = causal
        self.first = start * step + phase


class Neighborhood(Leaf):
    """Product of axes. Along the last one keys are runs: one per query and outer coordinates.

    Attributes
    ----------
    axes : tuple of _Axis
        1 to 3, the last one fastest, with `size`, `window`, `step` (the dilation) and `causal`.
    """

    def __init__(self, axes: list[_Axis], label: str) -> None:
        self.axes: Final = tuple(axes)
        self._axes, self._inner = axes[:-1], axes[-1]
        tokens = prod(axis.size for axis in axes)
        super().__init__((tokens, tokens), label)
        phases = np.arange(self._inner.step)[:, None]
        self._comb = pack_bits(np.arange(TILE) % self._inner.step == phases)

    def _rows(self, outer: Int64s) -> Iterator[tuple[Int64s, NDArray[np.bool_]]]:
        """Yield first keys of the lattice rows that outer coordinates `outer` see, if they do."""
        coordinates = self._split(outer)
        for chosen in product(*(range(axis.window) for axis in self._axes)):
            row, seen = np.zeros_like(outer), np.ones(outer.shape, bool)
            for axis, n, at in zip(self._axes, chosen, coordinates, strict=True):
                row = row * axis.size + axis.first[at] + n * axis.step
                seen &= n < axis.count[at]
            yield row * self._inner.size, seen

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        size, inner = self._inner.size, self._inner
        # Queries of one tile row and one lattice row: what they see of a lattice row is one span.
        begin = np.unique(
            np.concatenate([np.arange(0, self.shape[0], TILE), np.arange(0, self.shape[0], size)])
        )
        base = begin // TILE * cols
        # Along the last axis; `reduceat` over queries, because dilation makes ends zigzag.
        last = inner.first + (inner.count - 1) * inner.step
        repeats = self.shape[0] // size
        left = np.minimum.reduceat(np.tile(inner.first, repeats), begin)
        right = np.maximum.reduceat(np.tile(last, repeats), begin) + 1
        starts, stops = [], []
        for row, seen in self._rows(begin // size):
            starts.append((base + (row + left) // TILE)[seen])
            stops.append((base - (-(row + right) // TILE))[seen])
        none = np.zeros(0, np.int64)
        may = np.concatenate(starts), np.concatenate(stops)
        return Runs.from_spans((rows, cols), may, (none, none))

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        inner = self._inner
        token = np.minimum(rows[:, None] * TILE + np.arange(TILE), self.shape[0] - 1)
        outer, at = np.divmod(token, inner.size)
        left = inner.first[at] - cols[:, None] * TILE
        right = left + (inner.count[at] - 1) * inner.step + 1
        ranges = [
            (axis.first[place], axis.count[place] * axis.step)
            for axis, place in zip(self._axes, self._split(outer), strict=True)
        ]
        words = np.zeros(token.shape, np.uint64)
        # The lattice rows that a tile's keys are of: few, however large the box is.
        first = cols[:, None] * TILE // inner.size
        for lattice_row in (first + n for n in range((TILE - 1) // inner.size + 2)):
            start, stop = (lattice_row * inner.size + side for side in (left, right))
            kept = LOW_BITS[np.clip(stop, 0, TILE)] & ~LOW_BITS[np.clip(start, 0, TILE)]
            if inner.step > 1:
                kept &= self._comb[start % inner.step]
            for axis, place, (low, extent) in zip(
                self._axes, self._split(lattice_row), ranges, strict=True
            ):
                ahead = place - low
                seen = (ahead >= 0) & (ahead < extent)
                kept[~(seen & (ahead % axis.step == 0) if axis.step > 1 else seen)] = 0
            words |= kept
        return words

    def _split(self, lattice_row: Int64s) -> list[Int64s]:
        """Return the outer coordinates of lattice rows; those beyond the last are out of range."""
        coordinates = []
        for axis in reversed(self._axes[1:]):
            lattice_row, at = np.divmod(lattice_row, axis.size)
            coordinates.append(at)
        return [lattice_row, *reversed(coordinates)] if self._axes else []
