"""Files: what is written is read, with scipy on either side, and nothing else is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, MaskError
from stof_cupy.masks import BsrMask, MaskStack, load_npz, save_npz


def dense(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((130, 200)) < 0.1


@pytest.mark.parametrize("compressed", (False, True))
def test_mask(tmp_path: Path, compressed: bool) -> None:
    mask = BsrMask(dense(), blocksize=(5, 4))
    save_npz(tmp_path / "mask.npz", mask, compressed=compressed)
    back = load_npz(tmp_path / "mask.npz")
    assert isinstance(back, BsrMask) and back.equals(mask) and back.blocksize == (5, 4)
    assert not back.bitmaps.flags.writeable


@pytest.mark.parametrize("mask", (masks.causal(70), masks.full(0, 5), masks.full(5, 0)), ids=repr)
def test_edge_sizes_and_names(tmp_path: Path, mask: masks.Pattern) -> None:
    save_npz(str(tmp_path / "mask"), mask.tobsr())  # NumPy adds .npz
    assert load_npz(str(tmp_path / "mask.npz")).equals(mask.toarray())


def test_stack() -> None:
    stacked = MaskStack.from_dense(np.stack([dense(1), dense(2), dense(1)]))
    file = io.BytesIO()
    save_npz(file, stacked)
    file.seek(0)
    back = load_npz(file)
    assert isinstance(back, MaskStack) and back.equals(stacked) and len(back.masks) == 2


def test_scipy_reads_and_writes(tmp_path: Path) -> None:
    file = io.BytesIO()
    save_npz(file, BsrMask(dense()), format="scipy")
    file.seek(0)
    np.testing.assert_array_equal(sp.load_npz(file).toarray(), dense())
    file.seek(0)
    assert load_npz(file).equals(dense())
    for form in ("csr", "csc", "coo", "bsr"):
        sp.save_npz(tmp_path / "theirs.npz", sp.csr_array(dense()).asformat(form))
        assert load_npz(tmp_path / "theirs.npz").equals(dense())


def written(**arrays: Any) -> io.BytesIO:
    """A file of a causal mask with some arrays replaced, or left out if None."""
    file = io.BytesIO()
    save_npz(file, masks.causal(100).tobsr(), compressed=False)
    file.seek(0)
    kept = {**np.load(file), **arrays}
    changed = io.BytesIO()
    np.savez(changed, **{name: value for name, value in kept.items() if value is not None})
    changed.seek(0)
    return changed


def array_file(array: np.ndarray) -> io.BytesIO:
    file = io.BytesIO()
    np.save(file, array)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("match", "file"),
    [
        ("version 2", written(stof_mask=2)),
        ("blocksize", written(blocksize=None)),
        ("blocksize", written(blocksize=np.array([0, 4]))),
        ("shape", written(shape=np.array([100]))),
        ("indptr", written(indptr_0=np.array([0, 9, 3], np.int32))),
        ("indptr: got int32", written(shape=np.array([100, 300]), indptr_0=np.zeros(9, np.int32))),
        ("bitmap_id", written(bitmap_id_0=np.array([0, 7, 1], np.int32))),
        ("indptr_1", written(mask_of=np.array([0, 1]))),
        ("an .npz file", io.BytesIO(b"not a zip file")),
        ("an .npz file", io.BytesIO(b"")),
        ("an .npz file", io.BytesIO(written().getvalue()[:300])),
        ("an .npz file of save_npz", written(stof_mask=None)),
        ("version .1, 1.", written(stof_mask=np.array([1, 1]))),
        ("mask_of", written(mask_of=np.array([-1, 0]))),
        ("mask_of", written(mask_of=np.array(0))),
        ("an .npz file", written(mask_of=np.array(["a"]))),
        ("an .npy file", array_file(np.eye(3))),
    ],
)
def test_damaged_files(match: str, file: io.BytesIO) -> None:
    with pytest.raises(MaskError, match=match):
        load_npz(file)


@pytest.mark.parametrize("form", ("bitmap", "plain", "stack", "csr", "coo"))
def test_damaged_bytes(form: str) -> None:
    """Whatever zip, zlib, NumPy and scipy say to them, and a file that is cut off: one error."""
    file = io.BytesIO()
    mask = masks.causal(100).tobsr()
    if form in ("csr", "coo"):
        sp.save_npz(file, mask.tocsr().asformat(form))
    else:
        what = masks.stack([mask, ~mask]) if form == "stack" else mask
        save_npz(file, what, compressed=form != "plain")
    rng, refused = np.random.default_rng(0), 0
    for cut in range(300):
        damaged = bytearray(file.getvalue())
        damaged[int(rng.integers(len(damaged)))] ^= int(rng.integers(1, 256))
        try:
            load_npz(io.BytesIO(damaged[: rng.integers(len(damaged)) if cut % 5 == 0 else None]))
        except MaskError:
            refused += 1
    assert refused > 200


def test_a_stack_has_one_blocksize_in_a_file_too() -> None:
    masks_of = [masks.causal(100).tobsr(), masks.full(100).tobsr().tobsr((5, 4))]
    file = io.BytesIO()
    save_npz(file, masks.stack(masks_of[::-1]))
    file.seek(0)
    assert [mask.blocksize for mask in load_npz(file)] == [(5, 4), (5, 4)]


@pytest.mark.parametrize("format", ("bitmap", "scipy"))
@pytest.mark.parametrize("mask", (masks.causal(9), np.eye(9, dtype=bool), None), ids=type)
def test_what_is_no_mask_is_not_written(tmp_path: Path, mask: Any, format: Any) -> None:
    with pytest.raises(DTypeError, match=r"mask: got .*tobsr\(\).*as_mask.*to\('cpu'\)"):
        save_npz(tmp_path / "x.npz", mask, format=format)
    assert not list(tmp_path.iterdir())


def test_what_is_no_file() -> None:
    no_file: Any = 5
    with pytest.raises(DTypeError, match="file: got int, expected a path"):
        load_npz(no_file)
    with pytest.raises(DTypeError, match="file: got int, expected a path"):
        save_npz(no_file, masks.causal(9).tobsr())


def test_pickles_are_refused() -> None:
    file = io.BytesIO()
    np.savez(file, stof_mask=np.array([{"a": 1}], object))
    file.seek(0)
    with pytest.raises(MaskError, match="allow_pickle"):
        load_npz(file)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'text', expected 'bitmap' or 'scipy'"):
        save_npz(tmp_path / "x", masks.causal(9).tobsr(), format="text")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="takes stacks"):
        save_npz(tmp_path / "x", masks.stack([masks.causal(9)]), format="scipy")
    with pytest.raises(FileNotFoundError):
        load_npz(tmp_path / "none.npz")
