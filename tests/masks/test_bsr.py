"""`BsrMask`: format, paper example, conversions, algebra, errors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, MaskError, ShapeError, UnsupportedError
from stof_cupy.masks import BsrMask, as_mask, convert

SHAPES = (
    (0, 0),
    (0, 5),
    (5, 0),
    (1, 1),
    (7, 130),
    (63, 64),
    (64, 65),
    (65, 1),
    (129, 127),
    (1000, 200),
)


def random_dense(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Elements that make empty, full and part tiles, repeated ones among them."""
    rng = np.random.default_rng(seed)
    tiles = (-(-shape[0] // 64), -(-shape[1] // 64))
    kind = np.kron(rng.integers(0, 4, tiles), np.ones((64, 64), int))[: shape[0], : shape[1]]
    stripes = (np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % 64) < 5
    noise = rng.random(shape) < 0.5
    return np.choose(kind, (False, True, stripes, noise)).astype(bool)


@st.composite
def dense_masks(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.tuples(*[st.sampled_from((1, 2, 63, 64, 65, 128, 130, 200))] * 2))
    return random_dense(shape, draw(st.integers(0, 2**16)))


@pytest.mark.parametrize("shape", SHAPES)
def test_dense_round_trip(shape: tuple[int, int]) -> None:
    dense = random_dense(shape)
    mask = BsrMask.from_dense(dense)
    mask.check_format()
    np.testing.assert_array_equal(mask.toarray(), dense)
    assert mask.shape == shape and mask.nnz == dense.sum()
    assert mask.density == (dense.mean() if dense.size else 0)
    # Views of any layout give the same mask.
    for view in (np.asfortranarray(dense), np.repeat(dense, 2, axis=0)[::2], dense[::-1][::-1]):
        assert mask.equals(view)


def test_tiles_are_what_the_class_says() -> None:
    """Lists and bitmaps of a 100 x 200 mask, tile by tile from the dense array."""
    dense = random_dense((100, 200), seed=5)
    mask = BsrMask.from_dense(dense)
    padded = np.zeros((128, 256), bool)
    padded[:100, :200] = dense
    for row in range(2):
        listed = dict(
            zip(
                *(
                    a[mask.indptr[row] : mask.indptr[row + 1]]
                    for a in (mask.indices, mask.bitmap_id)
                ),
                strict=True,
            )
        )
        for col in range(4):
            tile = dense[row * 64 : row * 64 + 64, col * 64 : col * 64 + 64]
            if not tile.any():
                assert col not in listed
            elif tile.all():
                assert listed[col] == -1
            else:
                whole = padded[row * 64 : row * 64 + 64, col * 64 : col * 64 + 64]
                stored = masks.bitmap.unpack(mask.bitmaps[listed[col]][None])[0]
                np.testing.assert_array_equal(stored, whole)


def test_pointers_of_the_papers_figure_6() -> None:
    full = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 2), (3, 0), (3, 3)]
    part = [(0, 1), (0, 3), (1, 2), (2, 1), (2, 3), (3, 2)]
    dense = np.zeros((256, 256), bool)
    for row, col in full:
        dense[row * 64 : row * 64 + 64, col * 64 : col * 64 + 64] = True
    for row, col in part:
        dense[row * 64 + 3, col * 64 : col * 64 + 9] = True
    mask = BsrMask.from_dense(dense)
    assert mask.load_row_ptr.tolist() == [0, 3, 6, 10, 13]
    assert mask.load_col_idx.tolist() == [0, 1, 3, 0, 1, 2, 0, 1, 2, 3, 0, 2, 3]
    assert mask.full_row_ptr.tolist() == [0, 1, 3, 5, 7]
    assert mask.full_col_idx.tolist() == [0, 0, 1, 0, 2, 0, 3]
    assert mask.part_row_ptr.tolist() == [0, 2, 3, 5, 6]
    assert mask.part_col_idx.tolist() == [1, 3, 2, 1, 3, 2]
    assert len(mask.bitmaps) == 1 and mask.bitmap_id.max() == 0
    for array in (mask.full_row_ptr, mask.part_row_ptr, mask.full_col_idx, mask.part_col_idx):
        assert array.dtype == np.int32


def test_all_tiles_full_needs_no_bitmap() -> None:
    """T7: key block <= query block, 64 each, S = 512; dropping one tile changes the mask."""
    layout = np.tri(8, dtype=bool)
    mask = masks.blocks((512, 512), *layout.nonzero()).tobsr()
    np.testing.assert_array_equal(mask.toarray(), np.kron(layout, np.ones((64, 64), bool)))
    assert len(mask.bitmaps) == 0 and (mask.bitmap_id == -1).all()
    layout[5, 2] = False
    assert not mask.equals(masks.blocks((512, 512), *layout.nonzero()))


def test_arrays_are_read_only() -> None:
    mask = masks.causal(100).tobsr()
    for array in (mask.indptr, mask.indices, mask.bitmap_id, mask.bitmaps, mask.load_col_idx):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ("csr", "csc", "coo", "lil", "dok", "dia", "bsr"))
def test_scipy_round_trip(form: str, shape: tuple[int, int]) -> None:
    dense = random_dense(shape)
    for dtype in (bool, np.float32):
        mask = BsrMask.from_scipy(sp.coo_array(dense.astype(dtype)).asformat(form))
        assert mask.equals(dense)
    csr = mask.tocsr()
    csr.check_format(full_check=True)
    assert csr.has_canonical_format and csr.dtype == bool and csr.nnz == dense.sum()
    np.testing.assert_array_equal(csr.toarray(), dense)


def test_scipy_bsr_of_the_reports() -> None:
    """T8: single-element blocks, and 2x2 blocks of which one element is an explicit zero."""
    mask = BsrMask((np.ones((5, 1, 1)), np.array([2, 0, 2, 1, 2]), np.array([0, 1, 3, 5])), (3, 3))
    assert mask.toarray().astype(int).tolist() == [[0, 0, 1], [1, 0, 1], [0, 1, 1]]
    data = np.arange(24).reshape(6, 2, 2)
    bsr = sp.bsr_array((data, [0, 2, 2, 0, 1, 2], [0, 2, 3, 6]), shape=(6, 6))
    np.testing.assert_array_equal(BsrMask.from_scipy(bsr).toarray(), bsr.toarray() != 0)


@pytest.mark.parametrize("index", (np.int32, np.int64))
def test_scipy_unsorted_duplicate_and_zero(index: type) -> None:
    """Duplicates are summed as scipy sums them: 1 - 1 is not kept, True + True is."""
    indptr, indices = np.array([0, 4, 4, 7], index), np.array([70, 3, 70, 5, 2, 2, 0], index)
    ints = sp.csr_array((np.array([1, 1, -1, 0, 2, 3, 1]), indices, indptr), shape=(3, 80))
    bools = sp.csr_array((np.ones(7, bool), indices, indptr), shape=(3, 80))
    before = ints.data.copy(), ints.indices.copy(), ints.indptr.copy()
    mask = BsrMask.from_scipy(ints)
    np.testing.assert_array_equal(mask.toarray(), ints.toarray() != 0)
    assert mask.nnz == 3
    assert BsrMask.from_scipy(bools).nnz == 5
    for kept, now in zip(before, (ints.data, ints.indices, ints.indptr), strict=True):
        np.testing.assert_array_equal(kept, now)  # the caller's matrix is not touched


def test_layout_counts() -> None:
    """T18: tiles of each head's random layout are exactly its ones."""
    layouts = np.random.default_rng(0).integers(0, 2, (8, 64, 64))
    for layout in layouts:
        mask = masks.blocks((4096, 4096), *layout.nonzero()).tobsr()
        assert mask.ntiles == layout.sum() and mask.nnz == layout.sum() * 4096


def test_scipy_large_and_sparse() -> None:
    """More elements than the conversion takes at a time, in a shape no dense array could have."""
    rng = np.random.default_rng(0)
    row = rng.integers(0, 100_000, 2_000_000)
    col = np.clip(row + rng.integers(-50, 50, len(row)), 0, 99_999)
    matrix = sp.coo_array((np.ones(len(row), bool), (row, col)), shape=(100_000, 100_000)).tocsr()
    matrix.sum_duplicates()
    assert matrix.nnz > convert._CHUNK
    back = BsrMask.from_scipy(matrix).tocsr()
    np.testing.assert_array_equal(back.indptr, matrix.indptr)
    np.testing.assert_array_equal(back.indices, matrix.indices)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_coordinates(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 200), st.integers(1, 200)))
    count = data.draw(st.integers(0, 300))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    row, col = rng.integers(0, shape[0], count), rng.integers(0, shape[1], count)
    mask = BsrMask((rng.integers(0, 2, count), (row, col)), shape)
    mask.check_format()
    matrix = sp.coo_array((rng.integers(-1, 2, count), (row, col)), shape=shape)
    assert as_mask(matrix).equals(matrix.toarray() != 0)


def test_tuple_forms() -> None:
    assert BsrMask((70, 3)).nnz == 0 and BsrMask((70, 3)).shape == (70, 3)
    coordinates = BsrMask((np.ones(2), (np.array([0, 69]), np.array([2, 0]))), (70, 3))
    assert coordinates.equals(sp.coo_array((np.ones(2), ([0, 69], [2, 0])), shape=(70, 3)))


def test_numpy_asarray() -> None:
    dense = random_dense((70, 70))
    mask = BsrMask(dense)
    np.testing.assert_array_equal(np.asarray(mask), dense)
    assert np.asarray(mask, np.float32).sum() == dense.sum()
    with pytest.raises(UnsupportedError, match="tocsr"):
        np.asarray(masks.causal(40_000).tobsr())
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ArgumentError, match="copy"):
            np.asarray(mask, copy=False)


@pytest.mark.parametrize("shape", SHAPES)
def test_algebra(shape: tuple[int, int]) -> None:
    a, b = random_dense(shape, 1), random_dense(shape, 2)
    x, y = BsrMask(a), BsrMask(b)
    for made, wanted in (
        (x & y, a & b),
        (x | y, a | b),
        (x ^ y, a ^ b),
        (~x, ~a),
        (x == y, a == b),
        (x != y, a != b),
        (x & b, a & b),
        (b & x, a & b),
        (x | sp.csr_array(b), a | b),
        (b ^ x, a ^ b),
    ):
        made.check_format()
        np.testing.assert_array_equal(made.toarray(), wanted)


@settings(max_examples=60, deadline=None)
@given(dense_masks(), st.integers(0, 2**16))
def test_laws(a: np.ndarray, seed: int) -> None:
    x, y = BsrMask(a), BsrMask(random_dense(a.shape, seed))
    assert (~~x).equals(x)
    assert (~(x & y)).equals(~x | ~y)
    assert (x ^ y).equals((x | y) & ~(x & y))
    assert (x & ~x).nnz == 0 and (x | ~x).nnz == a.size
    assert (x & y).nnz + (x | y).nnz == x.nnz + y.nnz
    assert x.equals(BsrMask.from_tiles(x.shape, x.indptr, x.indices, x.bitmap_id, x.bitmaps))


def test_mask_and_pattern() -> None:
    dense = random_dense((150, 150))
    mask, tril = BsrMask(dense), np.tri(150, dtype=bool)
    pattern = masks.causal(150)
    for made, wanted in (
        (mask & pattern, dense & tril),
        (pattern & mask, dense & tril),
        (mask | pattern, dense | tril),
        (pattern | mask, dense | tril),
        (mask ^ pattern, dense ^ tril),
    ):
        assert isinstance(made, BsrMask)
        made.check_format()
        np.testing.assert_array_equal(made.toarray(), wanted)


def test_equality_is_elementwise_and_masks_have_no_truth_value() -> None:
    mask = BsrMask(random_dense((70, 70)))
    assert (mask == mask).nnz == 4900 and (mask != mask).nnz == 0
    with pytest.raises(ArgumentError, match="equals"):
        bool(mask == mask)
    with pytest.raises(TypeError, match="unhashable"):
        hash(mask)


def test_equals() -> None:
    dense = random_dense((70, 90))
    assert BsrMask(dense).equals(dense) and BsrMask(dense).copy().equals(dense)
    flipped = dense.copy()
    flipped[69, 89] ^= True
    assert not BsrMask(dense).equals(flipped)
    assert not BsrMask(dense).equals(dense[:, :-1])


def test_as_mask_takes_every_kind() -> None:
    dense = random_dense((65, 130))
    mask = BsrMask(dense)
    assert as_mask(mask) is mask
    for obj in (dense, sp.csr_array(dense), sp.csr_matrix(dense), mask):
        assert as_mask(obj, (65, 130)).equals(dense)
        assert BsrMask(obj, (65, 130)).equals(dense)
    assert BsrMask(masks.causal(9)).equals(np.tri(9, dtype=bool))


@pytest.mark.parametrize(
    ("error", "match", "obj"),
    [
        (ShapeError, r"bias: got \(10, 15\), expected \(10, 20\)", np.ones((10, 15), bool)),
        (ShapeError, r"bias: got \(20, 10\), expected \(10, 20\)", sp.csr_array((20, 10))),
        (ShapeError, r"bias: got \(10, 10\), expected \(10, 20\)", masks.causal(10)),
        (ShapeError, r"bias: got \(2, 10, 20\)", np.ones((2, 10, 20), bool)),
        (MaskError, "bias: got dtype float32, expected dtype bool", np.zeros((10, 20), np.float32)),
        (MaskError, "bias: got dtype int64", np.ones((10, 20), np.int64)),
        (DTypeError, "bias: got str", "causal"),
        (DTypeError, "bias: got NoneType", None),
        (DTypeError, "bias: got list", [[True]]),
    ],
)
def test_as_mask_errors(error: type[Exception], match: str, obj: object) -> None:
    with pytest.raises(error, match=match):
        as_mask(obj, (10, 20), "bias")


def test_operand_errors() -> None:
    mask = BsrMask(np.ones((3, 4), bool))
    with pytest.raises(ShapeError, match=r"&: got \(4, 3\), expected \(3, 4\)"):
        mask & np.ones((4, 3), bool)
    with pytest.raises(ShapeError, match=r"\(4, 4\), expected \(3, 4\)"):
        mask & masks.full(4)
    with pytest.raises(DTypeError, match="int"):
        mask | 3
    with pytest.raises(DTypeError, match="ndarray"):
        BsrMask.from_scipy(np.ones((3, 3)))
    with pytest.raises(ShapeError, match=r"\(3, 3\), expected \(4, 4\)"):
        BsrMask(np.ones((3, 3), bool), (4, 4))


def parts(**changes: object) -> dict[str, object]:
    """Arrays of a causal mask of 100, some of them replaced."""
    mask = masks.causal(100).tobsr()
    names = ("shape", "indptr", "indices", "bitmap_id", "bitmaps")
    return {name: changes.get(name, getattr(mask, name)) for name in names}


def bitmap_with(row: int, col: int) -> np.ndarray:
    """The bitmaps of `parts` with one more bit in the second."""
    bitmaps = masks.causal(100).tobsr().bitmaps.copy()
    bitmaps[1, (col >> 3) * 8 + (row >> 3)] |= np.uint64(1) << np.uint64((row & 7) * 8 + (col & 7))
    return bitmaps


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        (r"indptr: got int32 \(2,\)", {"indptr": np.array([0, 3], np.int32)}),
        ("indptr: got int64", {"indptr": np.array([0, 1, 3])}),
        ("indptr.*rising", {"indptr": np.array([0, 4, 3], np.int32)}),
        ("indptr.*rising", {"indptr": np.array([0, 1, 2], np.int32)}),
        ("indices.*0 to 1", {"indices": np.array([0, 0, 2], np.int32)}),
        ("indices.*ascending", {"indices": np.array([0, 1, 0], np.int32)}),
        ("indices.*ascending", {"indices": np.array([0, 1, 1], np.int32)}),
        ("bitmap_id.*2 bitmaps", {"bitmap_id": np.array([0, -1, 2], np.int32)}),
        ("bitmap_id.*-1 or", {"bitmap_id": np.array([0, -2, 1], np.int32)}),
        (r"bitmap_id: got int32 \(2,\)", {"bitmap_id": np.array([0, -1], np.int32)}),
        (r"bitmaps: got uint64 \(128,\)", {"bitmaps": masks.causal(100).tobsr().bitmaps.ravel()}),
        ("beyond the mask's shape", {"bitmaps": bitmap_with(60, 10)}),
        ("beyond the mask's shape", {"bitmaps": bitmap_with(0, 36)}),
        ("empty, full, repeated or unused", {"bitmaps": np.zeros((2, 64), np.uint64)}),
        ("empty, full, repeated or unused", {"bitmap_id": np.array([-1, -1, 1], np.int32)}),
        (
            "order of first use",
            {"bitmaps": np.concatenate([masks.causal(100).tobsr().bitmaps] * 2)},
        ),
    ],
)
def test_from_tiles_refuses_what_is_not_canonical(match: str, changes: dict[str, object]) -> None:
    with pytest.raises(MaskError, match=match):
        BsrMask.from_tiles(**parts(**changes))  # type: ignore[arg-type]


def test_from_tiles_copies() -> None:
    arrays = {name: np.copy(value) if name != "shape" else value for name, value in parts().items()}
    mask = BsrMask.from_tiles(**arrays)  # type: ignore[arg-type]
    arrays["bitmaps"][...] = 0  # type: ignore[index]
    assert mask.equals(np.tri(100, dtype=bool))
