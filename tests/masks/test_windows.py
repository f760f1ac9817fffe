"""Patterns of positions, square and not, against their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError
from tests.masks.dense import ALIGN, SHAPES, aligned, check, dense


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize(("sq", "sk"), SHAPES)
@pytest.mark.parametrize(("back", "ahead"), [(0, 0), (20, 3), (0, 64), (70, 70), (130, 2**70)])
def test_sliding_windows(sq: int, sk: int, back: int, ahead: int, align: str) -> None:
    more, far = aligned(sq, sk, align), min(ahead, 10**6)
    expected = dense(sq, sk, lambda q, k: (q - k <= back) & (k - q <= far), align)
    check(masks.sliding_window(sq, **more, window=(back, ahead)), expected)
    if back == ahead:
        check(masks.sliding_window(sq, **more, window=back), expected)
    back_only = masks.sliding_window(sq, **more, window=(back, ahead), causal=True)
    check(back_only, expected & dense(sq, sk, lambda q, k: k <= q, align))


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize(("sq", "sk"), SHAPES)
@pytest.mark.parametrize("first", (0, 3, 70, 2**70))
def test_sinks_and_prefixes(sq: int, sk: int, first: int, align: str) -> None:
    more, seen = aligned(sq, sk, align), min(first, 10**6)
    check(
        masks.sink_window(sq, **more, sinks=first, window=65),
        dense(sq, sk, lambda q, k: (k <= q) & ((q - k <= 65) | (k < seen)), align),
    )
    check(
        masks.prefix_lm(sq, **more, prefix=first),
        dense(sq, sk, lambda q, k: (k < seen) | (k <= q), align),
    )


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize(("sq", "sk"), SHAPES)
@pytest.mark.parametrize(
    ("window", "dilation"), [(0, 3), (2, 1), (3, 2), (5, 40), (2, 130), (2**70, 64), (1, 2**70)]
)
def test_dilated(sq: int, sk: int, window: int, dilation: int, align: str) -> None:
    more = aligned(sq, sk, align)
    reach, step = min(window, 10**6), min(dilation, 10**6)

    def seen(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return ((q - k) % step == 0) & (abs(q - k) <= reach * step)

    check(masks.dilated(sq, **more, window=window, dilation=dilation), dense(sq, sk, seen, align))
    check(
        masks.dilated(sq, **more, window=window, dilation=dilation, causal=True),
        dense(sq, sk, lambda q, k: seen(q, k) & (k <= q), align),
    )


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize(("sq", "sk"), SHAPES)
@pytest.mark.parametrize("chunk", (1, 17, 64, 100, 2**70))
@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (2, 1), (2**70, 2**70)])
def test_chunked(sq: int, sk: int, chunk: int, before: int, after: int, align: str) -> None:
    more = aligned(sq, sk, align)
    size, back, ahead = (min(n, 10**6) for n in (chunk, before, after))

    def seen(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (k // size >= q // size - back) & (k // size <= q // size + ahead)

    made = masks.chunked(sq, **more, chunk=chunk, before=before, after=after)
    check(made, dense(sq, sk, seen, align))
    made = masks.chunked(sq, **more, chunk=chunk, before=before, after=after, causal=True)
    check(made, dense(sq, sk, lambda q, k: seen(q, k) & (k <= q), align))


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: masks.sliding_window(3, 5, window=1, **more),
        lambda **more: masks.dilated(3, 5, window=1, dilation=2, **more),
        lambda **more: masks.prefix_lm(3, 5, prefix=1, **more),
        lambda **more: masks.sink_window(3, 5, sinks=1, window=1, **more),
        lambda **more: masks.chunked(3, 5, chunk=2, **more),
        lambda **more: masks.vertical_slash(3, 5, vertical=[0], slash=[1], **more),
        lambda **more: masks.document([1, 2], [3, 2], causal=True, **more),
    ],
)
def test_alignment_has_to_be_named(make: Callable[..., masks.Pattern]) -> None:
    with pytest.raises(ArgumentError, match="align: got None, expected 'top-left' or 'bottom-"):
        make()
    assert "align='top-left'" in repr(make(align="top-left"))


@pytest.mark.parametrize(
    ("match", "make"),
    [
        ("window: got -1", lambda: masks.sliding_window(8, window=(3, -1))),
        (
            "window: got .1, 2, 3., expected an integer",
            lambda: masks.sliding_window(8, window=(1, 2, 3)),
        ),
        ("window: got -1", lambda: masks.dilated(8, window=-1, dilation=2)),
        ("dilation: got 0", lambda: masks.dilated(8, window=1, dilation=0)),
        ("prefix: got -1", lambda: masks.prefix_lm(8, prefix=-1)),
        ("sinks: got -1", lambda: masks.sink_window(8, sinks=-1, window=2)),
        ("window: got -2", lambda: masks.sink_window(8, sinks=1, window=-2)),
        ("chunk: got 0", lambda: masks.chunked(8, chunk=0)),
        ("before: got -1", lambda: masks.chunked(8, chunk=2, before=-1)),
        ("after: got -1", lambda: masks.chunked(8, chunk=2, after=-1)),
    ],
)
def test_errors(match: str, make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match=match):
        make()
