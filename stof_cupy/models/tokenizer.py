"""Text to token ids, by the checkpoint's own ``tokenizer.json``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stof_cupy.errors import (
    CheckpointError,
    DTypeError,
    StofWarning,
    mismatch,
)
from stof_cupy.models.extras import require

__all__ = ["Tokenizer", "pad"]


class Tokenizer:
    """A ``tokenizer.json`` without the padding and truncation that it may carry.

    Both would be wrong here: lengths are the engine's business, and a file saved for training often
    cuts at 128 tokens.

    Parameters
    ----------
    path : Path
        The ``tokenizer.json``.
    max_length : int
        The most tokens the model takes, special tokens included.

    Raises
    ------
    CheckpointError
        If the file is not a tokenizer.
    MissingDependencyError
        Without the ``models`` extra.
    """

    def __init__(self, path: Path, max_length: int) -> None:
        tokenizers = require("tokenizers")
        try:
            self._backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as bad:  # the library raises bare Exception for every kind of bad file
            raise CheckpointError(
                mismatch(str(path), f"unreadable ({bad})", "a tokenizer.json")
            ) from bad
        self._backend.no_padding()
        self._max_length = max_length

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, special tokens included.

        Texts of more than `max_length` tokens are cut there, keeping the closing special token; one
        warning says how many.

        Raises
        ------
        DTypeError
            If `texts` is not a sequence of strings.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise DTypeError(mismatch("sentences", type(texts).__name__, "a sequence of str"))
        self._backend.no_truncation()
        rows: list[list[int]] = [e.ids for e in self._backend.encode_batch(list(texts))]
        long = [i for i, row in enumerate(rows) if len(row) > self._max_length]
        if long:
            warnings.warn(
                f"sentences: {len(long)} of {len(rows)} are longer than the model's "
                f"{self._max_length} tokens and were cut there; the first is number {long[0]}",
                StofWarning,
                stacklevel=3,
            )
            self._backend.enable_truncation(self._max_length)
            for i in long:
                rows[i] = self._backend.encode(texts[i]).ids
        return rows


def pad(
    rows: Sequence[Sequence[int]], value: int = 0
) -> tuple[
    np.ndarray[tuple[int, int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]]
]:
    """Return rows of ids as an array (rows, longest) filled with `value`, and lengths (rows,).

    Examples
    --------
    >>> ids, lengths = pad([[5, 6, 7], [8]])
    >>> ids.tolist(), lengths.tolist()
    ([[5, 6, 7], [8, 0, 0]], [3, 1])
    """
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.full((len(rows), int(lengths.max(initial=0))), value, np.int32)
    for out, row in zip(ids, rows, strict=True):
        out[: len(row)] = row
    return ids, lengths
