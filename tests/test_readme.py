"""The README's example runs as it is printed, and what the README names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", README, re.M | re.S)


def test_example_prints_what_the_readme_says() -> None:
    ((example, printed),) = EXAMPLES
    assert README.count("```python") == 1
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


def test_targets_and_files_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
    for room in re.findall(r"^\| `([a-z_]+(?:\.py|/))` \|", README, re.M):
        assert (ROOT / room).exists() or (ROOT / "stof_cupy" / room).exists(), room
