"""Patterns of positions: causal, windows, chunks. Combine them with ``&``, ``|``, ``^`` and ``~``.

True means "may attend"; ``q`` and ``k`` are positions of a query and a key. Nothing of the size of
the mask is built here, and nothing of the size of its elements later either: `Pattern.tobsr` makes
the tiles the pattern lists and no others. All but `dilated` are made of numbers alone, in
microseconds, whatever the size. All but `full` take at most 2**26 queries and keys
(UnsupportedError beyond).
"""

from __future__ import annotations

from stof_cupy.masks.band import Band
from stof_cupy.masks.check import at_least, check_shape, flag, reaches
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Diagonals
from stof_cupy.masks.positions import Align, Positions

__all__ = [
    "causal",
    "chunked",
    "dilated",
    "full",
    "prefix_lm",
    "sink_window",
    "sliding_window",
]


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
    return (~Band(shape, "nothing", before=0, after=-1))._named("full()")


def causal(sq: int, sk: int | None = None, *, align: Align | None = None) -> Pattern:
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
    at = Positions(sq, sk, align)
    return Band(at.shape, f"causal({at.label[2:]})", offset=at.offset, after=0)


def sliding_window(
    sq: int,
    sk: int | None = None,
    *,
    window: int | tuple[int, int],
    causal: bool = False,
    align: Align | None = None,
) -> Pattern:
    """Query ``q`` sees keys with ``|q - k| <= window``, or ``0 <= q - k <= window`` if causal.

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    window : int or tuple of int
        Reach to each side, or back and ahead: ``-ahead <= q - k <= back``, each 0 or more. Hugging
        Face's ``attention_window`` is ``2 * window``, and a model that keeps ``q - k < w`` has
        ``window = w - 1``.
    causal : bool
        Whether to look back only.
    align : {"top-left", "bottom-right"}, optional
        Where the diagonal lies if ``sq != sk``, see `causal`.

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
    >>> sliding_window(3, window=(1, 0))  # back and ahead
    <Pattern (3, 3): sliding_window(window=(1, 0))>
    """
    at = Positions(sq, sk, align)
    back, ahead = reaches(window)
    causal = flag("causal", causal)
    shown = (back, ahead) if isinstance(window, tuple) else back
    label = f"sliding_window(window={shown}{', causal=True' if causal else ''}{at.label})"
    return Band(at.shape, label, offset=at.offset, before=back, after=0 if causal else ahead)


def dilated(
    sq: int,
    sk: int | None = None,
    *,
    window: int,
    dilation: int,
    causal: bool = False,
    align: Align | None = None,
) -> Pattern:
    """Sliding window with gaps: ``q - k = n * dilation`` with ``|n| <= window``.

    The dilated sliding window of Longformer (arXiv 2004.05150, section 3.1).

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    window : int
        Keys seen on each side, 0 or more.
    dilation : int
        Step from one to the next, 1 or more; 1 is `sliding_window`.
    causal : bool
        Whether to look back only.
    align : {"top-left", "bottom-right"}, optional
        Where the diagonal lies if ``sq != sk``, see `causal`.

    Raises
    ------
    ArgumentError
        If `window` is negative or `dilation` less than 1.

    Examples
    --------
    >>> dilated(6, window=1, dilation=2).toarray()[3].astype(int)
    array([0, 1, 0, 1, 0, 1])
    """
    at = Positions(sq, sk, align)
    count, step = at_least(0, "window", window), at_least(1, "dilation", dilation)
    causal = flag("causal", causal)
    label = f"dilated(window={count}, dilation={step}{', causal=True' if causal else ''}{at.label})"
    # A number beyond all distances need not fit an int64.
    most = sum(at.shape) + 1
    step = min(step, most)
    distance = at.differences()
    kept = (distance % step == 0) & (abs(distance) <= min(count * step, most))
    return Diagonals(at.shape, label, kept & (distance <= 0) if causal else kept)


def prefix_lm(
    sq: int, sk: int | None = None, *, prefix: int, align: Align | None = None
) -> Pattern:
    """Query ``q`` sees the first `prefix` keys and those up to its own position.

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    prefix : int
        Keys that everybody sees, so that the prefix sees all of itself; 0 is `causal`.
    align : {"top-left", "bottom-right"}, optional
        Where the diagonal lies if ``sq != sk``, see `causal`.

    Raises
    ------
    ArgumentError
        If `prefix` is negative.

    Examples
    --------
    >>> prefix_lm(4, prefix=2).toarray().astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    at = Positions(sq, sk, align)
    seen = at_least(0, "prefix", prefix)
    past = Band(at.shape, "past", offset=at.offset, after=0)
    label = f"prefix_lm(prefix={seen}{at.label})"
    return (past | Band(at.shape, "prefix", key_stop=seen))._named(label)


def sink_window(
    sq: int, sk: int | None = None, *, sinks: int, window: int, align: Align | None = None
) -> Pattern:
    """Causal window and the first keys (StreamingLLM, arXiv 2309.17453).

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    sinks : int
        Keys at the start that every later query sees.
    window : int
        Reach back: ``0 <= q - k <= window``.
    align : {"top-left", "bottom-right"}, optional
        Where the diagonal lies if ``sq != sk``, see `causal`.

    Raises
    ------
    ArgumentError
        If `sinks` or `window` is negative.

    Examples
    --------
    >>> sink_window(5, sinks=1, window=1).toarray()[4].astype(int)
    array([1, 0, 0, 1, 1])
    """
    at = Positions(sq, sk, align)
    first = at_least(0, "sinks", sinks)
    near = sliding_window(sq, sk, window=window, causal=True, align=align)
    label = f"sink_window(sinks={first}, window={window}{at.label})"
    past = Band(at.shape, "sinks", offset=at.offset, after=0, key_stop=first)
    return (near | past)._named(label)


def chunked(
    sq: int,
    sk: int | None = None,
    *,
    chunk: int,
    before: int = 0,
    after: int = 0,
    causal: bool = False,
    align: Align | None = None,
) -> Pattern:
    """Query ``q`` sees its own chunk of the sequence, and some before and after it.

    Block-local attention: the chunked attention of Llama 4, and, with one chunk before and after,
    the local attention of LongT5 and Reformer.

    Parameters
    ----------
    sq, sk : int
        Queries and keys; `sk` defaults to `sq`.
    chunk : int
        Positions in a chunk, 1 or more.
    before, after : int
        Neighbouring chunks seen as well.
    causal : bool
        Whether to see no key after the query.
    align : {"top-left", "bottom-right"}, optional
        Where the diagonal lies if ``sq != sk``, see `causal`.

    Raises
    ------
    ArgumentError
        If `chunk` is less than 1, or `before` or `after` negative.

    Examples
    --------
    >>> chunked(5, chunk=2, before=1, causal=True).toarray()[3].astype(int)
    array([1, 1, 1, 1, 0])
    """
    at = Positions(sq, sk, align)
    size, causal = at_least(1, "chunk", chunk), flag("causal", causal)
    back, ahead = at_least(0, "before", before), at_least(0, "after", after)
    more = f"{f', before={back}' if back else ''}{f', after={ahead}' if ahead else ''}"
    label = f"chunked(chunk={size}{more}{', causal=True' if causal else ''}{at.label})"
    return Band(
        at.shape, label, offset=at.offset, size=size, before=back, after=ahead, causal=causal
    )
