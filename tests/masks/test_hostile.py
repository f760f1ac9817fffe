"""Arguments that no one should give: each is a typed error, none a crash or a wrong mask."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from stof_cupy import masks
from stof_cupy.errors import (
    ArgumentError,
    DTypeError,
    MaskError,
    ShapeError,
    StofError,
    UnsupportedError,
)
from stof_cupy.masks import BsrMask, Pattern, as_mask, from_spec

BIG = np.array([2**64 - 1, 1], np.uint64)  # wraps to -1 in int64
HIDDEN = np.ma.masked_array(np.ones((3, 3), bool), mask=np.eye(3, dtype=bool))


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        # Sums and values that wrap around in int64.
        (ShapeError, str(2**64), lambda: masks.document([2**62] * 4)),
        (ShapeError, str(2**64 + 8), lambda: masks.document([2**62] * 4 + [8])),
        (ArgumentError, "below", lambda: masks.document(BIG)),
        (ArgumentError, "below", lambda: masks.global_tokens(9, BIG)),
        (ArgumentError, "below", lambda: masks.blocks((9, 9), BIG, [0, 0])),
        (DTypeError, "a masked array", lambda: masks.document(np.ma.masked_equal([1, 2], 2))),
        # Masked arrays, whose mask would be lost.
        (DTypeError, "mask: got a masked array", lambda: as_mask(HIDDEN)),
        (DTypeError, "mask: got a masked array", lambda: BsrMask(HIDDEN)),
        (DTypeError, "array: got a masked array", lambda: BsrMask.from_dense(HIDDEN)),
        (DTypeError, "operand: got a masked array", lambda: masks.full(3) & HIDDEN),
        # Values of the wrong kind.
        (ArgumentError, "seed: got -1", lambda: masks.bigbird(9, seed=-1)),
        (ArgumentError, "seed: got 'a'", lambda: masks.bigbird(9, seed="a")),
        (ArgumentError, "seed: got -1", lambda: from_spec("bigbird:seed=-1", 9)),
        (ArgumentError, "causal: got 'no'", lambda: masks.sliding_window(9, window=1, causal="no")),
        (ArgumentError, "causal: got 'no'", lambda: masks.document([3], causal="no")),
        (ArgumentError, "causal: got 5", lambda: from_spec("sliding:w=3,causal=5", 9)),
        (ShapeError, "shape: got 64", lambda: masks.blocks(64, [0], [0])),
        (ShapeError, "shape: got 3", lambda: as_mask(masks.full(3), 3)),
        (ArgumentError, "mask: got 3", lambda: from_spec(3, 4)),
        (ArgumentError, "mask: got a tuple of 4, expected", lambda: BsrMask((1, 2, 3, 4))),
        (ArgumentError, "mask coordinates: got 1 arrays", lambda: BsrMask(("a", "b"))),
        (ShapeError, "expected .queries, keys., each from 0", lambda: BsrMask((2**70, 2))),
        (MaskError, "mask row: got -1 to -1", lambda: BsrMask(([1], ([-1], [0])))),
        (TypeError, "operand: got int", lambda: masks.full(3) ^ 3),
        (MaskError, "operand: got dtype int", lambda: np.eye(3, dtype=int) & masks.full(3)),
        (ShapeError, r"\(2, 2\)", lambda: masks.full(3) | np.ones((2, 2), bool)),
    ],
)
def test_typed_errors(error: type[StofError], match: str, make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=match) as caught:
        make()
    assert isinstance(caught.value, StofError)


@pytest.mark.parametrize(
    "text",
    [
        "causal=5",
        "causal:",
        "sliding:,,w=3,",
        "sliding:w=3,",
        "sliding:,w=3",
        "sliding:w=٣",
        "sliding:w=3_0",
        "sliding:w=" + "9" * 5000,
        "sliding :",
        "sliding : x",
    ],
)
def test_specs_that_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="mask: got"):
        from_spec(text, 100)


@pytest.mark.parametrize("causal", [True, 1, np.True_, np.int64(1)])
def test_flags_that_are_accepted(causal: Any) -> None:
    expected = np.tri(9, dtype=bool)
    assert np.array_equal(masks.sliding_window(9, window=9, causal=causal).toarray(), expected)
    assert np.array_equal(masks.document([9], causal=causal).toarray(), expected)


@pytest.mark.parametrize("index", [-1, 70, 2**30])
@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo rows", "coo cols", "lil"])
def test_sparse_indices_beyond_the_shape(form: str, index: int) -> None:
    matrix = sp.csr_array(np.eye(70, dtype=bool)).asformat(form.split()[0])
    if form == "lil":
        matrix.rows[3] = [index]
    elif form.startswith("coo"):
        (matrix.row if form == "coo rows" else matrix.col)[3] = index
    else:
        matrix.indices[3] = index
    with pytest.raises(MaskError, match="matrix: got invalid arrays"):
        as_mask(matrix)


def test_sparse_pointers_that_fall() -> None:
    matrix = sp.csr_array(np.eye(70, dtype=bool))
    matrix.indptr[5] = 60
    with pytest.raises(MaskError, match="non-decreasing"):
        BsrMask.from_scipy(matrix)


@pytest.mark.filterwarnings("ignore:Constructing a DIA")
@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix])
def test_the_check_leaves_the_matrix_alone(form: str, container: Callable[..., Any]) -> None:
    expected = np.random.default_rng(5).random((70, 131)) < 0.1
    matrix = container(expected).asformat(form)
    if form in ("csr", "csc", "bsr"):  # room at the end, which scipy's own check trims
        matrix.indices = np.concatenate([matrix.indices, matrix.indices[:1]])
        matrix.data = np.concatenate([matrix.data, matrix.data[:1]])
        before = matrix.indices
    assert np.array_equal(as_mask(matrix).toarray(), expected)
    if form in ("csr", "csc", "bsr"):
        assert matrix.indices is before


def test_patterns_have_no_truth_value() -> None:
    a, b = masks.causal(9), masks.full(9)
    for use in (lambda: a and b, lambda: a or b, lambda: not a, lambda: bool(a & b)):
        with pytest.raises(ArgumentError, match="truth value: got a pattern"):
            use()


def test_patterns_combine_with_what_as_mask_takes() -> None:
    rng = np.random.default_rng(7)
    array = rng.random((100, 100)) < 0.5
    causal = np.tri(100, dtype=bool)
    pattern = masks.causal(100)
    for other in (array, sp.csr_array(array), BsrMask(array)):
        for got, expected in (
            (pattern & other, causal & array),
            (other & pattern, causal & array),
            (pattern | other, causal | array),
            (other | pattern, causal | array),
            (pattern ^ other, causal ^ array),
            (other ^ pattern, causal ^ array),
        ):
            assert isinstance(got, BsrMask if isinstance(other, BsrMask) else Pattern)
            assert np.array_equal(got.toarray(), expected)


@pytest.mark.parametrize(
    ("tiles", "make"),
    [
        (2**50, lambda: masks.full(2**31 - 1)),
        (2**50, lambda: masks.full(2**31 - 1) & masks.full(2**31 - 1)),
        (2**15 * (2**15 + 1) // 2, lambda: masks.causal(2**21)),
        (
            2**34,
            lambda: masks.blocks(
                (2**31 - 1,) * 2, *np.mgrid[:512, :512].reshape(2, -1), block=2**22
            ),
        ),
        (2**31, lambda: masks.global_tokens(2**22, np.arange(0, 2**22, 128))),
    ],
)
def test_more_tiles_than_can_be_listed(tiles: int, make: Callable[[], Pattern]) -> None:
    with pytest.raises(UnsupportedError, match=rf"got {tiles} tiles, expected at most 2\*\*28"):
        make().tobsr()


@pytest.mark.parametrize(
    "make",
    [
        lambda s: masks.causal(s),
        lambda s: masks.sliding_window(s, window=3),
        lambda s: masks.global_tokens(s, 3),
        lambda s: masks.longformer(s, window=3, global_tokens=3),
        lambda s: masks.bigbird(s),
        lambda s: masks.document([s]),
    ],
)
def test_more_positions_than_can_be_written_out(make: Callable[[int], Pattern]) -> None:
    with pytest.raises(UnsupportedError, match=r"2147483647\), expected at most 2\*\*26"):
        make(2**31 - 1)


def test_a_full_mask_costs_nothing_where_another_bounds_it() -> None:
    one = sp.coo_array(([True], ([5], [2**31 - 2])), shape=(70, 2**31 - 1))
    assert (masks.full(70, 2**31 - 1) & BsrMask(one)).nnz == 1


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))]
)
def test_used_masks_can_be_copied_and_pickled(clone: Callable[[Any], Any]) -> None:
    pattern = masks.longformer(300, window=7, global_tokens=[5, 200]) ^ ~masks.bigbird(300)
    mask = pattern.tobsr()
    mask.schedule()
    assert (mask & pattern).nnz == mask.nnz
    again = clone(mask)
    assert again.equals(mask)
    again.check_format()
    assert not any(
        array.flags.writeable
        for array in (again.indptr, again.indices, again.bitmap_id, again.bitmaps)
    )
    assert np.array_equal(again.schedule().cols, mask.schedule().cols)
    other = clone(pattern)
    assert repr(other) == repr(pattern)
    assert other.tobsr().equals(mask)


def test_caches_are_not_pickled() -> None:
    mask = masks.causal(1000)
    fresh = len(pickle.dumps(mask))
    mask.tobsr().schedule()
    assert len(pickle.dumps(mask)) == fresh
