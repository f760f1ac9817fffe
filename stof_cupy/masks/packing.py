"""Patterns of packed and padded sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import ArgumentError, DTypeError, MaskError, ShapeError, mismatch
from stof_cupy.masks.check import check_positions, flag, integers, reaches
from stof_cupy.masks.device.leaf import DocumentIds, KeyFlags
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Columns, Intervals
from stof_cupy.masks.positions import Align, Positions
from stof_cupy.masks.segments import Segments
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
    MaskError, ShapeError
        If there are not as many `key_lengths` as `lengths`, or they are not 1-D.
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
    label = f"document(<{len(rows)}>{', causal=True' if causal else ''}"
    label += "" if window is None else f", window={window}"
    if causal or window is not None:
        # An alignment is needed as soon as one document's lengths differ.
        uneven = np.flatnonzero(rows != cols)[:1]
        sq, sk = (int(rows[uneven[0]]), int(cols[uneven[0]])) if len(uneven) else (0, 0)
        label += Positions(sq, sk, align).label
    last = cols - rows if align == "bottom-right" else np.zeros_like(cols)
    reach = ends - cols + last - (np.cumsum(rows) - rows)  # from a query to the key at its place
    made = Segments(
        shape, f"{label})", np.cumsum(rows), ends - cols, ends, reach if causal else None
    )
    if window is None:
        return made
    back, ahead = (min(distance, sum(shape)) for distance in reaches(window))
    at = np.arange(shape[0]) + np.repeat(reach, rows)
    return (made & Intervals(shape, "window", at - back, at + ahead + 1))._named(f"{label})")


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
        padding: they see nothing and are not seen. A CuPy array is read when the mask is
        built on the GPU, and a document that comes back counts as another one there.
    causal : bool
        Whether a token sees only itself and those before it.

    Raises
    ------
    MaskError
        If documents overlap: an id comes back after another one.
    DTypeError
        If the ids are not integers.
    ShapeError
        If they are not 1-D.

    Examples
    --------
    >>> document_ids([7, 7, 3, -1]).toarray().astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 0, 0]])
    """
    causal = flag("causal", causal)
    if is_cupy(ids):
        return _device_documents(ids, causal)
    numbers = integers("ids", ids)
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
    ends = np.append(begins[1:], len(numbers)) if len(begins) else begins
    label = f"document_ids(<{len(real)}>{', causal=True' if causal else ''})"
    reach = np.zeros_like(begins) if causal else None
    return Segments(shape, label, ends, begins, np.where(owners < 0, begins, ends), reach)


def _device_documents(ids: Any, causal: bool) -> Pattern:
    """Return the documents of a CuPy array."""
    if ids.ndim != 1:
        raise ShapeError(mismatch("ids", ids.shape, "(tokens,)"))
    if ids.dtype.kind not in "iu":
        raise DTypeError(mismatch("ids", f"dtype {ids.dtype}", "integers"))
    check_positions((len(ids), len(ids)))
    return DocumentIds(ids, causal)


def key_padding(keep: Sequence[bool] | NDArray[np.bool_], sq: int | None = None) -> Pattern:
    """Every query sees the keys that are not padding.

    Parameters
    ----------
    keep : bool array (keys,)
        True for real keys: Hugging Face's ``attention_mask``, as booleans. A CuPy array is read
        when the mask is built on the GPU.
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
    flags: Any = keep if is_cupy(keep) else np.asarray(keep)
    if flags.ndim != 1:
        raise ShapeError(mismatch("keep", flags.shape, "(keys,)", "one pattern, one sequence"))
    if flags.dtype != np.bool_ and flags.size:
        hint = "True = a real key: `attention_mask.astype(bool)`"
        raise MaskError(mismatch("keep", f"dtype {flags.dtype}", "dtype bool", hint))
    shape = check_positions((len(flags) if sq is None else sq, len(flags)))
    if is_cupy(flags):
        return KeyFlags(flags, shape[0])
    return Columns(shape, f"key_padding(<{int(flags.sum())} of {len(flags)}>)", flags.astype(bool))
