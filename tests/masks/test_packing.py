"""Documents and padding against their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, MaskError, ShapeError
from tests.masks.dense import ALIGN, SIZES, check, dense

LENGTHS = [
    ([], []),
    ([0, 3], [5, 0]),
    ([1, 0, 1], [3, 0, 5]),
    ([64, 130, 7], [64, 3, 200]),
    ([1, 200, 63], [300, 0, 65]),
]


@pytest.mark.parametrize(("lengths", "key_lengths"), LENGTHS)
def test_documents_with_keys_of_their_own(lengths: list[int], key_lengths: list[int]) -> None:
    """T16 among them: a cached document, one without queries, one without keys."""
    owner, key_owner = (np.repeat(np.arange(len(n)), n) for n in (lengths, key_lengths))
    expected = owner[:, None] == key_owner
    check(masks.document(lengths, key_lengths), expected)
    for align in ALIGN:
        causal = np.zeros(expected.shape, bool)
        row = col = 0
        for rows, cols in zip(lengths, key_lengths, strict=True):
            own = dense(rows, cols, lambda q, k: k <= q, align)
            causal[row : row + rows, col : col + cols] = own
            row, col = row + rows, col + cols
        made = masks.document(lengths, key_lengths, causal=True, align=align if lengths else None)
        check(made, causal)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize("window", (0, 5, 2**70, (70, 0), (0, 3)))
@pytest.mark.parametrize(("lengths", "key_lengths"), LENGTHS)
def test_documents_with_a_window(
    lengths: list[int],
    key_lengths: list[int],
    window: int | tuple[int, int],
    align: str,
    causal: bool,
) -> None:
    """Each document's own square is that of `sliding_window`."""
    expected = np.zeros((sum(lengths), sum(key_lengths)), bool)
    row = col = 0
    for rows, cols in zip(lengths, key_lengths, strict=True):
        own = masks.sliding_window(rows, cols, window=window, causal=causal, align=align)
        expected[row : row + rows, col : col + cols] = own.toarray()
        row, col = row + rows, col + cols
    made = masks.document(lengths, key_lengths, window=window, causal=causal, align=align)
    check(made, expected)


def test_a_window_of_documents_is_checked() -> None:
    with pytest.raises(ArgumentError, match="window: got -1"):
        masks.document([3], window=-1)
    with pytest.raises(ArgumentError, match="align: got None"):
        masks.document([3], [4], window=1)
    assert repr(masks.document([3], window=(1, 0))).endswith("document(<1>, window=(1, 0))>")


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("s", SIZES)
def test_documents_by_id(s: int, causal: bool) -> None:
    rng = np.random.default_rng(s)
    names = rng.permutation(20)
    order = np.sort(rng.integers(0, 20, s))
    ids = names[order] - 3  # three documents are padding
    expected = (ids[:, None] == ids) & (ids >= 0) & (np.tri(s, dtype=bool) | (not causal))
    check(masks.document_ids(ids, causal=causal), expected)
    for more in ([-1], [-1, -5, -1]):  # padding may lie anywhere
        padded = np.concatenate([more, ids, more]).astype(int)
        check(masks.document_ids(padded), np.pad(masks.document_ids(ids).toarray(), len(more)))


def test_lengths_and_ids_are_the_same_documents() -> None:
    lengths = [3, 100, 64, 1]
    ids = np.repeat([9, 2, 0, 5], lengths)
    assert masks.document(lengths).tobsr().equals(masks.document_ids(ids))


def test_overlapping_documents_are_refused() -> None:
    with pytest.raises(MaskError, match=r"document 4 at 1 and again at 3, expected .* not overlap"):
        masks.document_ids([7, 4, 5, 4])
    with pytest.raises(MaskError, match="document 0 at 0 and again at 2"):
        masks.document_ids([0, -1, 0])


@pytest.mark.parametrize("sk", SIZES)
@pytest.mark.parametrize("sq", (None, 0, 1, 130))
def test_key_padding(sk: int, sq: int | None) -> None:
    rows = sk if sq is None else sq
    rng = np.random.default_rng(sk)
    for keep in (rng.random(sk) < 0.5, np.arange(sk) < sk // 2, np.ones(sk, bool)):
        check(masks.key_padding(keep, sq), dense(rows, sk, lambda q, k: keep[k]))  # noqa: B023


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (ArgumentError, "key_lengths", lambda: masks.document([1], [-1])),
        (MaskError, "2 documents, expected 1", lambda: masks.document([1], [1, 2])),
        (
            ArgumentError,
            "1 queries and 2 keys",
            lambda: masks.document([5, 1], [5, 2], causal=True),
        ),
        (ShapeError, r"ids: got \(2, 2\)", lambda: masks.document_ids([[0, 0], [1, 1]])),
        (ShapeError, r"lengths: got \(1, 2\)", lambda: masks.document([[1, 2]])),
        (ShapeError, r"key_lengths: got \(\)", lambda: masks.document([1], 1)),
        (DTypeError, "lengths: .* different lengths", lambda: masks.document([[1], [1, 2]])),
        (DTypeError, "ids: got dtype float", lambda: masks.document_ids([0.5])),
        (MaskError, "keep: got dtype int64.*astype", lambda: masks.key_padding(np.array([1, 0]))),
        (ShapeError, r"keep: got \(1, 2\)", lambda: masks.key_padding([[True, False]])),
        (MaskError, "mask: got dtype float32", lambda: masks.as_mask(np.zeros((2, 2), np.float32))),
    ],
)
def test_errors(error: type[Exception], match: str, make: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        make()
