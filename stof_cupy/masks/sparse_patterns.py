"""Patterns that join a window with columns and diagonals: global tokens, strides, slashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks.band import Band
from stof_cupy.masks.check import at_least, check_positions, flag, integers
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Columns, Diagonals, Intervals
from stof_cupy.masks.patterns import causal as _causal
from stof_cupy.masks.patterns import chunked, sliding_window
from stof_cupy.masks.positions import Align, Positions
from stof_cupy.masks.tiles import Int64s

__all__ = ["fixed", "global_tokens", "longformer", "strided", "vertical_slash"]


def global_tokens(s: int, tokens: int | Sequence[int] | NDArray[np.integer]) -> Pattern:
    """Global tokens see every key and are seen by every query.

    Parameters
    ----------
    s : int
        Queries and keys.
    tokens : int or sequence of int
        How many tokens at the start are global, at most all of them; or their positions.

    Raises
    ------
    ArgumentError
        If a count is negative or a position lies outside of ``[0, s)``.
    DTypeError, ShapeError
        If positions are not integers, or not 1-D.

    Examples
    --------
    >>> global_tokens(4, [1]).toarray().astype(int)
    array([[0, 1, 0, 0],
           [1, 1, 1, 1],
           [0, 1, 0, 0],
           [0, 1, 0, 0]])
    """
    shape = check_positions((s, s))
    if isinstance(tokens, int | np.integer):
        count = at_least(0, "tokens", tokens)
        others = Band(shape, "not global", query_start=count, key_start=count)
        return (~others)._named(f"global_tokens({count})")
    positions = _inside("tokens", integers("tokens", tokens), shape[0])
    flags = np.zeros(shape[0], bool)
    flags[positions] = True
    rows = Intervals(shape, "its rows", np.zeros(shape[0], np.int64), flags * shape[1])
    label = f"global_tokens(<{len(positions)} positions>)"
    return (rows | Columns(shape, "its columns", flags))._named(label)


def longformer(
    s: int, *, window: int, global_tokens: int | Sequence[int] | NDArray[np.integer]
) -> Pattern:
    """Sliding window and global tokens (Longformer, arXiv 2004.05150).

    Parameters
    ----------
    s : int
        Queries and keys.
    window : int
        Reach to each side, see `sliding_window`.
    global_tokens : int or sequence of int
        How many at the start, or their positions, see `stof_cupy.masks.global_tokens`.

    Examples
    --------
    >>> longformer(100, window=3, global_tokens=2).nnz
    1070
    """
    return sliding_window(s, window=window) | _global_tokens(s, global_tokens)


_global_tokens = global_tokens  # `longformer` has a parameter of that name


def strided(s: int, *, stride: int, causal: bool = True) -> Pattern:
    """Window and strides: the *strided* heads of the Sparse Transformer (arXiv 1904.10509).

    Query ``q`` sees the last `stride` keys, ``q - k <= stride``, and every `stride`-th one before:
    ``(q - k) % stride == 0``.

    Parameters
    ----------
    s : int
        Queries and keys.
    stride : int
        The paper's ``l``, near ``sqrt(s)``.
    causal : bool
        As in the paper; False sees the same keys on the other side too.

    Raises
    ------
    ArgumentError
        If `stride` is less than 1, or `causal` neither True nor False.

    Examples
    --------
    >>> strided(8, stride=3).toarray()[7].astype(int)
    array([0, 1, 0, 0, 1, 1, 1, 1])
    """
    at = Positions(s, None, None)
    step, causal = at_least(1, "stride", stride), flag("causal", causal)
    distance = at.differences()
    reach = min(step, s + 1)
    kept = (abs(distance) <= reach) | (distance % reach == 0)
    label = f"strided(stride={step}{'' if causal else ', causal=False'})"
    return Diagonals(at.shape, label, kept & (distance <= 0) if causal else kept)


def fixed(s: int, *, stride: int, summary: int, causal: bool = True) -> Pattern:
    """Own block and block ends: the *fixed* heads of the Sparse Transformer (arXiv 1904.10509).

    Query ``q`` sees its own block, ``k // stride == q // stride``, and the last `summary` keys of
    every block: ``k % stride >= stride - summary``.

    Parameters
    ----------
    s : int
        Queries and keys.
    stride : int
        Length of a block, the paper's ``l``.
    summary : int
        Keys at its end that later queries see, the paper's ``c``; at most `stride`.
    causal : bool
        As in the paper; False sees keys after the query too.

    Raises
    ------
    ArgumentError
        If `stride` is less than 1, `summary` negative or above `stride`, or `causal` neither True
        nor False.

    Examples
    --------
    >>> fixed(8, stride=3, summary=1).toarray()[7].astype(int)
    array([0, 0, 1, 0, 0, 1, 1, 1])
    """
    shape = check_positions((s, s))
    length, count = at_least(1, "stride", stride), at_least(0, "summary", summary)
    causal = flag("causal", causal)
    if count > length:
        raise ArgumentError(mismatch("summary", count, f"0 to {length}, the stride"))
    label = f"fixed(stride={length}, summary={count}{'' if causal else ', causal=False'})"
    # A block longer than the sequence ends beyond it; so long a number need not fit an int64.
    within = np.arange(shape[1]) % min(length, shape[1] + 1)
    flags = within >= min(length - count, shape[1] + 1)
    seen: Pattern = Columns(shape, "summaries", flags)
    if causal:
        seen = seen & _causal(s)
    return (chunked(s, chunk=length, causal=causal) | seen)._named(label)


def vertical_slash(
    sq: int,
    sk: int | None = None,
    *,
    vertical: Sequence[int] | NDArray[np.integer],
    slash: Sequence[int] | NDArray[np.integer],
    align: Align | None = None,
) -> Pattern:
    """Vertical and slash lines of a causal mask (MInference, arXiv 2407.02490).

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    vertical : integer array (n,)
        Keys that every later query sees.
    slash : integer array (m,)
        Distances back, ``q - k``; 0 is the diagonal itself.
    align : {"top-left", "bottom-right"}, optional
        Where the diagonal lies if ``sq != sk``, see `causal`.

    Raises
    ------
    ArgumentError
        If a column lies outside of ``[0, sk)`` or a distance is negative.
    DTypeError, ShapeError
        If they are not integers, or not 1-D.

    Examples
    --------
    >>> vertical_slash(6, vertical=[0], slash=[0, 2]).toarray()[4].astype(int)
    array([1, 0, 1, 0, 1, 0])
    """
    at = Positions(sq, sk, align)
    columns = np.zeros(at.shape[1], bool)
    columns[_inside("vertical", integers("vertical", vertical), at.shape[1])] = True
    back = integers("slash", slash)
    if (back < 0).any():
        raise ArgumentError(mismatch("slash", back, "distances q - k, 0 or more each"))
    diagonals = np.isin(-at.differences(), back)
    lines = Columns(at.shape, "vertical", columns) & _causal(sq, sk, align=align)
    label = f"vertical_slash(<{int(columns.sum())}>, <{len(np.unique(back))}>{at.label})"
    return (lines | Diagonals(at.shape, "slash", diagonals))._named(label)


def _inside(name: str, positions: Int64s, size: int) -> Int64s:
    if ((positions < 0) | (positions >= size)).any():
        raise ArgumentError(mismatch(name, positions, f"positions from 0 to {size - 1}"))
    return positions
