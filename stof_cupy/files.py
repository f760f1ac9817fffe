"""Files that others may read, or write too, at any time."""

from __future__ import annotations

import uuid
from pathlib import Path

__all__ = ["UNUSABLE", "write_whole"]

UNUSABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)
"""What reading JSON raises, and taking numbers out of it, where a file is not what was written."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that whoever reads it finds all of it, or what was there before.

    Its folder is made if there is none. Of several who write it at a time, threads or processes,
    the last one wins.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left of it then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
