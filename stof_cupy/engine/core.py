"""The engine: a checkpoint in, hidden states or sentence vectors out.

It opens, places, pads and pools; everything else is done by the rooms below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from stof_cupy import models
from stof_cupy.engine.lists import is_list, run_list
from stof_cupy.engine.padding import SMALL, bucket, clear_padding, padded_to, written
from stof_cupy.engine.text import Encoder
from stof_cupy.errors import ArgumentError, ConfigError, DTypeError, mismatch
from stof_cupy.fusion import fuse_epilogues
from stof_cupy.fusion.report import Report
from stof_cupy.graph import Graph
from stof_cupy.interop import export_array, import_array
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.inputs import host_arrays, model_inputs
from stof_cupy.models.packaged import mending
from stof_cupy.models.sentences import SentenceConfig
from stof_cupy.models.target import Target
from stof_cupy.models.tokenizer import Tokenizer
from stof_cupy.runtime import Options, Program
from stof_cupy.runtime.profile import Profile
from stof_cupy.terminal import Progress

__all__ = ["TransformerEngine"]


class TransformerEngine(Encoder):
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
    tune : {"off", "fast", "full"}
        Whether to search for what runs as one, for seconds or minutes, when a class of shapes is
        first met; what is found is kept on disk. ``"off"``: the rewrites that need no search.
    cuda_graphs : bool
        Whether runs of equal shapes are launched as one CUDA graph, which holds device memory.
    progress : bool
        Show a bar on stderr while tuning.

    Attributes
    ----------
    backend, dtype : str
    device : int or None
        None on NumPy.
    config : dict
    graph : Graph
        What a run executes where nothing is tuned.

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
    >>> import numpy as np
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
        tune: str = "off",
        cuda_graphs: bool = True,
        progress: bool = False,
    ) -> None:
        self._bar = Progress("tuning") if progress else None
        options = Options(tune=tune, record=None if cuda_graphs else False, watch=self._bar)
        self._target = target = Target.choose(backend, dtype, device)
        self.backend, self.dtype, self.device = target.backend, target.dtype, target.device
        checked, tensors, self._tokenizer_path = _open(weights, config)
        self._model = models.build(checked, tensors)
        self.config = dict(checked)
        self._text: tuple[Tokenizer, SentenceConfig] | None = None
        self._program = Program(
            self._model.graph,
            backend=target.backend,
            dtype=target.dtype,
            device=target.device,
            options=options,
        )
        self.graph: Graph = fuse_epilogues(self._program.graph)

    def run(
        self,
        x: Any,
        *,
        lengths: Any = None,
        mask: Any = None,
        token_types: Any = None,
        out: Any = None,
    ) -> Any:
        """Return the last hidden states of a batch of token ids.

        Parameters
        ----------
        x : array of int, (batch, seq)
            Token ids: NumPy, CuPy or any DLPack array, or nested lists. Or a list of sequences of
            any lengths, each a 1-D array or a list: they are packed, not padded, and the results
            are those of each alone.
        lengths : array of int, (batch,), optional
            Sequence i is ``x[i, :lengths[i]]``; what follows is padding, attended by nothing.
            Default: all of it.
        mask : BsrMask, MaskStack, Pattern, bool array, scipy sparse, str or callable, optional
            Who attends to whom, (seq, seq), True = may; the same in all layers. A MaskStack or bool
            array may have leading axes that broadcast to (batch, heads): (batch, 1) is a mask per
            sequence, (1, heads) or (heads,) one per head. A string is a spec such as
            ``"sliding:w=64"`` (:func:`stof_cupy.masks.from_spec`); a callable is given seq and
            returns any of the others but a string. For a list of sequences it is a string or a
            callable. Default: all may.
        token_types : array of int, (batch, seq), optional
            Like `x`. Default 0.
        out : array of `dtype`, (batch, seq, hidden), optional
            NumPy or DLPack: where to write the result. Not for a list of sequences.

        Returns
        -------
        array of `dtype`, (batch, seq, hidden)
            Of the kind and on the device of `x`; 0 at padding. `out` if that is given. For a list
            of sequences a list, of arrays (length, hidden).

        Raises
        ------
        DTypeError
            If `x`, `lengths` or `token_types` are not arrays of integers.
        ShapeError, MaskError
            If shapes do not fit each other or the model's heads, or seq is more than the model
            has positions.
        ArgumentError
            If a token id, type or length is out of its range, `lengths` or `out` come with a list
            of sequences, or the engine is closed.
        OutOfMemoryError
            If the device cannot hold what lies between the operators.
        """
        if is_list(x):
            for name, value in (("lengths", lengths), ("out", out)):
                if value is not None:
                    raise ArgumentError(mismatch(name, "an array", "None with a list of sequences"))
            return run_list(self, self._program.packed(), x, mask, token_types)
        ids, origin = import_array(x, "x")
        with self._target.active():
            hidden = self._forward(ids, lengths, mask, token_types)
            return export_array(hidden, origin) if out is None else written(hidden, out)

    def profile(
        self,
        x: Any,
        *,
        lengths: Any = None,
        mask: Any = None,
        token_types: Any = None,
        repeat: int = 5,
    ) -> Profile:
        """Time a run operator by operator; ``print`` shows it. Arguments are those of `run`.

        On CUDA every operator is an NVTX range too, for Nsight Systems.
        """
        ids, _ = import_array(x, "x")
        with self._target.active():
            inputs = model_inputs(self._model, self._target, ids, lengths, mask, token_types)
            return self._program.profile(inputs, repeat=repeat)

    def report(self, x: Any, *, mask: Any = None) -> Report:
        """Return how runs like this one are tuned, which it does if it was not done yet.

        ``print`` shows what was tried and why the winner won, ``save_plot(path)`` draws it.
        """
        ids, _ = import_array(x, "x")
        with self._target.active():
            inputs = model_inputs(self._model, self._target, ids, None, mask, None)
            return self._program.tuned(inputs)

    def explain(self) -> str:
        """Return as text what a run does: where, in which type, and the graph's nodes.

        And how it was tuned, as far as runs were, and what is recorded.
        """
        size = sum(array.size for array in self.graph.constants.values()) / 1e6
        head = f"{self.config['model_type']}, {size:.1f} M weights, on {self._target}"
        return f"{head}\n{self._program.explain()}"

    def close(self) -> None:
        """Free the weights and recorded runs; the engine cannot be used after it."""
        self._program.close()

    def __enter__(self) -> TransformerEngine:
        """Return the engine, to be closed at the end of a ``with`` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _forward(self, ids: Any, lengths: Any, mask: Any, token_types: Any) -> Any:
        """Check the inputs, run the graph, clear the padding."""
        inputs = model_inputs(self._model, self._target, ids, lengths, mask, token_types)
        batch, seq = inputs["ids"].shape
        whole = bucket(seq, self._model.max_positions)
        # Small runs are bound by launches: better a few idle tokens than a recording a length.
        if self._program.records and mask is None and batch * whole <= SMALL and whole != seq:
            inputs = padded_to(inputs, whole)
        finish = None if inputs["lengths"] is None else clear_padding
        try:
            hidden = self._program.run(inputs, finish=finish)["hidden"]
        finally:
            if self._bar is not None:
                self._bar.close()
        if hidden.shape[1] == seq:
            return hidden
        return self._target.xp.ascontiguousarray(hidden[:, :seq])


def _open(
    weights: str | os.PathLike[str] | Mapping[str, Any], config: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any], Path | None]:
    """Return config, tensors and tokenizer path of what the caller calls weights."""
    if isinstance(weights, (str, os.PathLike)):
        with mending(Path(weights)):
            checkpoint = read_checkpoint(Path(weights))
        chosen = checkpoint.config if config is None else config
        return chosen, checkpoint.tensors, checkpoint.tokenizer_path
    if not isinstance(weights, Mapping):
        expected = "the path of a checkpoint or a mapping of arrays"
        raise DTypeError(mismatch("weights", type(weights).__name__, expected))
    if config is None:
        raise ConfigError(mismatch("config", None, "a mapping, because weights are one"))
    return config, host_arrays(weights), None
