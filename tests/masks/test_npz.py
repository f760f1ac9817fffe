"""Files: what is written is read, with scipy on either side, and nothing else is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, MaskError
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
        ("arrays of save_npz", written(stof_mask=None)),
    ],
)
def test_damaged_files(match: str, file: io.BytesIO) -> None:
    with pytest.raises(MaskError, match=match):
        load_npz(file)


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
