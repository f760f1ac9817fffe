"""Patterns of packed and padded sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, MaskError, ShapeError, mismatch
from stof_cupy.masks.check import check_positions, flag, integers, reaches
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Columns, Intervals
from stof_cupy.masks.positions import Align, Positions
from stof_cupy.masks.tiles import Int64s

__all__ = ["document", "document_ids", "key_padding"]


def document(
    lengths: Sequence[int] | NDArray[np.integer],
    key_lengths: Sequence[int] | NDArray[np.integer] | None = None,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    align: Align | None = None,
) -> Pattern:
    """Documents packed one after another; a token sees its own document only.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each document, 0 or more; the mask has their sum as queries.
    key_lengths : sequence of int, optional
        Keys of each document where they are not as many as its queries: a cache, or the other side
        of a cross-attention.
    causal : bool
        Whether a token sees only itself and those before it.
    window : int or tuple of int, optional
        Reach to each side, or back and ahead, within a document; see `sliding_window`.
    align : {"top-left", "bottom-right"}, optional
        Which corner of a document's own square the diagonal starts from, if it is causal or has a
        window; to be named if `key_lengths` differ.

    Raises
    ------
    ArgumentError
        If a length or `window` is negative, or `align` is needed and missing.
    MaskError
        If there are not as many `key_lengths` as `lengths`.
    DTypeError
        If they are not integers.

    Examples
    --------
    >>> document([2, 1]).toarray().astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    >>> document([1, 1], [3, 2]).toarray().astype(int)
    array([[1, 1, 1, 0, 0],
           [0, 0, 0, 1, 1]])
    """
    rows = _lengths("lengths", lengths)
    cols = rows if key_lengths is None else _lengths("key_lengths", key_lengths)
    if len(rows) != len(cols):
        got, expected = f"{len(cols)} documents", f"{len(rows)}, one for each of lengths"
        raise MaskError(mismatch("key_lengths", got, expected))
    # Sums of Python ints, because an int64 one wraps.
    shape = check_positions((sum(rows.tolist()), sum(cols.tolist())))
    causal = flag("causal", causal)
    ends = np.cumsum(cols)
    start, stop = np.repeat(ends - cols, rows), np.repeat(ends, rows)
    label = f"document(<{len(rows)}>{', causal=True' if causal else ''}"
    if window is not None:
        label += f", window={window}"
    if causal or window is not None:
        # An alignment is needed as soon as one document's lengths differ.
        uneven = np.flatnonzero(rows != cols)[:1]
        sq, sk = (int(rows[uneven[0]]), int(cols[uneven[0]])) if len(uneven) else (0, 0)
        label += Positions(sq, sk, align).label
        within = np.arange(shape[0]) - np.repeat(np.cumsum(rows) - rows, rows)
        shift = cols - rows if align == "bottom-right" else np.zeros_like(cols)
        at = start + np.repeat(shift, rows) + within
        back, ahead = (sum(shape),) * 2 if window is None else reaches(window)
        ahead = 0 if causal else min(ahead, sum(shape))
        start = np.maximum(start, at - min(back, sum(shape)))
        stop = np.minimum(stop, at + ahead + 1)
    return Intervals(shape, f"{label})", start, stop)


def _lengths(name: str, values: Any) -> Int64s:
    sizes = integers(name, values)
    if (sizes < 0).any():
        raise ArgumentError(mismatch(name, sizes, "0 or more tokens each"))
    return sizes


def document_ids(ids: Sequence[int] | NDArray[np.integer], *, causal: bool = False) -> Pattern:
    """Packed documents given by the number of each token's document.

    Parameters
    ----------
    ids : integer array (tokens,)
        Equal for tokens of one document, which lie side by side. Tokens with a negative number are
        padding: they see nothing and are not seen.
    causal : bool
        Whether a token sees only itself and those before it.

    Raises
    ------
    MaskError
        If documents overlap: an id comes back after another one.
    DTypeError
        If the ids are not integers.

    Examples
    --------
    >>> document_ids([7, 7, 3, -1]).toarray().astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 0, 0]])
    """
    numbers, causal = integers("ids", ids), flag("causal", causal)
    shape = check_positions((len(numbers), len(numbers)))
    begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    owners = numbers[begins]
    real = owners[owners >= 0]
    values, counts = np.unique(real, return_counts=True)
    if (counts > 1).any():
        again = int(values[counts > 1][0])
        at = begins[owners == again]
        got = f"document {again} at {at[0]} and again at {at[1]}"
        hint = "a predicate, or blocks, can say what sees what in interleaved documents"
        raise MaskError(mismatch("ids", got, "documents that do not overlap", hint))
    lengths = np.diff(begins, append=len(numbers))
    start = np.repeat(begins, lengths)
    stop = np.repeat(begins + lengths, lengths)
    if causal:
        stop = np.minimum(stop, np.arange(1, len(numbers) + 1))
    label = f"document_ids(<{len(real)}>{', causal=True' if causal else ''})"
    return Intervals(shape, label, start, np.where(numbers < 0, start, stop))


def key_padding(keep: Sequence[bool] | NDArray[np.bool_], sq: int | None = None) -> Pattern:
    """Every query sees the keys that are not padding.

    Parameters
    ----------
    keep : bool array (keys,)
        True for real keys: Hugging Face's ``attention_mask``, as booleans.
    sq : int, optional
        Queries, default as many as keys.

    Raises
    ------
    MaskError
        If `keep` is not boolean.
    ShapeError
        If it is not 1-D.

    Examples
    --------
    >>> from stof_cupy.masks import causal
    >>> (key_padding([True, True, False]) & causal(3)).toarray().astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 0]])
    """
    flags = np.asarray(keep)
    if flags.ndim != 1:
        raise ShapeError(mismatch("keep", flags.shape, "(keys,)", "one pattern, one sequence"))
    if flags.dtype != np.bool_ and flags.size:
        hint = "True = a real key: `attention_mask.astype(bool)`"
        raise MaskError(mismatch("keep", f"dtype {flags.dtype}", "dtype bool", hint))
    shape = check_positions((len(flags) if sq is None else sq, len(flags)))
    return Columns(shape, f"key_padding(<{int(flags.sum())} of {len(flags)}>)", flags.astype(bool))
