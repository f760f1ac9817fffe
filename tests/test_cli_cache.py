"""``stof-cupy cache``: what is there, made ahead, shipped to another machine, thrown away."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from stof_cupy import models
from stof_cupy.cli import main

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "type_vocab_size": 1,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("STOF_CACHE_DIR", str(root))
    return root


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save = pytest.importorskip("safetensors.numpy").save_file
    root = tmp_path / "model"
    root.mkdir()
    save(models.random_weights(CONFIG), root / "model.safetensors")
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


def run(capsys, *args: str | Path) -> tuple[int, str]:
    status = main(["cache", *map(str, args)])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def warm(capsys, model: Path) -> str:
    status, text = run(capsys, "warm", model, "--backend", "numpy", "--seq", "9", "40")
    assert status == 0, text
    return text


def test_an_empty_cache(capsys, cache):
    status, text = run(capsys, "list")
    assert status == 0 and str(cache) in text and text.count("0 entries") == 3
    assert run(capsys, "clear")[0] == 0
    assert not cache.exists()


def test_warm_list_export_clear_and_take_in(capsys, cache, model, tmp_path):
    text = warm(capsys, model)
    assert "1 x 9" in text and "1 x 40" in text and "ready in" in text
    schemes = {path.name: path.read_bytes() for path in (cache / "schemes").iterdir()}
    assert len(schemes) == 4  # embeddings and layers, two classes of lengths
    (cache / "kernels" / "k-sm_90").mkdir(parents=True)
    (cache / "kernels" / "k-sm_90" / "kernel.cubin").write_bytes(b"code")
    text = run(capsys, "list")[1]
    assert "4 entries" in text and "fast" in text and "1 x 16" in text
    shipped = tmp_path / "shipped.zip"
    assert "5 files" in run(capsys, "export", shipped)[1]
    assert "thrown away" in run(capsys, "clear")[1]
    assert not (cache / "schemes").exists() and not (cache / "kernels").exists()
    assert "5 files" in run(capsys, "warm", "--from", shipped)[1]
    assert {p.name: p.read_bytes() for p in (cache / "schemes").iterdir()} == schemes
    assert (cache / "kernels" / "k-sm_90" / "kernel.cubin").read_bytes() == b"code"
    assert "0 files" in run(capsys, "warm", "--from", shipped)[1]
    before = {p.name: p.stat().st_mtime_ns for p in (cache / "schemes").iterdir()}
    warm(capsys, model)  # which finds all of it
    assert {p.name: p.stat().st_mtime_ns for p in (cache / "schemes").iterdir()} == before


def test_an_export_of_files_older_than_zip_into_the_cache_itself(capsys, cache):
    kernels = cache / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "old.cubin").write_bytes(os.urandom(1 << 17))  # more than a copy takes at once
    os.utime(kernels / "old.cubin", (0, 0))
    status, text = run(capsys, "export", kernels / "shipped.zip")
    assert status == 0 and "1 files" in text
    with zipfile.ZipFile(kernels / "shipped.zip") as archive:
        assert archive.namelist() == ["kernels/old.cubin"] and archive.testzip() is None


def test_of_an_export_that_fails_nothing_is_left(capsys, cache, tmp_path, monkeypatch):
    (cache / "schemes").mkdir(parents=True)
    (cache / "schemes" / "a.json").write_text("{}")
    shipped = tmp_path / "shipped.zip"
    shipped.write_bytes(b"the one before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "write", full)
    assert run(capsys, "export", shipped)[0] == 1
    assert shipped.read_bytes() == b"the one before"
    status, text = run(capsys, "export", tmp_path / "none" / "x.zip")
    assert status == 1 and "expected the path of a file in an existing directory" in text


def test_an_export_takes_the_place_of_schemes_of_another_version(capsys, cache, model, tmp_path):
    warm(capsys, model)
    shipped = tmp_path / "shipped.zip"
    run(capsys, "export", shipped)
    good = {path: path.read_bytes() for path in (cache / "schemes").iterdir()}
    first, second, *others = good
    first.write_bytes(good[first].replace(b'"schema": 1', b'"schema": 0'))
    second.write_bytes(b"[" * 100_000)
    assert run(capsys, "list")[0] == 0
    assert "2 files" in run(capsys, "warm", "--from", shipped)[1]
    assert {path: path.read_bytes() for path in good} == good and others


def test_an_image_encoder_is_warmed_at_its_size(capsys, cache, model):
    config = {
        "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 24, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 16,
        "patch_size": 8, "num_channels": 3, "qkv_bias": True,
    }  # fmt: skip
    save = pytest.importorskip("safetensors.numpy").save_file
    save(models.random_weights(config), model / "model.safetensors")
    (model / "config.json").write_text(json.dumps(config))
    status, text = run(capsys, "warm", model, "--backend", "numpy", "--batch", "2")
    assert status == 0 and "2 x 16x16" in text and list((cache / "schemes").iterdir())


def test_clear_takes_what_it_is_told(capsys, cache):
    for room in ("kernels", "schemes", "models"):
        (cache / room).mkdir(parents=True)
        (cache / room / "x.json").write_text("{}")
    run(capsys, "clear")
    assert [path.name for path in cache.iterdir()] == ["models"]
    run(capsys, "clear", "models")
    assert not list(cache.iterdir())


def test_clear_empties_a_room_that_is_a_link(capsys, cache, tmp_path):
    disk = tmp_path / "disk"
    (disk / "k-sm_90").mkdir(parents=True)
    (disk / "k-sm_90" / "kernel.cubin").write_bytes(bytes(2_000_000))
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "kernels").symlink_to(disk)
    assert "2.0 MB thrown away" in run(capsys, "clear", "kernels")[1]
    assert (cache / "kernels").is_symlink() and not list(disk.iterdir())


def test_clear_says_what_it_could_not_throw_away(capsys, cache, monkeypatch):
    (cache / "kernels").mkdir(parents=True)
    (cache / "kernels" / "x").write_bytes(bytes(1_000_000))
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    text = run(capsys, "clear", "kernels")[1]
    assert "0.0 MB thrown away, 1.0 MB could not be" in text


def test_clear_goes_on_past_a_file_of_a_linked_room(capsys, cache, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "a.json").write_bytes(bytes(1_000_000))
    (disk / "b.json").write_bytes(bytes(2_000_000))
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "schemes").symlink_to(disk)
    unlink = Path.unlink

    def refused(path: Path, *how: object, **more: object) -> None:
        if path.name == "a.json":
            raise PermissionError(13, "Permission denied")
        unlink(path, *how, **more)

    monkeypatch.setattr(Path, "unlink", refused)
    status, text = run(capsys, "clear", "schemes")
    assert status == 0 and "2.0 MB thrown away, 1.0 MB could not be" in text


def test_a_file_that_is_no_scheme_is_passed_over(capsys, cache):
    (cache / "schemes").mkdir(parents=True)
    (cache / "schemes" / "bad.json").write_text("[]")
    status, text = run(capsys, "list")
    assert status == 0 and "1 entries" in text and "bad" not in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["clear", "everything"], "room: got 'everything'"),
        (["warm"], "MODEL and --from: got neither"),
        (["warm", "x", "--from", "y"], "MODEL and --from: got both"),
        (["warm", "x", "--seq", "0"], "--batch and --seq"),
        (["warm", "--from", "nosuch.zip"], "nosuch.zip"),
    ],
)
def test_wrong_arguments(capsys, args, said):
    status, text = run(capsys, *args)
    assert status == 1 and said in text and "Traceback" not in text


@pytest.mark.parametrize("name", ["../evil", "kernels/../../evil", "models/x", "/kernels/x", "x"])
def test_what_no_export_makes_is_refused(capsys, cache, tmp_path, name):
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr(name, "x")
    status, text = run(capsys, "warm", "--from", bad)
    assert status == 1 and "expected an exported cache" in text
    assert not cache.exists() and not (tmp_path / "evil").exists()
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("schemes/good.json", "{}")
        archive.writestr(name, "x")
    assert run(capsys, "warm", "--from", bad)[0] == 1 and not cache.exists()
    (tmp_path / "text.zip").write_text("no zip")
    assert "no zip file" in run(capsys, "warm", "--from", tmp_path / "text.zip")[1]


def test_a_bomb_and_a_damaged_export_are_refused(capsys, cache, tmp_path):
    shipped = tmp_path / "shipped.zip"
    with zipfile.ZipFile(shipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schemes/a.json", bytes(1 << 20))
    assert "that hold 1048576" in run(capsys, "warm", "--from", shipped)[1]
    text = " ".join(map(str, range(500)))
    with zipfile.ZipFile(shipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schemes/a.json", text)
    sound, start = shipped.read_bytes(), 30 + len("schemes/a.json")
    flags, damaged = bytearray(sound), sound[:start] + b"\xff" * 40 + sound[start + 40 :]
    for header, at in ((sound.index(b"PK\x01\x02"), 8), (0, 6)):
        flags[header + at] |= 1  # encrypted, as the directory and the file's own header say
    for data in (damaged, bytes(flags)):
        shipped.write_bytes(data)
        assert "a damaged one" in run(capsys, "warm", "--from", shipped)[1]
        assert not (cache / "schemes").exists() or not [*(cache / "schemes").iterdir()]
    shipped.write_bytes(sound)
    run(capsys, "warm", "--from", shipped)
    assert (cache / "schemes" / "a.json").read_text() == text
