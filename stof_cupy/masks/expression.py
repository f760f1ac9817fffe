"""Patterns as expressions: leaves, ``&``, ``|``, ``^``, ``~``, and their lowering to tiles.

A leaf answers two questions. *Which tiles are empty, part, full?* by interval arithmetic over the
rows of a tile (`Runs`), and *what are the bits of this part tile?* (row words, see `bitmap`). The
operators combine the answers, so an expression is lowered in work and memory proportional to the
tiles it lists: a leaf is asked for bits only of tiles it does not settle itself, and a bounded
number at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import LOW_BITS, TILE, Words
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.device import on_cuda
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import (
    Int64s,
    grid,
)

if TYPE_CHECKING:
    from stof_cupy.masks.bsr import BsrMask
    from stof_cupy.masks.device.mask import DeviceMask

__all__ = ["Leaf", "Pattern"]


class Pattern(ABC):
    """A mask as an expression, not yet lowered; made by the functions of `stof_cupy.masks`.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)``.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> window = masks.sliding_window(1000, window=100) & masks.causal(1000)
    >>> window
    <Pattern (1000, 1000): (sliding_window(window=100) & causal())>
    >>> window.tobsr()
    <BsrMask (1000, 1000): density 0.0959;
    tiles: 0 full, 45 part, 211 empty; 5 bitmaps, 2,988 bytes>
    """

    __array_ufunc__ = None  # `array & pattern` must not loop over the elements of the array

    lead: tuple[int, ...] = ()
    """Leading axes, ``(batch, heads)`` or fewer; only patterns that name CuPy arrays have some."""

    needs_cuda: bool = False
    """Whether it names CuPy arrays, so that only the GPU can build it."""

    def __init__(self, shape: tuple[int, int], label: str) -> None:
        self.shape = check_shape(shape)
        self._label = label

    @cached_property
    def runs(self) -> Runs:
        """States of all tiles, ``PART`` where only the elements can tell."""
        return self._classify()

    @abstractmethod
    def _classify(self) -> Runs: ...

    @abstractmethod
    def row_words(self, keys: Int64s) -> Words:
        """Return row words ``(n, 64)`` of tiles `keys`; bits out of bounds may have any value."""

    def tobsr(self) -> BsrMask:
        """Return the mask's tiles; lowered on the first call, kept for the next ones.

        Raises
        ------
        UnsupportedError
            If there are more than 2**28 of them, as many as a full mask of 2**20 tokens lists and
            2 GiB of stored arrays.
        """
        return self._bsr

    @cached_property
    def _bsr(self) -> BsrMask:
        from stof_cupy.masks.bsr import BsrMask

        return BsrMask(self)

    def to(
        self, device: str, *, tiles: int | None = None, bitmaps: int | None = None
    ) -> BsrMask | DeviceMask:
        """Build the mask on a device.

        Parameters
        ----------
        device : {"cuda", "cpu"}
            CuPy's current device, where a `DeviceMask` is made, or the CPU: `tobsr`.
        tiles, bitmaps : int, optional
            How many listed and how many part tiles, over all leading axes, there is room for in a
            `DeviceMask`. Given both, nothing waits for the GPU; left out, they are counted first.

        Raises
        ------
        ArgumentError
            If there is no such device, or a capacity is negative or given alone.
        DeviceError, MissingDependencyError
            If there is no GPU or no CuPy.
        UnsupportedError
            If the mask has more than 2**22 keys or 2**26 queries on the GPU, or names CuPy arrays
            and has more leaves, arrays or nested operators than the kernel takes: 24, 16 and 4.
        CompileError
            If the kernel for a formula does not compile.

        Notes
        -----
        A Python function, and an expression of more parts than that, is lowered on the CPU.

        Examples
        --------
        >>> from stof_cupy import masks
        >>> masks.causal(100).to("cuda").check()  # doctest: +SKIP
        (3, 2)
        """
        if on_cuda(device):
            from stof_cupy.masks.device.built import built

            return built(self, tiles, bitmaps)
        if tiles is not None or bitmaps is not None:
            raise ArgumentError(
                mismatch("capacity", "one on the CPU", "none: it has what it lists")
            )
        return self.tobsr()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.tobsr().__array__(dtype, copy)

    @property
    def nnz(self) -> int:
        """Number of True elements."""
        return self.tobsr().nnz

    def toarray(self) -> NDArray[np.bool_]:
        """Return the mask as a boolean array of its shape."""
        return self.tobsr().toarray()

    def crop(self, queries: tuple[int, int], keys: tuple[int, int]) -> Pattern:
        """Return the part for some queries and keys; ``pattern[a:b, c:d]`` is the same.

        Parameters
        ----------
        queries, keys : tuple of int
            First position, and the one after the last.

        Raises
        ------
        ArgumentError
            If a range is not inside of the shape.

        Examples
        --------
        >>> from stof_cupy import masks
        >>> masks.causal(1000).crop((990, 1000), (0, 995)).nnz
        9940
        """
        from stof_cupy.masks.view import window

        for name, (start, stop), size in zip(
            ("queries", "keys"), (queries, keys), self.shape, strict=True
        ):
            if not 0 <= start <= stop <= size:
                raise ArgumentError(mismatch(name, (start, stop), f"0 <= start <= stop <= {size}"))
        (top, bottom), (left, right) = queries, keys
        label = f"{self._label}[{top}:{bottom}, {left}:{right}]"
        return window(self, (top, left), (bottom - top, right - left), label)

    def shift(self, queries: int, keys: int, shape: tuple[int, int] | None = None) -> Pattern:
        """Move the mask: element (q, k) of it becomes element ``(q + queries, k + keys)``.

        Parameters
        ----------
        queries, keys : int
            How far, of either sign. What leaves the shape is lost, what enters is False.
        shape : tuple of int, optional
            ``(queries, keys)`` of the result, default the same shape: a pattern for a part of the
            sequence becomes one for the whole.

        Raises
        ------
        ArgumentError
            If `queries` or `keys` is not an integer.
        UnsupportedError
            If a side of the result is longer than 2**26.

        Examples
        --------
        Eight image tokens after three text tokens:

        >>> from stof_cupy import masks
        >>> image = masks.neighborhood((2, 4), window=(1, 3)).shift(3, 3, shape=(11, 11))
        >>> text = masks.causal(3).shift(0, 0, shape=(11, 11))
        >>> (image | text).nnz == image.nnz + text.nnz
        True
        """
        from stof_cupy.masks.view import window

        for name, by in (("queries", queries), ("keys", keys)):
            if not isinstance(by, int | np.integer):
                raise ArgumentError(mismatch(name, repr(by), "an integer"))
        label = f"{self._label}.shift({queries}, {keys})"
        return window(self, (-queries, -keys), self.shape if shape is None else shape, label)

    def __getitem__(self, index: tuple[slice, slice]) -> Pattern:
        both = index if isinstance(index, tuple) else (index, slice(None))
        if len(both) != 2 or not all(isinstance(i, slice) and i.step in (None, 1) for i in both):
            raise ArgumentError(mismatch("index", index, "two slices of step 1"))
        ends = (i.indices(size)[:2] for i, size in zip(both, self.shape, strict=True))
        queries, keys = ((start, max(start, stop)) for start, stop in ends)
        return self.crop(queries, keys)

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the tiles, or the elements of a region: `stof_cupy.masks.plot`."""
        from stof_cupy.masks.drawing import plot

        return plot(self, ax, **options)

    def __and__(self, other: Any) -> Pattern:
        return self._combined(other, "&")

    def __or__(self, other: Any) -> Pattern:
        return self._combined(other, "|")

    def __xor__(self, other: Any) -> Pattern:
        return self._combined(other, "^")

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def _combined(self, other: Any, symbol: str) -> Pattern:
        """Combine with anything `as_mask` takes; masks and stacks do it themselves and stay so."""
        from stof_cupy.masks.operators import Binary

        if isinstance(other, Pattern):
            return Binary(self, other, symbol)
        from stof_cupy.masks.bsr import BsrMask, as_leaf, as_mask, leads
        from stof_cupy.masks.mask_stack import MaskStack

        if self.needs_cuda and isinstance(other, BsrMask | MaskStack):
            return Binary(self, as_leaf(other), symbol)
        if isinstance(other, BsrMask) or leads(other):
            return NotImplemented  # type: ignore[no-any-return]
        return Binary(self, as_mask(other, name="operand")._pattern, symbol)

    def __invert__(self) -> Pattern:
        from stof_cupy.masks.operators import Not

        return Not(self)

    def __bool__(self) -> bool:
        hint = "`and`, `or` and `not` do not work element by element"
        raise ArgumentError(mismatch("truth value", "a pattern", "`&`, `|`, `~`, or .nnz", hint))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again when it is asked for."""
        return {
            k: value
            for k, value in self.__dict__.items()
            if k not in ("runs", "_bsr", "_intervals")
        }

    def _named(self, label: str) -> Pattern:
        """Give a compound the name its user knows; called before anyone else holds it."""
        self._label = label
        return self

    def __repr__(self) -> str:
        return f"<Pattern {self.shape}: {self._label}>"


class Leaf(Pattern):
    """A pattern that builds bits itself: a new family of masks is one subclass with two methods."""

    def row_words(self, keys: Int64s) -> Words:
        """Return row words ``(n, 64)`` of tiles `keys`, asking `_bits` for the part ones alone."""
        states = self.runs.at(keys)
        words = np.zeros((len(keys), TILE), np.uint64)
        words[states == runs.FULL] = LOW_BITS[TILE]
        part = states == runs.PART
        words[part] = self._bits(*np.divmod(keys[part], max(grid(self.shape)[1], 1)))
        return words

    @abstractmethod
    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        """Return row words of the part tiles at tile rows `rows` and tile columns `cols`."""
