"""Text to token ids, by the checkpoint's own ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path

import numpy as np

from stof_cupy.errors import ArgumentError, CheckpointError, DTypeError, StofError, mismatch
from stof_cupy.models.charsmaps import check_charsmaps
from stof_cupy.models.extras import require
from stof_cupy.models.gguf_file import open_gguf
from stof_cupy.models.gguf_tokenizer import tokenizer_of
from stof_cupy.models.warning import warn

__all__ = ["Tokenizer", "pad"]


class Tokenizer:
    """A ``tokenizer.json`` without the padding and truncation that it may carry.

    Both would be wrong here: lengths are the engine's business, and a file saved for training often
    cuts at 128 tokens.

    Parameters
    ----------
    path : Path
        The ``tokenizer.json``, or a GGUF file.
    vocab_size : int
        Ids must be below it.
    lower_case : bool
        Put texts in lower case first, whatever the file does.

    Raises
    ------
    CheckpointError
        If the file is not a tokenizer, or one of another model: it has ids beyond `vocab_size`.
    MissingDependencyError
        Without the ``models`` extra.
    """

    def __init__(self, path: Path, vocab_size: int, *, lower_case: bool = False) -> None:
        tokenizers = require("tokenizers")
        self._path = path
        with _failing(path, "unreadable"):
            if path.suffix == ".gguf":
                self._backend = tokenizer_of(open_gguf(path).fields, tokenizers, str(path))
            else:
                check_charsmaps(path)
                self._backend = tokenizers.Tokenizer.from_file(str(path))
        self._backend.no_padding()
        self._backend.no_truncation()
        self._lower_case = lower_case
        largest = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if largest >= vocab_size:
            expected = f"none beyond {vocab_size - 1}, as config['vocab_size'] is {vocab_size}"
            raise CheckpointError(mismatch(str(path), f"token ids up to {largest}", expected))

    def __call__(self, texts: Iterable[str], max_length: int) -> list[list[int]]:
        """Return the ids of each text, special tokens included.

        Texts of more than `max_length` tokens are cut there, keeping the closing special token; one
        warning says how many.

        Raises
        ------
        DTypeError
            If `texts` is not a sequence of strings.
        ArgumentError
            If `max_length` leaves no room for the special tokens, or a text is not valid Unicode.
        CheckpointError
            If the tokenizer cannot encode a text, as one that has no token for what it does not
            know.
        """
        texts = _strings(texts)
        if self._lower_case:
            texts = [text.lower() for text in texts]
        special = self._backend.num_special_tokens_to_add(False)
        if max_length < special:
            expected = f"at least {special}, the special tokens of every sentence"
            hint = "unless it is given it is what the checkpoint's config files say"
            raise ArgumentError(mismatch("max_length", max_length, expected, hint))
        with _failing(self._path, "unable to encode a text"):
            rows: list[list[int]] = [e.ids for e in self._backend.encode_batch(texts)]
        long = [i for i, row in enumerate(rows) if len(row) > max_length]
        if long:
            warn(
                f"sentences: {len(long)} of {len(rows)} are longer than {max_length} tokens and "
                f"were cut there; the first is number {long[0]}"
            )
            for i in long:
                # Not enable_truncation(): other threads may be using the same tokenizer.
                cut = self._backend.encode(texts[i], add_special_tokens=False)
                cut.truncate(max_length - special)
                rows[i] = self._backend.post_process(cut).ids
        return rows

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Return the text of each list of ids, special tokens left out.

        Raises
        ------
        ArgumentError
            If an id is no integer from 0 to 2**32 - 1.
        """
        given = [list(row) for row in rows]
        for token in (token for row in given for token in row):
            if not isinstance(token, Integral) or not 0 <= token < 2**32:
                raise ArgumentError(mismatch("token", repr(token), "an id from 0 to 2**32 - 1"))
        with _failing(self._path, "unable to decode tokens"):
            texts: list[str] = self._backend.decode_batch(given)
        return texts


@contextmanager
def _failing(path: Path, what: str) -> Iterator[None]:
    """Raise CheckpointError for what the library raises: bare Exception, and Rust's panics.

    Those are no Exception: they are told by the name of their module.
    """
    try:
        yield
    except StofError:
        raise
    except BaseException as bad:
        if not isinstance(bad, Exception) and type(bad).__module__ != "pyo3_runtime":
            raise
        raise CheckpointError(mismatch(str(path), f"{what} ({bad})", "a sound tokenizer")) from bad


def _strings(texts: Iterable[str]) -> list[str]:
    """Return `texts`, of which a generator is one form, as a list of valid strings."""
    got = type(texts).__name__
    listed = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [None]
    strings = [text for text in listed if isinstance(text, str)]
    if len(strings) != len(listed):
        raise DTypeError(mismatch("sentences", got, "a sequence of str"))
    for i, text in enumerate(strings):
        try:
            text.encode()
        except UnicodeEncodeError as bad:
            expected = "text without lone surrogates"
            raise ArgumentError(mismatch(f"sentences[{i}]", repr(text), expected)) from bad
    return strings


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
