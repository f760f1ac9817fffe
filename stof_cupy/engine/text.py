"""From sentences to vectors: tokens, batches of like lengths, pooling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.models import Model
from stof_cupy.models.extras import require
from stof_cupy.models.inputs import lower_mask
from stof_cupy.models.packaged import mending
from stof_cupy.models.sentences import SentenceConfig
from stof_cupy.models.target import Target
from stof_cupy.models.tokenizer import Tokenizer, pad

__all__ = ["Encoder"]


class Encoder(ABC):
    """What of an engine has to do with text; it brings the model and runs it."""

    _target: Target
    _model: Model
    _tokenizer_path: Path | None
    _text: tuple[Tokenizer, SentenceConfig] | None

    @abstractmethod
    def _forward(self, ids: Any, lengths: Any, mask: Any, token_types: Any) -> Any:
        """Return hidden states, 0 at padding."""

    def encode(
        self,
        sentences: Iterable[str],
        *,
        mask: Any = None,
        max_length: int | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return one vector a sentence: its hidden states, pooled as the model wants, of length 1.

        That is their mean, or the first one if the checkpoint's ``1_Pooling/config.json`` says so.
        A sentence without tokens gets a vector of 0.

        Parameters
        ----------
        sentences : iterable of str
            Each is cut, with a warning, at `max_length` tokens.
        max_length : int, optional
            Special tokens included. Default: ``max_seq_length`` in the checkpoint's
            ``sentence_bert_config.json`` (256 for all-MiniLM-L6-v2, which takes 512), without it
            the most tokens the model takes.
        mask : str or callable, optional
            As in :meth:`run`; batches differ in seq, so a spec or a callable is what fits. It may
            be per head, not per sequence, because sentences are run in another order.
        batch_size : int
            Sentences of like length are run together, at most this many.
        progress : bool
            Show a progress bar on stderr.

        Returns
        -------
        ndarray of float32, (len(sentences), hidden)

        Raises
        ------
        DTypeError
            If `sentences` are not strings.
        ShapeError, MaskError
            If the mask does not fit.
        ArgumentError
            If the engine's weights came without a tokenizer, or `batch_size` or `max_length` is not
            an integer in its range.
        CheckpointError
            If the tokenizer is damaged or does not fit the model, or pooling is of another kind.
        MissingDependencyError
            Without the ``models`` extra.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
            raise ArgumentError(mismatch("batch_size", repr(batch_size), "a positive integer"))
        rows = self.tokenize(sentences, max_length=max_length)
        pooling = self._read_text()[1].pooling
        not_empty = [i for i, row in enumerate(rows) if row]
        longest_first = sorted(not_empty, key=lambda i: -len(rows[i]))
        out = np.zeros((len(rows), self._model.hidden_size), np.float32)
        with self._target.active(), _bar(len(not_empty), progress) as bar:
            for start in range(0, len(not_empty), batch_size):
                batch = longest_first[start : start + batch_size]
                ids, lengths = pad([rows[i] for i in batch])
                batch_of_one = (1, self._model.heads, ids.shape[1], ids.shape[1])
                lowered = lower_mask(mask, batch_of_one, self._target)
                hidden = self._forward(ids, lengths, lowered, None)
                # Padding is 0, so the sum is over the sentence; a mean would only be rescaled.
                kept = hidden[:, :1] if pooling == "cls" else hidden
                total = kept.astype(np.float32).sum(axis=1)
                out[batch] = total if self.device is None else total.get()
                bar.update(len(batch))
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        np.divide(out, norms, out=out, where=norms > 0)
        return out

    def tokenize(
        self, sentences: Iterable[str], *, max_length: int | None = None
    ) -> list[list[int]]:
        """Return the token ids of each sentence as :meth:`encode` uses them."""
        tokenizer, config = self._read_text()
        most = self._model.max_positions
        if max_length is None:
            return tokenizer(sentences, min(config.max_length or most, most))
        if isinstance(max_length, bool) or not isinstance(max_length, Integral):
            raise ArgumentError(mismatch("max_length", repr(max_length), "an integer"))
        if not 1 <= max_length <= most:
            raise ArgumentError(mismatch("max_length", max_length, f"an integer from 1 to {most}"))
        return tokenizer(sentences, int(max_length))

    def _read_text(self) -> tuple[Tokenizer, SentenceConfig]:
        """Return what turns text into ids and hidden states into vectors, read when first used."""
        if self._text is None:
            if self._tokenizer_path is None:
                raise ArgumentError(
                    mismatch(
                        "weights",
                        "a checkpoint without tokenizer.json",
                        "one with it for encode()",
                        "run() takes token ids",
                    )
                )
            root = self._tokenizer_path.parent
            with mending(root):
                config = SentenceConfig.read(root)
                size, lower_case = self._model.vocab_size, config.lower_case
                self._text = Tokenizer(self._tokenizer_path, size, lower_case=lower_case), config
        return self._text


class _NoBar:
    def update(self, count: int) -> None:
        """Show nothing."""


def _bar(total: int, show: bool) -> AbstractContextManager[Any]:
    if not show:
        return nullcontext(_NoBar())
    bar: AbstractContextManager[Any] = require("tqdm").tqdm(total=total, unit="text")
    return bar
