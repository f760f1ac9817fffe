"""A results file is of one card and named after it: ``paper_attention_{card}.json``.

    python benchmarks/cards.py          prints what stands for ``{card}`` here

Cells that another card has measured are not measured, and one card's times never replace another's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.jit import device

__all__ = ["CARD", "card", "driver", "gpu", "named", "refuse_others"]

CARD = "{card}"
_BRANDS = {"nvidia", "geforce", "tesla", "quadro"}


def gpu() -> str:
    """Return the current GPU's name, or "" where there is none."""
    return device.facts().name if device.is_available() else ""


def driver() -> str:
    """Return the version of NVIDIA's driver, or "unknown"."""
    if not shutil.which("nvidia-smi"):
        return "unknown"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    run = subprocess.run(query, capture_output=True, text=True, check=False)
    return run.stdout.split("\n")[0].strip() or "unknown"


def card(name: str) -> str:
    """Return a GPU's name as part of a file's: up to the first word with a digit.

    Examples
    --------
    >>> [card(n) for n in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA RTX 6000 Ada")]
    ['h100', 'a100', 'rtx6000']
    """
    words = [word for word in re.findall("[a-z0-9]+", name.lower()) if word not in _BRANDS]
    ends = (at for at, word in enumerate(words) if re.search("[0-9]", word))
    return "".join(words[: next(ends, len(words)) + 1]) or "cpu"


def named(path: Path, name: str) -> Path:
    """Return a path with a GPU's name for ``{card}``."""
    return path.with_name(path.name.replace(CARD, card(name)))


def refuse_others(path: Path, there: Iterable[str], name: str) -> None:
    """Refuse to add to a file that has times of other GPUs than `name`.

    Raises
    ------
    ArgumentError
        If there is one; "" is a machine without a GPU.
    """
    others = sorted({other or "no GPU" for other in there if other != name})
    if others:
        hint = f"a name with {CARD} in it is another file on each card"
        raise ArgumentError(
            mismatch(str(path), f"times of {', '.join(others)}", name or "no GPU", hint)
        )


if __name__ == "__main__":
    print(card(gpu()))
