"""torch.save files: both formats read as torch wrote them, and nothing in them is ever executed."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import CheckpointError, WeightError
from stof_cupy.models import pickles
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.pickles import ByteStream, read_pickle
from stof_cupy.models.torch_file import open_torch

GOLDENS = Path(__file__).parents[1] / "goldens"
FORMATS = ("torch_zip.bin", "torch_legacy.bin")


@pytest.mark.parametrize("name", FORMATS)
def test_reads_what_torch_wrote(name):
    tensors = {key: read() for key, read in open_torch(GOLDENS / name).items()}
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = {
        "whole": base,
        "columns": base[:, 1:4],
        "turned": base.T,
        "half": np.float16([1.5, -2]),
        "brain": np.array([[0.5], [3]], as_dtype("bfloat16")),
        "whole_numbers": np.array([2**40, -1]),
        "nothing": np.zeros((0, 3), np.float32),
        "scalar": np.float32(7),
        "parameter": np.ones(2, np.float32),
    }
    assert list(tensors) == list(expected)
    for key, array in expected.items():
        assert tensors[key].dtype == array.dtype and np.array_equal(tensors[key], array), key
    with pytest.raises(ValueError, match="read-only"):
        tensors["whole"][0, 0] = 1


@pytest.mark.parametrize("name", FORMATS)
def test_every_cut_is_refused(name, tmp_path):
    data = (GOLDENS / name).read_bytes()
    path = tmp_path / "cut.bin"
    for size in range(0, len(data) - 30, 13):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            [read() for read in open_torch(path).values()]


@pytest.mark.parametrize("name", FORMATS)
def test_flipped_bytes_give_tensors_or_a_typed_error(name, tmp_path):
    rng = np.random.default_rng(0)
    data = (GOLDENS / name).read_bytes()
    path = tmp_path / "flipped.bin"
    refused = 0
    for _ in range(300):
        changed = bytearray(data)
        changed[int(rng.integers(len(data)))] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            for read in open_torch(path).values():
                assert read().nbytes <= len(data)
        except CheckpointError:
            refused += 1
    assert refused > 50


class Evil:
    def __reduce__(self):
        return os.system, ("echo executed > /tmp/should-not-exist",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_by_name(protocol):
    data = pickle.dumps({"a": Evil()}, protocol)
    with pytest.raises(CheckpointError, match=r"posix\.system|the instruction"):
        read_pickle(ByteStream(data), "evil.bin")


@pytest.mark.parametrize(
    ("code", "match"),
    [
        (b"cbuiltins\neval\n(S'1'\ntR.", r"builtins\.eval"),
        (b"ctorch\nload\n.", r"torch\.load"),
        (b"(K\x01i__main__\nEvil\n.", "instruction INST"),
        (b"\x80\x02]q\x00\x8f.", "instruction EMPTY_SET"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "instruction NEWOBJ"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02}K\x01)Rs.", "damaged"),
        (b"\x80\x02h\x07.", "damaged"),
        (b"\x80\x02.", "does not end"),
        (b"\x80\x02}}K\x01s.", "no names"),
        (b"\x80\x02t.", "damaged"),
        (b"\x80\x02(K\x01K\x02t\x51.", "persistent id"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x02tR.", "rebuilt from"),
        (b"\xff\xff", "damaged"),
    ],
)
def test_what_tensors_do_not_need_is_refused(code, match):
    with pytest.raises(CheckpointError, match=match):
        read_pickle(ByteStream(code), "x.bin")


def test_a_pickle_of_more_instructions_than_a_checkpoint_has_is_left(monkeypatch):
    monkeypatch.setattr(pickles, "_MOST_STEPS", 1000)
    code = b"\x80\x02" * 998 + b"}."
    assert read_pickle(ByteStream(code), "x.bin") == {}
    code = b"\x80\x02" + code
    with pytest.raises(CheckpointError, match="more than 1000 instructions"):
        read_pickle(ByteStream(code), "x.bin")


def rebuilt(offset: int, shape: tuple, strides: tuple, count: int) -> bytes:
    """A dict with one tensor, written instruction by instruction."""

    def sizes(values: tuple) -> bytes:
        numbers = b"".join(b"\x8a\x08" + int(v).to_bytes(8, "little", signed=True) for v in values)
        return b"(" + numbers + b"t"

    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    )
    storage += sizes((count,))[1:-1] + b"tQ"
    args = storage + sizes((offset,))[1:-1] + sizes(shape) + sizes(strides) + b"\x89N"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + args + b"tR"
    return b"\x80\x02}X\x01\x00\x00\x00a" + tensor + b"s."


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        ((0, (4,), (1,), 4), None),
        ((1, (4,), (1,), 4), "up to 4"),
        ((0, (2, 3), (2, 1), 4), "up to"),
        ((0, (1 << 40,), (0,), 4), "up to"),
        ((0, (4,), (1,), 5), "storage of 16 bytes"),
        ((0, (4,), (-1,), 4), "damaged"),
        ((-1, (4,), (1,), 4), "damaged"),
        ((0, (4,), (1, 1), 4), "damaged"),
        ((0, (1,) * 65, (1,) * 65, 4), "damaged"),
        ((0, ((1 << 62) + 1,), (1,), 4), "damaged"),
        ((0, (0, 1 << 40, 1 << 40), (1, 1, 1), 4), "can be"),
        (
            (0, (1 << 60,) * 50_000, (1,) * 50_000, 4),
            "damaged",
        ),  # longer ones take minutes
    ],
    ids=lambda value: str(value)[:40],
)
def test_views_stay_in_their_storage(tensor, match, tmp_path):
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", rebuilt(*tensor))
        archive.writestr("x/data/0", np.arange(4, dtype=np.float32).tobytes())
    if match is None:
        assert open_torch(path)["a"]().tolist() == [0, 1, 2, 3]
        return
    with pytest.raises((CheckpointError, WeightError), match=match):
        open_torch(path)["a"]()


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"\0" * (1 << 24))
    with pytest.raises(CheckpointError, match="compressed"):
        open_torch(path)


def test_what_is_no_dict_of_tensors_is_refused(tmp_path):
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"epoch": 3}, 2))
    with pytest.raises(CheckpointError, match="'epoch': a int"):
        open_torch(path)


def test_a_directory_with_bin_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    data = (GOLDENS / FORMATS[0]).read_bytes()
    (tmp_path / "pytorch_model.bin").write_bytes(data)
    assert read_checkpoint(tmp_path).tensors["scalar"] == 7
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "one.bin")
    names = list(open_torch(tmp_path / "one.bin"))
    index = {"weight_map": dict.fromkeys(names, "one.bin")}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert read_checkpoint(tmp_path).tensors["scalar"] == 7
