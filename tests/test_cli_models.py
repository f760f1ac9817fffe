"""``stof-cupy generate`` and ``features``: what they print and write, and one line for errors."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from stof_cupy import cli_named, models
from stof_cupy.cli import main
from stof_cupy.cli_models import _read_image
from stof_cupy.engine import TransformerEngine
from stof_cupy.models.packaged import Package
from tests.goldens.cases import GPT2, T5, VIT


def saved(root: Path, config: dict) -> Path:
    save = pytest.importorskip("safetensors.numpy").save_file
    root.mkdir()
    save(models.random_weights(config), root / "model.safetensors")
    (root / "config.json").write_text(json.dumps(config))
    return root


@pytest.fixture
def talker(tmp_path: Path) -> Path:
    """A small GPT-2 whose tokens are characters."""
    tokenizers = pytest.importorskip("tokenizers")
    root = saved(tmp_path / "talker", GPT2)
    letters = {chr(97 + i) if i < 26 else chr(0x400 + i): i for i in range(83)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(root / "tokenizer.json"))
    return root


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    image = pytest.importorskip("PIL.Image")
    paths = [tmp_path / f"{name}.png" for name in ("one", "two")]
    for i, path in enumerate(paths):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 30, 3), np.uint8)
        image.fromarray(pixels).save(path)
    return paths


def numpy_(*arguments: object) -> list[str]:
    return [str(each) for each in (*arguments, "--backend", "numpy")]


def test_generate_streams_what_the_engine_says(talker, capsys):
    assert main(numpy_("generate", talker, "hello", "-n", 7)) == 0
    said = TransformerEngine(talker, backend="numpy").generate(["hello"], max_new_tokens=7)[0]
    out = capsys.readouterr().out
    assert out.startswith(f"hello{said}\n") and "7 tokens in" in out and "gpt2" in out


def test_generate_from_a_file_and_from_standard_input(talker, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tqdm")
    path = tmp_path / "lines.txt"
    path.write_text("hello\n\nworld\n", encoding="utf-8")
    assert main(numpy_("generate", talker, "--file", path, "-n", 4)) == 0
    first = capsys.readouterr().out
    rows = [json.loads(line) for line in first.splitlines()]
    said = TransformerEngine(talker, backend="numpy").generate(["hello", "world"], max_new_tokens=4)
    assert [row["prompt"] for row in rows] == ["hello", "world"]
    assert [row["text"] for row in rows] == said
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert main(numpy_("generate", talker, "--file", "-", "-n", 4)) == 0
    assert capsys.readouterr().out == first


def test_features_writes_vectors_and_shows_cosines(pictures, tmp_path, capsys):
    pytest.importorskip("tqdm")
    root, out = saved(tmp_path / "seer", VIT), tmp_path / "vectors.npy"
    command = numpy_("features", root, *pictures, "--size", 28)
    assert main([*command, "-o", str(out)]) == 0
    vectors = np.load(out)
    assert vectors.dtype == np.float32 and vectors.shape == (2, 48)
    assert main(command) == 0
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert f"{cosine:.3f}  one.png and two.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "{talker}"), "nothing to continue"),
        (("generate", "{talker}", "a", "--file", "x"), "both TEXT and --file"),
        (("generate", "{talker}", "a", "-n", 0), "--max-new-tokens: got 0"),
        (("generate", "{talker}", "a", "--temperature", -1), "temperature: got -1"),
        (("generate", "{talker}", "a" * 60, "-n", 60), "60 tokens and 60 new ones"),
        (("generate", "{talker}", "--file", "{tmp}/none.txt"), "none.txt"),
        (("generate", "{tmp}/nowhere", "a"), "or 'smollm2' or 'gemma3' or 'flan-t5'"),
        (("generate", "{talker}", ""), "got no token"),
        (("features", "{talker}", "{tmp}/none.png"), "none.png"),
        (("features", "{talker}", "{talker}/config.json"), "a picture"),
        (("features", "{talker}", "{tmp}/one.png"), "kind 'decoder'"),
        (("features", "{talker}", "{tmp}/one.png", "-o", "{tmp}/no/x.npy"), "--output"),
        (("features", "{talker}", "{tmp}/deep.png"), "deep.png: got pixels of mode 'I;16'"),
        (("features", "dinov2", "{tmp}/one.png", "--config", "{talker}/config.json"), "--config"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message, talker, pictures, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    words = [str(word).format(talker=talker, tmp=tmp_path) for word in arguments]
    image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(tmp_path / "deep.png")
    assert main(numpy_(*words)) == 1
    out, error = capsys.readouterr()
    assert message in error and error.startswith("stof-cupy: error:") and error.count("\n") == 1
    assert not out


def test_a_reader_of_sources_is_known_by_name(talker, monkeypatch, capsys):
    """And what it says stands on a line of its own, not behind the source."""
    weights = models.random_weights(T5)
    what = {"weights": weights, "config": T5, "tokenizer": talker / "tokenizer.json"}
    package = Package("tiny", "1.0", "0" * 64, "tiny", 5_000_000)
    known = cli_named.Named("a small T5", lambda: [package], lambda: what)
    monkeypatch.setitem(cli_named.TALKERS, "flan-t5", known)
    assert main(numpy_("generate", "flan-t5", "hello", "-n", 5)) == 0
    engine = TransformerEngine(**what, backend="numpy")
    (said,) = engine.generate(["hello"], max_new_tokens=5)
    out, error = capsys.readouterr()
    assert said and out.startswith(f"hello\n{said}\n")
    assert error == "fetching a small T5 (5 MB, once) ...\n"


def test_half_a_picture(pictures, tmp_path, capsys):
    whole = pictures[0].read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    root = saved(tmp_path / "seer", VIT)
    assert main(numpy_("features", root, *pictures, tmp_path / "half.png")) == 1
    out, error = capsys.readouterr()
    assert "half.png: got unreadable" in error and error.count("\n") == 1 and not out


def test_pictures_are_upright_and_of_three_colours(tmp_path):
    """Whatever the file has: a camera on its side, grey, inks, a palette, transparency."""
    image = pytest.importorskip("PIL.Image")
    grey = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4) * 10
    plain = image.fromarray(grey)
    side = plain.getexif()
    side[0x0112] = 6  # the camera was turned by a quarter
    plain.save(tmp_path / "side.png", exif=side)
    assert np.array_equal(_read_image(tmp_path / "side.png")[..., 0], np.rot90(grey, -1))
    for mode, kind in (("L", "png"), ("LA", "png"), ("P", "png"), ("RGBA", "png"), ("CMYK", "tif")):
        path = tmp_path / f"{mode}.{kind}"
        plain.convert(mode).save(path)
        assert np.array_equal(_read_image(path), np.dstack([grey] * 3)), mode


def test_size_of_nothing_is_no_size(pictures, tmp_path, capsys):
    root = saved(tmp_path / "seer", VIT)
    assert main(numpy_("features", root, *pictures, "--size", 0)) == 1
    assert "size: got 0" in capsys.readouterr().err


def test_missing_extras_are_named(talker, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert main(numpy_("features", talker, tmp_path / "x.png")) == 1
    assert "stof-cupy[images]" in capsys.readouterr().err
