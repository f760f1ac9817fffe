"""The named attention patterns, each a `Pattern`; combine them with ``&``, ``|``, ``^`` and ``~``.

True means "may attend"; ``q`` and ``k`` are positions of a query and a key. Nothing of the size of
the mask is built here, and nothing of the size of its elements later either: `Pattern.tobsr` makes
the tiles the pattern lists and no others. All but `full` hold numbers for every position and take
at most 2**26 queries and keys (UnsupportedError beyond).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.check import at_least, check_positions, check_shape, flag, integers
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Blocks, Columns, Intervals

__all__ = ["causal", "document", "full", "global_tokens", "longformer", "sliding_window"]


def full(sq: int, sk: int | None = None) -> Pattern:
    """Every query sees every key.

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.

    Examples
    --------
    >>> full(3, 5).nnz
    15
    """
    shape = check_shape((sq, sq if sk is None else sk))
    none = np.zeros(0, np.int64)
    return (~Blocks(shape, "no block", none, none, TILE))._named("full()")


def causal(
    sq: int, sk: int | None = None, *, align: Literal["top-left", "bottom-right"] | None = None
) -> Pattern:
    """Query ``q`` sees keys up to its own position.

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    align : {"top-left", "bottom-right"}, optional
        Where the diagonal lies, to be named when ``sq != sk``. Top-left: ``k <= q``. Bottom-right:
        ``k <= q + sk - sq``, the last query sees all keys, as when the queries continue a cache of
        keys; with ``sq > sk`` the first ``sq - sk`` rows are empty.

    Raises
    ------
    ArgumentError
        If `align` is neither, or left out with ``sq != sk``.

    Examples
    --------
    >>> causal(1, 5, align="top-left").nnz, causal(1, 5, align="bottom-right").nnz
    (1, 5)
    """
    queries, keys = check_positions((sq, sq if sk is None else sk))
    if align not in ("top-left", "bottom-right") and (align is not None or queries != keys):
        hint = f"the mask has {queries} queries and {keys} keys"
        raise ArgumentError(mismatch("align", repr(align), "'top-left' or 'bottom-right'", hint))
    shift = keys - queries if align == "bottom-right" else 0
    stop = np.arange(queries) + (1 + shift)
    label = "causal()" if queries == keys else f"causal(align={align!r})"
    return Intervals((queries, keys), label, np.zeros(queries, np.int64), stop)


def sliding_window(s: int, *, window: int, causal: bool = False) -> Pattern:
    """Query ``q`` sees keys with ``|q - k| <= window``, or ``0 <= q - k <= window`` if causal.

    Parameters
    ----------
    s : int
        Queries and keys.
    window : int
        Reach to each side, 0 or more: Hugging Face's ``attention_window`` is ``2 * window``, and a
        model that keeps ``q - k < w`` has ``window = w - 1``.
    causal : bool
        Whether to look back only.

    Raises
    ------
    ArgumentError
        If `window` is negative, or `causal` neither True nor False.

    Examples
    --------
    >>> sliding_window(4, window=1).toarray().astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 1, 0],
           [0, 1, 1, 1],
           [0, 0, 1, 1]])
    """
    shape = check_positions((s, s))
    reach, causal = at_least(0, "window", window), flag("causal", causal)
    q = np.arange(shape[0])
    label = f"sliding_window(window={reach}{', causal=True' if causal else ''})"
    reach = min(reach, shape[0])  # no integer overflows
    return Intervals(shape, label, q - reach, q + (1 if causal else 1 + reach))


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
    DTypeError
        If positions are not integers.

    Examples
    --------
    >>> global_tokens(4, [1]).toarray().astype(int)
    array([[0, 1, 0, 0],
           [1, 1, 1, 1],
           [0, 1, 0, 0],
           [0, 1, 0, 0]])
    """
    shape = check_positions((s, s))
    flags = np.zeros(shape[0], bool)
    if isinstance(tokens, int | np.integer):
        flags[: at_least(0, "tokens", int(tokens))] = True
        label = f"global_tokens({tokens})"
    else:
        positions = integers("tokens", tokens)
        if ((positions < 0) | (positions >= shape[0])).any():
            raise ArgumentError(
                mismatch("tokens", positions, f"positions from 0 to {shape[0] - 1}")
            )
        flags[positions] = True
        label = f"global_tokens(<{len(positions)} positions>)"
    rows = Intervals(shape, label, np.zeros(shape[0], np.int64), flags * shape[1])
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


def document(lengths: Sequence[int] | NDArray[np.integer], *, causal: bool = False) -> Pattern:
    """Documents packed one after another; a token sees its own document only.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each document, 0 or more; the mask has their sum as queries and keys.
    causal : bool
        Whether a token sees only itself and those before it.

    Raises
    ------
    ArgumentError
        If a length is negative, or `causal` neither True nor False.
    DTypeError
        If they are not integers.

    Examples
    --------
    >>> document([2, 1]).toarray().astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]])
    """
    sizes, causal = integers("lengths", lengths), flag("causal", causal)
    if (sizes < 0).any():
        raise ArgumentError(mismatch("lengths", sizes, "0 or more tokens each"))
    total = sum(sizes.tolist())  # of Python ints: an int64 sum wraps
    shape = check_positions((total, total))
    ends = np.cumsum(sizes)
    start = np.repeat(ends - sizes, sizes)
    stop = np.arange(1, total + 1) if causal else np.repeat(ends, sizes)
    return Intervals(
        shape, f"document(<{len(sizes)}>{', causal=True' if causal else ''})", start, stop
    )
