"""The README's examples run as they are printed, and what the README names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stof_cupy import __version__

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", README, re.M | re.S)


def test_every_example_says_what_it_prints() -> None:
    assert README.count("```python") == len(EXAMPLES) == 3


def cases() -> list[Any]:
    """Return the examples, marked with what they need."""
    needs = {"import cupy": pytest.mark.gpu, "minilm()": pytest.mark.checkpoint}
    return [
        pytest.param(*each, id=name, marks=[needs[word] for word in needs if word in each[0]])
        for each, name in zip(EXAMPLES, ("engine", "graph", "mask"), strict=True)
    ]


@pytest.mark.parametrize(("example", "printed"), cases())
def test_example_prints_what_the_readme_says(example: str, printed: str) -> None:
    assert len(example.strip().splitlines()) <= 12
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == printed


def test_wheel_has_the_name_that_pip_is_given() -> None:
    assert f"dist/stof_cupy-{__version__}-py3-none-any.whl[models,cuda13]" in README


def test_targets_and_files_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
    for room in re.findall(r"^\| `([a-z_]+(?:\.py|/))` \|", README, re.M):
        assert (ROOT / room).exists() or (ROOT / "stof_cupy" / room).exists(), room
