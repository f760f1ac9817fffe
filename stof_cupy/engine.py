"""The engine: a checkpoint in, hidden states or sentence vectors out.

It opens, places, pads and pools; everything else is done by the rooms below.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy import models
from stof_cupy.errors import ArgumentError, ConfigError, DTypeError, mismatch
from stof_cupy.fusion import fuse_epilogues
from stof_cupy.graph import Executor, Graph
from stof_cupy.interop import export_array, import_array
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.extras import require
from stof_cupy.models.inputs import host_arrays, lower_mask, model_inputs
from stof_cupy.models.packaged import mending
from stof_cupy.models.sentences import SentenceConfig
from stof_cupy.models.target import Target
from stof_cupy.models.tokenizer import Tokenizer, pad

__all__ = ["TransformerEngine"]


class TransformerEngine:
    """Runs a Transformer from its weights, with any attention mask.

    Parameters
    ----------
    weights : path or mapping
        A Hugging Face style directory (``config.json``, ``model.safetensors``, ``tokenizer.json``),
        or the weights by their names there, as NumPy or DLPack arrays, together with `config`.
        On NumPy float32 arrays are used where they are, not copied: do not change them afterwards.
    config : mapping, optional
        The fields of ``config.json``; replaces the directory's own.
    backend : {"auto", "cuda", "numpy"}
        ``"auto"`` is CUDA if there is a GPU, unless ``STOF_BACKEND`` says otherwise.
    device : int, optional
        The CUDA device; default: CuPy's current one.
    dtype : {"float16", "bfloat16", "float32"} or dtype, optional
        Of weights and hidden states. Default float16 on CUDA, float32 on NumPy, which computes in
        float32 whatever `dtype` is.

    Attributes
    ----------
    backend, dtype : str
    device : int or None
        None on NumPy.
    config : dict
    graph : Graph
        What a run executes.

    Raises
    ------
    CheckpointError
        If the checkpoint is missing or unreadable, or a config field or weight is missing,
        unexpected or wrong.
    UnsupportedError
        If the model family, the GPU, or `dtype` on this backend is not supported.
    DeviceError
        If CUDA is asked for and there is no such device.

    Examples
    --------
    >>> from stof_cupy import masks, models
    >>> config = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    >>> config |= {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
    >>> config |= {"intermediate_size": 16, "vocab_size": 30, "type_vocab_size": 2}
    >>> config |= {"max_position_embeddings": 6}
    >>> weights = models.random_weights(config)
    >>> engine = TransformerEngine(weights, config=config, backend="numpy")
    >>> x = np.array([[3, 1, 4], [1, 5, 0]])
    >>> hidden = engine.run(x, lengths=np.array([3, 2]), mask="sliding:w=1")
    >>> hidden.shape, hidden.dtype, hidden[1, 2].any()
    ((2, 3, 8), dtype('float32'), np.False_)
    >>> per_head = masks.stack([masks.causal(3), masks.sliding_window(3, window=1)])
    >>> engine.run(x, mask=per_head).shape
    (2, 3, 8)
    """

    def __init__(
        self,
        weights: str | os.PathLike[str] | Mapping[str, Any],
        *,
        config: Mapping[str, Any] | None = None,
        backend: str = "auto",
        device: int | None = None,
        dtype: Any = None,
    ) -> None:
        self._target = target = Target.choose(backend, dtype, device)
        self.backend, self.dtype, self.device = target.backend, target.dtype, target.device
        checked, tensors, self._tokenizer_path = _open(weights, config)
        self._model = models.build(checked, tensors)
        self.config = dict(checked)
        self.graph: Graph = fuse_epilogues(self._model.graph)
        self._text: tuple[Tokenizer, SentenceConfig] | None = None
        self._executor = Executor(
            self.graph, backend=target.backend, dtype=target.dtype, device=target.device
        )

    def run(self, x: Any, *, lengths: Any = None, mask: Any = None, token_types: Any = None) -> Any:
        """Return the last hidden states of a batch of token ids.

        Parameters
        ----------
        x : array of int, (batch, seq)
            Token ids: NumPy, CuPy or any DLPack array, or nested lists.
        lengths : array of int, (batch,), optional
            Sequence i is ``x[i, :lengths[i]]``; what follows is padding, attended by nothing.
            Default: all of it.
        mask : BsrMask, MaskStack, Pattern, bool array, scipy sparse, str or callable, optional
            Who attends to whom, (seq, seq), True = may; the same in all layers. A MaskStack or bool
            array may have leading axes that broadcast to (batch, heads): (batch, 1) is a mask per
            sequence, (1, heads) or (heads,) one per head. A string is a spec such as
            ``"sliding:w=64"`` (:func:`stof_cupy.masks.from_spec`); a callable is given seq and
            returns any of the others but a string. Default: all may.
        token_types : array of int, (batch, seq), optional
            Default 0.

        Returns
        -------
        array of `dtype`, (batch, seq, hidden)
            Of the kind and on the device of `x`; 0 at padding.

        Raises
        ------
        DTypeError
            If `x`, `lengths` or `token_types` are not arrays of integers.
        ShapeError, MaskError
            If shapes do not fit each other or the model's heads, or seq is more than the model
            has positions.
        ArgumentError
            If a token id, type or length is out of its range.
        """
        ids, origin = import_array(x, "x")
        with self._target.active():
            return export_array(self._forward(ids, lengths, mask, token_types), origin)

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

    def explain(self) -> str:
        """Return as text what a run does: where, in which type, and the graph's nodes."""
        size = sum(array.size for array in self.graph.constants.values()) / 1e6
        head = f"{self.config['model_type']}, {size:.1f} M weights, on {self._target}"
        return f"{head}\n{self.graph.show()}"

    def _forward(self, ids: Any, lengths: Any, mask: Any, token_types: Any) -> Any:
        """Check the inputs, run the graph, clear the padding."""
        inputs = model_inputs(self._model, self._target, ids, lengths, mask, token_types)
        hidden = self._executor.run(inputs)["hidden"]
        if lengths is not None:
            positions = self._target.xp.arange(hidden.shape[1], dtype=np.int32)
            kept = positions < inputs["lengths"][:, None]
            # As bits: NaN times 0 would not be 0, and 0 is 0 in every type.
            bits = hidden.view(f"u{hidden.itemsize}")
            bits *= kept[:, :, None]
        return hidden

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


def _open(
    weights: str | os.PathLike[str] | Mapping[str, Any], config: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any], Path | None]:
    """Return config, tensors and tokenizer path of what the caller calls weights."""
    if isinstance(weights, (str, os.PathLike)):
        with mending(Path(weights)):
            checkpoint = read_checkpoint(Path(weights))
        chosen = checkpoint.config if config is None else config
        if chosen is None:
            expected = "a mapping, because no config.json is beside the file"
            raise ConfigError(mismatch("config", None, expected))
        return chosen, checkpoint.tensors, checkpoint.tokenizer_path
    if not isinstance(weights, Mapping):
        expected = "the path of a checkpoint or a mapping of arrays"
        raise DTypeError(mismatch("weights", type(weights).__name__, expected))
    if config is None:
        raise ConfigError(mismatch("config", None, "a mapping, because weights are one"))
    return config, host_arrays(weights), None


class _NoBar:
    def update(self, count: int) -> None:
        """Show nothing."""


def _bar(total: int, show: bool) -> AbstractContextManager[Any]:
    if not show:
        return nullcontext(_NoBar())
    bar: AbstractContextManager[Any] = require("tqdm").tqdm(total=total, unit="text")
    return bar
