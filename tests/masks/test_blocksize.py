"""Blocks of any size beside scipy's, and what else the constructor of `BsrMask` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, MaskError, ShapeError, UnsupportedError
from stof_cupy.masks import BsrMask, blocksize
from tests.masks.dense import random_dense
from tests.masks.test_cost import cost

BLOCKS = ((1, 1), (1, 3), (2, 2), (3, 5), (8, 8), (16, 64), (64, 64), (65, 7), (128, 128), (200, 1))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_like_scipy(block: tuple[int, int]) -> None:
    """Of whole blocks, the three arrays are scipy's; and scipy's are taken, unsorted too."""
    shape = block[0] * max(1, 150 // block[0]), block[1] * max(1, 140 // block[1])
    dense = random_dense(shape, 3)
    theirs = sp.bsr_array(dense, blocksize=block)
    theirs.sort_indices()
    for mask in (
        BsrMask(dense, blocksize=block),
        BsrMask(theirs),
        BsrMask((theirs.data, theirs.indices, theirs.indptr)),
        BsrMask(dense).tobsr(block),
        BsrMask(sp.csr_array(dense), blocksize=block),
    ):
        assert mask.blocksize == block and mask.equals(dense)
        if mask.shape == shape:
            for name in ("data", "indices", "indptr"):
                np.testing.assert_array_equal(getattr(mask, name), getattr(theirs, name))
        again = sp.bsr_array((mask.data, mask.indices, mask.indptr), shape=shape)
        np.testing.assert_array_equal(again.toarray(), dense)
    assert BsrMask(dense, blocksize=block).T.blocksize == block[::-1]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("shape", ((0, 5), (5, 0), (7, 130), (150, 67)))
def test_blocks_at_the_edge_are_padded(shape: tuple[int, int], block: tuple[int, int]) -> None:
    dense = random_dense(shape, 3)
    mask = BsrMask(dense, blocksize=block)
    assert mask.data.sum() == dense.sum()
    assert len(mask.indptr) == -(-shape[0] // block[0]) + 1
    back = BsrMask((mask.data, mask.indices, mask.indptr), shape)
    assert back.blocksize == block and back.equals(dense)
    assert (mask & ~mask).blocksize == mask[1:, 1:].blocksize == mask.tobsr().blocksize == block


@pytest.mark.parametrize("index", (np.int32, np.int64))
def test_block_arrays_unsorted_duplicate_and_zero(index: type) -> None:
    """Duplicates are summed, as scipy sums them: ones cancel, booleans do not."""
    data = np.array([[[1, 0, 2]], [[1, 1, 1]], [[-1, 5, 0]], [[0, 0, 0]]])
    indices, indptr = np.array([1, 0, 1, 0], index), np.array([0, 3, 4], index)
    expected = [[1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert BsrMask((data, indices, indptr)).toarray().astype(int).tolist() == expected
    expected[0][3] = 1
    beyond = np.array([[[1, 2]], [[0, -2]]])  # cancels out where the shape ends
    assert BsrMask((beyond, [0, 0], [0, 2]), (1, 1)).nnz == 1
    kept = BsrMask((data != 0, indices, indptr))
    assert kept.toarray().astype(int).tolist() == expected
    assert kept.indices.tolist() == [0, 1] and kept.indptr.tolist() == [0, 2, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_blocks(data: st.DataObject) -> None:
    block = data.draw(st.tuples(st.integers(1, 70), st.integers(1, 70)))
    grid = data.draw(st.tuples(st.integers(0, 4), st.integers(1, 4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    counts = rng.integers(0, 5, grid[0])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = rng.integers(0, grid[1], indptr[-1])
    values = rng.integers(-1, 2, (len(indices), *block))
    shape = grid[0] * block[0], grid[1] * block[1]
    mask = BsrMask((values, indices, indptr), shape)
    mask.check_format()
    theirs = sp.bsr_array((values, indices, indptr), shape=shape)
    assert mask.equals(theirs.toarray() != 0)


def test_coordinates_without_a_shape() -> None:
    mask = BsrMask((np.ones(2), (np.array([0, 69]), np.array([2, 0]))))
    assert mask.shape == (70, 3) and mask.nnz == 2
    assert BsrMask((np.ones(0), (np.zeros(0), np.zeros(0)))).shape == (0, 0)


def test_dense_of_other_types_if_bool_is_named() -> None:
    assert BsrMask(np.array([[0.5, 0.0]]), dtype=bool).toarray().tolist() == [[True, False]]
    assert BsrMask([[True, False]]).nnz == 1
    with pytest.raises(MaskError, match="dtype float64, expected dtype bool"):
        BsrMask(np.array([[0.5, 0.0]]))


ONE = np.ones((1, 2, 2), bool)


@pytest.mark.parametrize(
    ("error", "match", "arg", "shape"),
    [
        (MaskError, "data: got dtype <U1", (np.array([[["a"]]]), [0], [0, 1]), None),
        (DTypeError, "data: got a masked array", (np.ma.ones((1, 2, 2)), [0], [0, 1]), None),
        (DTypeError, "data: .* different lengths", ([[1], [1, 2]], [0], [0, 1]), None),
        (ShapeError, "shape: got .*2199023255554", (ONE, [2**40], [0, 1]), None),
        (MaskError, r"data: got \(2, 2\)", (ONE[0], [0], [0, 1]), None),
        (MaskError, r"data: got \(1, 0, 2\)", (ONE[:, :0], [0], [0, 1]), None),
        (MaskError, "indices: got 2, expected 1", (ONE, [0, 1], [0, 1]), None),
        (MaskError, "indices: got float64", (ONE, [0.0], [0, 1]), None),
        (MaskError, "indices: got -1", (ONE, [-1], [0, 1]), None),
        (MaskError, "indptr: got .*rising from 0 to 1", (ONE, [0], [0, 2]), None),
        (MaskError, "indptr: got .*rising", (ONE, [0], [0, 2, 1]), None),
        (MaskError, "indptr", (ONE, [0], []), None),
        (MaskError, r"1 rows and 1 columns of blocks \(2, 2\)", (ONE, [0], [0, 1]), (4, 2)),
        (MaskError, "1 rows and 4 columns", (ONE, [3], [0, 1]), (2, 4)),
        (MaskError, "beyond the shape", (ONE, [0], [0, 1]), (1, 2)),
        (MaskError, "beyond the shape", (ONE, [0], [0, 1]), (2, 1)),
        (ShapeError, "one length", (np.ones(2), ([0], [1, 2])), (4, 4)),
        (MaskError, "row: got -1", (np.ones(1), ([-1], [1])), (4, 4)),
        (MaskError, "col: got 4 to 4.*at most 3", (np.ones(1), ([1], [4])), (4, 4)),
        (MaskError, "col: got dtype float64", (np.ones(1), ([1], [0.5])), (4, 4)),
        (ArgumentError, "3 arrays", (np.ones(1), ([1], [4], [1])), (4, 4)),
        (ShapeError, r"\(-1, 4\)", (-1, 4), None),
        (ShapeError, r"\(3, 4\), expected \(3, 5\)", (3, 4), (3, 5)),
    ],
)
def test_constructor_errors(
    error: type[Exception], match: str, arg: Any, shape: tuple[int, int] | None
) -> None:
    with pytest.raises(error, match=match):
        BsrMask(arg, shape)


def test_what_does_not_fit_memory_is_refused() -> None:
    causal = masks.causal(65_536).tobsr()
    with pytest.raises(UnsupportedError, match="packed"):
        _ = causal.data
    with pytest.raises(UnsupportedError, match="packed"):
        _ = causal.tobsr((1, 1)).indices
    assert causal.load_col_idx.shape == (causal.ntiles,)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_bound_is_that_of_the_blocks(
    block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes as the blocks have are made, one byte less is refused before they are."""
    shape = block[0] * max(1, 150 // block[0]), block[1] * max(1, 260 // block[1])
    dense = random_dense(shape, 5)
    size = sp.bsr_array(dense, blocksize=block).data.size
    monkeypatch.setattr(blocksize, "ARRAY_BYTES", size)
    assert BsrMask(dense, blocksize=block).data.size == size
    monkeypatch.setattr(blocksize, "ARRAY_BYTES", size - 1)
    monkeypatch.setattr(sp.csr_array, "tobsr", lambda *_: pytest.fail("made"))
    with pytest.raises(UnsupportedError, match=f"data: got {size} bytes"):
        _ = BsrMask(dense, blocksize=block).data


@pytest.mark.parametrize(
    ("count", "block"), [(4, (40_000, 40_000)), (1, (10**9, 10**9)), (2, (2**31 - 1, 45_000))]
)
def test_few_large_blocks_are_refused_too(count: int, block: tuple[int, int]) -> None:
    ends = np.array([0, 0, 79_999, 79_999]), np.array([0, 79_999, 0, 79_999])
    mask = BsrMask((np.ones(4), ends), (80_000, 80_000), blocksize=block)

    def data() -> None:
        with pytest.raises(UnsupportedError, match=f"got {count * block[0] * block[1]} bytes"):
            _ = mask.data

    _, peak = cost(data)
    assert peak < 16


def test_blocks_longer_than_the_mask() -> None:
    """A block sticks out without arrays as long as it; of a mask of none, none is made."""
    dense = np.tri(6, 5, dtype=bool)
    mask = BsrMask(dense, blocksize=(2**20, 2))
    assert mask.data.shape == (3, 2**20, 2) and not mask.data[:, 6:].any()
    np.testing.assert_array_equal(np.hstack([*mask.data[:, :6]])[:, :5], dense)
    assert mask.indices.tolist() == [0, 1, 2] and mask.indptr.tolist() == [0, 3]
    none = BsrMask((6, 5), blocksize=(10**9, 10**9))
    assert none.data.shape == (0, 10**9, 10**9) and none.indptr.tolist() == [0, 0]
    back = BsrMask((none.data, none.indices, none.indptr), (6, 5))
    assert back.equals(none) and back.blocksize == none.blocksize


def test_few_elements_in_few_of_many_blocks() -> None:
    """More than 1 GiB if each element had a block of its own, which none has."""
    rows, cols = np.arange(8192, 8292), np.arange(100) % 7 + 16_380
    mask = BsrMask((np.ones(100), (rows, cols)), (65_536, 65_536), blocksize=(8192, 16_384))
    assert mask.data.shape == (2, 8192, 16_384) and mask.indices.tolist() == [0, 1]
    inside = mask.data[(cols >= 16_384).astype(int), rows - 8192, cols % 16_384]
    assert inside.all()
