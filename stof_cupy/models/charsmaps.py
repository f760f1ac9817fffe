"""The character maps that a ``tokenizer.json`` may carry, measured before the library reads them.

The library sets aside as many bytes as the first four of a map say, up to 8 GB, and where the
process may not have them it ends the process.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from stof_cupy.errors import CheckpointError, mismatch
from stof_cupy.models.checkpoint import read_object

__all__ = ["check_charsmaps"]


def check_charsmaps(path: Path) -> None:
    """Raise CheckpointError if a map in a ``tokenizer.json`` is shorter than it says.

    Raises
    ------
    CheckpointError
        Also if the file is no JSON object.
    """
    if path.is_file() and not re.search(rb"recompiled|\\u00", path.read_bytes()):
        return  # there is none, not even written with escapes
    left: list[Any] = [read_object(path, CheckpointError).get("normalizer")]
    while left:
        each = left.pop()
        if not isinstance(each, dict):
            continue
        if each.get("type") == "Precompiled":
            _check(path, each.get("precompiled_charsmap"))
        inner = each.get("normalizers")
        left += inner if isinstance(inner, list) else []


def _check(path: Path, text: Any) -> None:
    try:
        raw = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as bad:
        raise CheckpointError(mismatch(f"{path}: a charsmap", f"no base64 ({bad})", "it")) from bad
    said = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or said > len(raw) - 4:
        got = f"{len(raw)} bytes with a table of {said}"
        raise CheckpointError(mismatch(f"{path}: a charsmap", got, "all of it"))
