"""The engine: a checkpoint in, hidden states, logits, sentence vectors or text out.

It opens, places and runs; everything else is done by the rooms below.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from stof_cupy import models
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.fusion import fuse_epilogues
from stof_cupy.graph import Executor, Graph
from stof_cupy.interop import export_array, import_array
from stof_cupy.models.inputs import image_inputs, model_inputs
from stof_cupy.models.opening import checkpoint_folder, open_weights
from stof_cupy.models.progress import bar
from stof_cupy.models.target import Target
from stof_cupy.models.tasks import TextTasks

__all__ = ["TransformerEngine"]


class TransformerEngine(TextTasks):
    """Runs a Transformer from its weights, with any attention mask.

    Parameters
    ----------
    weights : path or mapping
        A Hugging Face style directory (``config.json``, ``model.safetensors`` or
        ``pytorch_model.bin``, sharded or not, ``tokenizer.json``), a ``.gguf`` file, an ``.onnx``
        file together with `config`, or the weights by their Hugging Face names, as NumPy or DLPack
        arrays, together with `config`.
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
    progress : bool
        Show a progress bar on stderr while weights are read.

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
        progress: bool = False,
    ) -> None:
        self._target = target = Target.choose(backend, dtype, device)
        self.backend, self.dtype, self.device = target.backend, target.dtype, target.device
        checked, tensors, self._tokenizer_path = open_weights(weights, config)
        self._folder = checkpoint_folder(weights)
        # On NumPy weights stay what they are, in the file if they can: it computes in float32.
        wanted = None if target.device is None else as_dtype(target.dtype)
        with bar(len(tensors), progress, unit="weight", title="reading") as shown:
            self._model = models.build(checked, tensors, dtype=wanted, taken=shown.update)
        self.config = dict(checked)
        self.graph: Graph = fuse_epilogues(self._model.graph)
        self._text = None
        self._others: dict[str, Executor] = {}
        self._lock = threading.Lock()
        self._executor = Executor(
            self.graph, backend=target.backend, dtype=target.dtype, device=target.device
        )

    def run(
        self,
        x: Any,
        *,
        lengths: Any = None,
        mask: Any = None,
        token_types: Any = None,
        layer_masks: Mapping[int, Any] | None = None,
        global_tokens: Any = None,
        output: str = "hidden",
    ) -> Any:
        """Return the last hidden states, or the logits, of a batch of token ids.

        Parameters
        ----------
        x : array of int, (batch, seq)
            Token ids: NumPy, CuPy or any DLPack array, or nested lists. An image encoder takes
            pixels instead, float (batch, channels, height, width), normalised; sides are multiples
            of its patch.
        lengths : array of int, (batch,), optional
            Sequence i is ``x[i, :lengths[i]]``; what follows is padding, attended by nothing.
            Default: all of it.
        mask : BsrMask, MaskStack, Pattern, bool array, scipy sparse, str or callable, optional
            Who attends to whom, (seq, seq), True = may; the same in all layers. A MaskStack or bool
            array may have leading axes that broadcast to (batch, heads): (batch, 1) is a mask per
            sequence, (1, heads) or (heads,) one per head. A string is a spec such as
            ``"sliding:w=64"`` (:func:`stof_cupy.masks.from_spec`); a callable is given seq and
            returns any of the others but a string. Where the model itself masks (a decoder what
            comes later, Gemma what is far), that stays masked. Default: all may.
        token_types : array of int, (batch, seq), optional
            Default 0.
        layer_masks : mapping of int to mask, optional
            For single layers, what takes the place of the model's own mask.
        global_tokens : int, sequence of int, or bool array (batch, seq), optional
            Of a Longformer: how many tokens at the start attend to all and are attended by all, or
            their positions, or flags. Default: none.
        output : {"hidden", "logits", "pooled"}
            The logits are those of a language model; pooled is what an encoder's head makes of
            the first state, where the checkpoint has that head.

        Returns
        -------
        array of `dtype`, (batch, seq, hidden), (batch, seq, vocabulary) or (batch, hidden)
            Of the kind and on the device of `x`; 0 at padding. The first state of an image is its
            class token's.

        Raises
        ------
        DTypeError
            If `x`, `lengths` or `token_types` are not arrays of integers.
        ShapeError, MaskError
            If shapes do not fit each other or the model's heads, or seq is more than the model
            has positions.
        ArgumentError
            If a token id, type or length is out of its range, or the model has no such output.
        """
        if output not in ("hidden", "logits", "pooled"):
            expected = "'hidden', 'logits' or 'pooled'"
            raise ArgumentError(mismatch("output", repr(output), expected))
        pooler = self._model.pooler if output == "pooled" else None
        if output == "pooled" and pooler is None:
            expected = "'hidden': the model, or its checkpoint, has no such head"
            raise ArgumentError(mismatch("output", "'pooled'", expected))
        ids, origin = import_array(x, "x")
        with self._target.active():
            result = self._forward(
                ids, lengths, mask, token_types, layer_masks, output, global_tokens
            )
            if pooler is not None:
                result = self._run(pooler, {"hidden": result[:, :1]})["pooled"][:, 0]
            return export_array(result, origin)

    def _see(self, pixels: Any, mask: Any, layer_masks: Mapping[int, Any] | None) -> Any:
        vision: Any = self._model.vision
        given = image_inputs(self._model, vision, self._target, pixels, mask, layer_masks)
        return self._executor.run(given)["hidden"]

    def explain(self) -> str:
        """Return as text what a run does: where, in which type, and the graph's nodes."""
        size = sum(array.size for array in self.graph.constants.values()) / 1e6
        head = f"{self.config['model_type']}, {size:.1f} M weights, on {self._target}"
        return f"{head}\n{self.graph.show()}"

    def _run(self, graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one of the model's graphs; those beside :attr:`graph` are made when first used."""
        if graph is self._model.graph:
            return self._executor.run(inputs)
        with self._lock:
            executor = self._others.get(graph.name)
            if executor is None:
                fused = fuse_epilogues(graph)
                executor = Executor(
                    fused, backend=self.backend, dtype=self.dtype, device=self.device
                )
                self._others[graph.name] = executor
        return executor.run(inputs)

    def _forward(
        self,
        ids: Any,
        lengths: Any,
        mask: Any,
        token_types: Any = None,
        layer_masks: Mapping[int, Any] | None = None,
        output: str = "hidden",
        global_tokens: Any = None,
    ) -> Any:
        """Check the inputs, run the graph, clear the padding."""
        if self._model.vision is not None:
            return self._see(ids, mask, layer_masks)
        inputs = model_inputs(
            self._model, self._target, ids, lengths, mask, token_types,
            layer_masks=layer_masks, logits=output == "logits", global_tokens=global_tokens,
        )  # fmt: skip
        hidden = self._executor.run(inputs)["logits" if output == "logits" else "hidden"]
        if lengths is not None:
            positions = self._target.xp.arange(hidden.shape[1], dtype=np.int32)
            kept = positions < inputs["lengths"][:, None]
            # As bits: NaN times 0 would not be 0, and 0 is 0 in every type.
            bits = hidden.view(f"u{hidden.itemsize}")
            bits *= kept[:, :, None]
        return hidden
