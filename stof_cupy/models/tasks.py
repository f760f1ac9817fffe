"""What an engine does with texts: their tokens, their vectors, and what comes after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, DTypeError, UnsupportedError, mismatch
from stof_cupy.graph import Graph
from stof_cupy.models import Model, decoding
from stof_cupy.models.images import ImageConfig, pixels_of
from stof_cupy.models.inputs import lower_mask
from stof_cupy.models.packaged import mending
from stof_cupy.models.progress import bar
from stof_cupy.models.sampling import Sampler
from stof_cupy.models.sentences import SentenceConfig
from stof_cupy.models.session import Runner, Sessions
from stof_cupy.models.target import Target
from stof_cupy.models.tokenizer import Tokenizer, pad

__all__ = ["TextTasks"]


class TextTasks:
    """The part of :class:`stof_cupy.TransformerEngine` that reads and writes text."""

    config: dict[str, Any]
    device: int | None
    _model: Model
    _target: Target
    _folder: Path | None
    _tokenizer_path: Path | None
    _text: tuple[Tokenizer, SentenceConfig] | None
    _sessions: Sessions

    def _run(self, graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one of the model's graphs."""
        raise NotImplementedError

    def _bind(
        self, graph: Graph, inputs: Mapping[str, Any], finish: Any, changes: Any
    ) -> Callable[[], dict[str, Any]]:
        """Return what runs one of the model's graphs on these very arrays."""
        raise NotImplementedError

    def _forward(self, ids: Any, lengths: Any, mask: Any) -> Any:
        """Return the hidden states; padding is 0."""
        raise NotImplementedError

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
        batch_size = checked_batch_size(batch_size)
        rows = self.tokenize(sentences, max_length=max_length)
        pooling = self._read_text()[1].pooling
        not_empty = [i for i, row in enumerate(rows) if row]
        longest_first = sorted(not_empty, key=lambda i: -len(rows[i]))
        out = np.zeros((len(rows), self._model.hidden_size), np.float32)
        with self._target.active(), bar(len(not_empty), progress, unit="text") as shown:
            for start in range(0, len(not_empty), batch_size):
                batch = longest_first[start : start + batch_size]
                ids, lengths = pad([rows[i] for i in batch])
                batch_of_one = (1, self._model.heads, ids.shape[1], ids.shape[1])
                lowered = lower_mask(mask, batch_of_one, self._target)
                hidden = self._forward(ids, lengths, lowered)
                # Padding is 0, so the sum is over the sentence; a mean would only be rescaled.
                kept = hidden[:, :1] if pooling == "cls" else hidden
                total = kept.astype(np.float32).sum(axis=1)
                out[batch] = total if self.device is None else total.get()
                shown.update(len(batch))
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        np.divide(out, norms, out=out, where=norms > 0)
        return out

    def generate(
        self,
        prompts: Iterable[str] | Iterable[Iterable[int]],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Any = None,
        emit: Callable[[int, int], object] | None = None,
    ) -> list[Any]:
        """Return what a language model says next, for each prompt.

        Parameters
        ----------
        prompts : iterable of str, or of iterable of int
            Texts, or token ids.
        max_new_tokens : int
            At most this many.
        temperature, top_p, seed : float, float, int
            How tokens are drawn, see :class:`stof_cupy.models.sampling.Sampler`; with temperature 0
            the best one is taken.
        stop : int or iterable of int, optional
            Tokens that end a text. Default: the config's ``eos_token_id``.
        emit : callable, optional
            Called as ``emit(i, token)`` as soon as there is a new token of prompt i.

        Returns
        -------
        list of str, or of list of int
            As prompts are; without prompt and stop token.

        Raises
        ------
        UnsupportedError
            If the model does not generate.
        DTypeError, ArgumentError, ShapeError
            If a prompt is empty, too long, or not what the model or its tokenizer takes, or `emit`
            is no function.
        """
        if emit is not None and not callable(emit):
            raise DTypeError(mismatch("emit", type(emit).__name__, "a function, or None"))
        listed = decoding.listed(prompts)
        is_text = bool(listed) and isinstance(listed[0], str)
        rows = self.tokenize(listed) if is_text else listed
        rows = decoding.check_prompts(self._model, rows, max_new_tokens)
        sampler = Sampler(temperature, top_p, seed)
        ends = decoding.stop_tokens(stop, self.config)
        with self._target.active():
            tokens = decoding.generate(
                self._model, Runner(self._run, self._bind), self._target, self._sessions, rows,
                max_new_tokens=int(max_new_tokens), sampler=sampler, stop=ends, emit=emit,
            )  # fmt: skip
        return self._read_text()[0].decode(tokens) if is_text else tokens

    def features(
        self,
        images: Iterable[Any],
        *,
        size: int | None = None,
        batch_size: int = 8,
        progress: bool = False,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return one vector an image: the last hidden state of its class token.

        Parameters
        ----------
        images : iterable of uint8 array, (height, width, 3)
            Red, green and blue. The shorter side is resampled to `size`, and the middle is kept.
        size : int, optional
            A multiple of the model's patch. Default: 16 patches, 224 pixels with patches of 14.
        batch_size : int
            Images that are run together.
        progress : bool
            Show a progress bar on stderr.

        Returns
        -------
        ndarray of float32, (images, hidden)

        Raises
        ------
        UnsupportedError
            If the model takes no images.
        DTypeError, ShapeError, ArgumentError
            If `images` are something else, or `size` or `batch_size` is out of its range.
        """
        vision = self._model.vision
        if vision is None:
            got = f"one of kind {self._model.kind!r}"
            raise UnsupportedError(mismatch("model", got, "one of images"))
        batch_size = checked_batch_size(batch_size)
        root = None if self._folder is None else self._folder / "preprocessor_config.json"
        pixels = pixels_of(
            images, vision, ImageConfig.read(root), size=16 * vision.patch if size is None else size
        )
        out = np.zeros((len(pixels), self._model.hidden_size), np.float32)
        with self._target.active(), bar(len(pixels), progress, unit="image") as shown:
            for start in range(0, len(pixels), batch_size):
                part = np.s_[start : start + batch_size]
                first = self._forward(pixels[part], None, None)[:, 0].astype(np.float32)
                out[part] = first if self.device is None else first.get()
                shown.update(len(first))
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

    def detokenize(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Return the text of each list of token ids, special tokens left out.

        Raises
        ------
        DTypeError, ArgumentError
            If `rows` are no lists of token ids.
        """
        return self._read_text()[0].decode(decoding.id_lists(rows))

    def _read_text(self) -> tuple[Tokenizer, SentenceConfig]:
        """Return what turns text into ids and hidden states into vectors, read when first used."""
        if self._text is None:
            if self._tokenizer_path is None:
                raise ArgumentError(
                    mismatch(
                        "weights",
                        "a checkpoint without tokenizer.json",
                        "one with it for texts",
                        "or tokenizer=; run() takes token ids",
                    )
                )
            root = self._folder or self._tokenizer_path.parent
            with mending(root):
                config = SentenceConfig.read(root)
                size, lower_case = self._model.vocab_size, config.lower_case
                self._text = Tokenizer(self._tokenizer_path, size, lower_case=lower_case), config
        return self._text


def checked_batch_size(batch_size: Any) -> int:
    """Return it as Python's own, whose sums cannot overflow.

    Raises
    ------
    ArgumentError
        Unless it is a positive integer.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise ArgumentError(mismatch("batch_size", repr(batch_size), "a positive integer"))
    return int(batch_size)
