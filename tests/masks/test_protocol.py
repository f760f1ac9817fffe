"""`BsrMask` beside scipy: one body of operations runs on both, and both give the same elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import (
    ArgumentError,
    DTypeError,
    OutOfBoundsError,
    ShapeError,
    StofError,
)
from stof_cupy.masks import BsrMask
from tests.masks.dense import random_dense

SHAPES = ((0, 6), (6, 0), (1, 1), (6, 130), (63, 64), (66, 64), (129, 127), (260, 200))


def elements(x: Any) -> np.ndarray:
    return x.toarray() if hasattr(x, "toarray") else np.asarray(x)


# What `bsr_array` and `csr_array` have, named in their terms.
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "toarray": lambda x, _: x.toarray(),
    "fortran": lambda x, _: x.toarray(order="F"),
    "todense": lambda x, _: x.todense(),
    "tocsr": lambda x, _: x.tocsr(),
    "tocsc": lambda x, _: x.tocsc(copy=True),
    "tocoo": lambda x, _: x.tocoo(),
    "tobsr": lambda x, _: x.tobsr(),
    "blocks": lambda x, _: x.tobsr((1, 1)),
    "lil": lambda x, _: x.asformat("lil"),
    "copy": lambda x, _: x.copy(),
    "transpose": lambda x, _: x.transpose(),
    "T": lambda x, _: x.T,
    "twice": lambda x, _: x.T.T,
    "multiply": lambda x, y: x.multiply(y),
    "maximum": lambda x, y: x.maximum(y),
    "minimum": lambda x, y: x.minimum(y),
    "!=": lambda x, y: x != y,
    "sum": lambda x, _: x.sum(),
    "sum 0": lambda x, _: x.sum(axis=0),
    "sum 1": lambda x, _: x.sum(axis=1),
    "sum -1": lambda x, _: x.sum(axis=-1),
    "nnz": lambda x, _: x.count_nonzero(),
    "diagonal": lambda x, _: x.diagonal(),
    "above": lambda x, _: x.diagonal(5),
    "below": lambda x, _: x.diagonal(k=-3),
    "trace": lambda x, _: x.trace(),
    "astype": lambda x, _: x.astype(np.float32),
    "bool": lambda x, _: x.astype(bool),
    "row": lambda x, _: np.vstack(x.nonzero()).astype(np.int64),
}


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_like_scipy(shape: tuple[int, int], operation: str) -> None:
    apply = OPERATIONS[operation]
    a, b = random_dense(shape, 1), random_dense(shape, 2)
    ours = apply(BsrMask(a, blocksize=(1, 1)), BsrMask(b))
    theirs = apply(sp.bsr_array(a, blocksize=(1, 1)), sp.bsr_array(b, blocksize=(1, 1)))
    if operation == "row":  # scipy's order of the elements of a BSR array is that of its blocks
        theirs = theirs[:, np.lexsort(theirs[::-1])]
    got, wanted = elements(ours), elements(theirs)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)
    if operation == "fortran":
        assert got.flags.f_contiguous
    if isinstance(ours, BsrMask):
        ours.check_format()


@pytest.mark.parametrize("attribute", ("shape", "nnz", "dtype", "ndim", "format", "size"))
def test_attributes_like_scipy(attribute: str) -> None:
    dense = random_dense((66, 64))
    ours, theirs = BsrMask(dense), sp.bsr_array(dense, blocksize=(1, 1))
    assert getattr(ours, attribute) == getattr(theirs, attribute)


INDEXES: tuple[Any, ...] = (
    np.s_[:, :],
    np.s_[0:10],
    np.s_[..., 3:],
    np.s_[64:128, 64:],
    np.s_[3:70, 60:131],
    np.s_[1:, :-1],
    np.s_[-40:-1, -7:],
    np.s_[200:100, :],
    np.s_[:, 5:5],
    np.s_[::2, :],
    np.s_[::-1, ::-3],
    np.s_[90:2:-7, 1:9],
    np.s_[[3, 100, 3, -1]],
    np.s_[[3, 100, 64], :],
    np.s_[:, [0, 120, 1]],
    np.s_[10:80, np.array([64, 2, 2])],
    np.s_[[1, 2, 90], [70, 2, 3]],
    np.ix_([5, 90, 6], [1, 100, 7, 1]),
    np.s_[np.arange(130) % 3 == 0, :],
    np.s_[:, np.arange(140) > 70],
    np.s_[7, 9],
    np.s_[-1, np.int64(-2)],
)


@pytest.mark.parametrize("index", INDEXES, ids=repr)
def test_indexing_like_csr(index: Any) -> None:
    dense = random_dense((130, 140), 4)
    got, wanted = BsrMask(dense)[index], sp.csr_array(dense)[index]
    if isinstance(got, BsrMask):
        got.check_format()
    np.testing.assert_array_equal(elements(got), elements(wanted))


def test_an_integer_drops_its_axis() -> None:
    dense = random_dense((130, 140), 4)
    mask = BsrMask(dense)
    np.testing.assert_array_equal(mask[100], dense[100])
    np.testing.assert_array_equal(mask[[5, 70], -3], dense[[5, 70], -3])
    np.testing.assert_array_equal(list(mask), dense)


def test_blocks_of_various_sizes() -> None:
    """T8: a map of blocks whose rows are 1, 2, 3 and columns 3, 1, 2 elements."""
    layout = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1]], bool)
    rows, cols = np.repeat(np.arange(3), (1, 2, 3)), np.repeat(np.arange(3), (3, 1, 2))
    expected = [[0, 0, 0, 0, 1, 1], *[[1, 1, 1, 0, 1, 1]] * 2, *[[0, 0, 0, 1, 1, 1]] * 3]
    assert BsrMask(layout)[np.ix_(rows, cols)].toarray().astype(int).tolist() == expected


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_crop(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 300), st.integers(1, 300)))
    dense = random_dense(shape, data.draw(st.integers(0, 99)))
    index = tuple(data.draw(st.slices(size)) for size in shape)
    part = BsrMask(dense)[index]
    part.check_format()
    np.testing.assert_array_equal(part.toarray(), dense[index])
    assert part.shape == dense[index].shape


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_reduction_and_transpose(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(0, 200), st.integers(0, 200)))
    dense = random_dense(shape, data.draw(st.integers(0, 99)))
    if data.draw(st.booleans()) and dense.size:
        dense[:, data.draw(st.integers(0, shape[1] - 1))] = True
    mask, k = BsrMask(dense), data.draw(st.integers(-210, 210))
    for axis in (None, 0, 1, -1, -2):
        for name in ("sum", "any", "all"):
            got, wanted = getattr(mask, name)(axis=axis), getattr(dense, name)(axis=axis)
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
    assert mask.T.T.equals(mask) and mask.T.equals(dense.T.copy())
    np.testing.assert_array_equal(mask.diagonal(k), dense.diagonal(k) if dense.size else [])


def test_crop_moves_tiles_not_elements() -> None:
    """A window of a million queries, cropped off the grid: far more elements than memory."""
    mask = masks.sliding_window(1_000_000, window=100).tobsr()
    part = mask[300_001:700_000, 300_001:700_000]
    assert part.equals(masks.sliding_window(399_999, window=100))
    assert mask.T.equals(mask)
    np.testing.assert_array_equal(mask.sum(axis=0)[:3], [101, 102, 103])
    assert mask.diagonal(100).sum() == 999_900 and not mask.diagonal(101).any()


@pytest.mark.parametrize(
    ("error", "index"),
    [
        (OutOfBoundsError, 130),
        (OutOfBoundsError, np.s_[:, -141]),
        (OutOfBoundsError, np.s_[[0, 130], :]),
        (IndexError, np.s_[0, 140]),
        (ArgumentError, np.s_[0, 0, 0]),
        (ArgumentError, np.s_[..., ...]),
        (ArgumentError, np.s_[::0]),
        (DTypeError, np.s_[0.5:]),
        (DTypeError, "row"),
        (DTypeError, None),
        (DTypeError, np.s_[[0.5]]),
        (DTypeError, np.s_[[[1], [1, 2]]]),
        (ShapeError, np.s_[np.ones(9, bool), :]),
        (ShapeError, np.s_[[1, 2], [1, 2, 3]]),
        (ShapeError, np.s_[:, [[1, 2]]]),
    ],
)
def test_index_errors(error: type[Exception], index: Any) -> None:
    with pytest.raises(error, match=r"got .*expected") as caught:
        BsrMask(random_dense((130, 140)))[index]
    assert isinstance(caught.value, StofError)


def test_what_scipy_changes_in_place_is_settled_here() -> None:
    dense = random_dense((70, 70))
    mask = BsrMask(dense)
    assert mask.has_canonical_format and mask.has_sorted_indices
    for name in ("sort_indices", "sum_duplicates", "eliminate_zeros", "prune", "check_format"):
        assert getattr(mask, name)() is None
    assert mask.equals(dense)


def test_toarray_into_out() -> None:
    dense = random_dense((70, 71))
    out = np.zeros((70, 71), bool)
    assert BsrMask(dense).toarray(out=out) is out
    np.testing.assert_array_equal(out, dense)
    with pytest.raises(ShapeError, match=r"\(71, 70\), expected \(70, 71\)"):
        BsrMask(dense).toarray(out=np.zeros((71, 70), bool))
    with pytest.raises(DTypeError, match="float64"):
        BsrMask(dense).toarray(out=np.zeros((70, 71)))
    with pytest.raises(DTypeError, match="list, expected a NumPy array"):
        BsrMask(dense).toarray(out=[1])
    with pytest.raises(ArgumentError, match="read-only"):
        BsrMask(dense).toarray(out=np.broadcast_to(np.False_, (70, 71)))


def test_numbers_that_fit_no_int64() -> None:
    mask = BsrMask(random_dense((70, 130)))
    for k in (2**70, -(2**70), np.int64(2**63 - 1), -(2**63), 130, -70):
        assert mask.diagonal(k).shape == (0,) and mask.trace(k) == 0
    with pytest.raises(OutOfBoundsError, match=str(2**64 - 1)):
        mask[np.array([2**64 - 1], np.uint64)]  # not the last one
    with pytest.raises(OutOfBoundsError, match=str(2**70)):
        mask[2**70]


def test_index_arrays_of_small_integers() -> None:
    dense = random_dense((260, 200))
    for index in (np.array([3, 250], np.uint8), np.array([-3, 100], np.int8)):
        np.testing.assert_array_equal(BsrMask(dense)[index].toarray(), dense[index])


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.asformat("ell"),
        lambda m: m.asformat(np.array([1, 2])),
        lambda m: m.transpose((0, 1)),
        lambda m: m.transpose(np.array([0, 1])),
        lambda m: m.transpose([[1], [1, 0]]),
        lambda m: m.transpose("ab"),
        lambda m: m.diagonal(1.5),
        lambda m: m.trace("a"),
        lambda m: m.toarray(order="X"),
        lambda m: m.tobsr((0, 1)),
        lambda m: m.tobsr((2**31, 1)),
        lambda m: m.tobsr(4),
        lambda m: m.tocupyx("bsr"),
        lambda m: m.tocupyx(np.array([1, 2])),
        lambda m: BsrMask(m, dtype=np.float32),
        lambda m: BsrMask((1, 2, 3, 4)),
    ],
)
def test_argument_errors(call: Callable[[BsrMask], object]) -> None:
    with pytest.raises(ArgumentError, match=r"got .*expected"):
        call(BsrMask(random_dense((70, 70))))


@pytest.mark.gpu
@pytest.mark.parametrize("format", ("csr", "csc", "coo"))
@pytest.mark.parametrize("shape", ((1, 1), (129, 127), (260, 200)))
def test_cupyx(shape: tuple[int, int], format: str) -> None:
    from cupyx.scipy import sparse

    dense = random_dense(shape)
    matrix = BsrMask(dense).tocupyx(format)
    assert sparse.issparse(matrix) and matrix.format == format and matrix.dtype == bool
    np.testing.assert_array_equal(matrix.get().toarray(), dense)
    assert BsrMask(matrix).equals(dense)
    floats = getattr(sparse, f"{format}_matrix")(
        sp.coo_matrix(dense.astype(np.float32)).asformat(format)
    )
    assert masks.as_mask(floats, shape).equals(dense)


@pytest.mark.gpu
def test_cupyx_unsorted_duplicate_and_zero() -> None:
    import cupy
    from cupyx.scipy import sparse

    indptr, indices = np.array([0, 4, 4, 7]), np.array([70, 3, 70, 5, 2, 2, 0])
    values = np.array([1, 1, -1, 0, 2, 3, 1], np.float32)
    arrays = tuple(map(cupy.asarray, (values, indices, indptr)))
    expected = sp.csr_array((values, indices, indptr), shape=(3, 80)).toarray() != 0
    assert BsrMask(sparse.csr_matrix(arrays, shape=(3, 80))).equals(expected)
