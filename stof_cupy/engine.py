"""The engine: a checkpoint in, hidden states, logits, sentence vectors or text out.

It opens, places and runs; everything else is done by the rooms below.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stof_cupy import models
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.fusion import fuse_epilogues
from stof_cupy.graph import Graph
from stof_cupy.interop import export_array, import_array
from stof_cupy.models.checks import checked
from stof_cupy.models.inputs import image_inputs, model_inputs, refuse_for_images
from stof_cupy.models.inspection import Inspection
from stof_cupy.models.lists import can_be_packed, is_list, run_list
from stof_cupy.models.opening import checkpoint_folder, open_weights
from stof_cupy.models.progress import bar
from stof_cupy.models.session import Sessions
from stof_cupy.models.target import Target
from stof_cupy.models.tasks import TextTasks
from stof_cupy.runtime import Options, Program
from stof_cupy.runtime.bound import bind
from stof_cupy.runtime.padding import SMALL, bucket, clear_padding, padded_to, written
from stof_cupy.runtime.ready import is_capturing
from stof_cupy.terminal import Progress

__all__ = ["TransformerEngine"]


class TransformerEngine(TextTasks, Inspection):
    """Runs a Transformer from its weights, with any attention mask.

    Parameters
    ----------
    weights : path or mapping
        A Hugging Face style directory (``config.json``, ``model.safetensors`` or
        ``pytorch_model.bin``, sharded or not, ``tokenizer.json``), a ``.gguf`` file, or with
        `config` an ``.onnx`` file or the weights by their Hugging Face names, NumPy or DLPack:
        on NumPy float32 arrays are not copied, so do not change them afterwards.
    config : mapping, optional
        The fields of ``config.json``; replaces the directory's own.
    tokenizer : path, optional
        A ``tokenizer.json`` or GGUF file; replaces the checkpoint's own.
    backend : {"auto", "cuda", "numpy"}
        ``"auto"`` is CUDA if there is a GPU, unless ``STOF_BACKEND`` says otherwise.
    device : int, optional
        The CUDA device; default: CuPy's current one.
    dtype : {"float16", "bfloat16", "float32"} or dtype, optional
        Of weights and hidden states. Default on CUDA float16, and bfloat16 for families whose
        values are beyond float16 (Gemma 3, T5); on NumPy float32, in which it computes anyway.
    progress : bool
        Show a progress bar on stderr while weights are read and schemes are tuned.
    tune : {"off", "fast", "full"}
        Whether to search for what runs as one, for seconds or minutes, when a class of shapes is
        first met; what is found is kept on disk. ``"off"``: the rewrites that need no search.
    cuda_graphs : bool
        Whether runs of equal shapes are launched as one CUDA graph, from the second on. Up to 32 of
        them are kept for each graph of the model, in up to 2 GiB of device memory. False: each
        operator is launched.

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
    >>> config = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 30}
    >>> config |= {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 6}
    >>> config |= {"num_attention_heads": 2, "intermediate_size": 16, "type_vocab_size": 2}
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
        tokenizer: str | os.PathLike[str] | None = None,
        backend: str = "auto",
        device: int | None = None,
        dtype: Any = None,
        progress: bool = False,
        tune: str = "off",
        cuda_graphs: bool = True,
    ) -> None:
        self._bar = Progress("tuning") if progress else None
        record = None if cuda_graphs else False
        self._options = Options(tune=tune, record=record, watch=self._bar)
        target = Target.choose(backend, dtype, device)
        checked, tensors, self._tokenizer_path = open_weights(weights, config, tokenizer)
        self._target = target = target.of_family(checked) if dtype is None else target
        self.backend, self.dtype, self.device = target.backend, target.dtype, target.device
        self._folder = checkpoint_folder(weights)
        # On NumPy weights stay what they are, in the file if they can: it computes in float32.
        wanted = None if target.device is None else as_dtype(target.dtype)
        with bar(len(tensors), progress, unit="weight", title="reading") as shown:
            self._model = models.build(checked, tensors, dtype=wanted, taken=shown.update)
        self._packs = can_be_packed(self._model)
        self.config = dict(checked)
        self._text = None
        self._others: dict[str, Program] = {}
        # What generates is kept where it is recorded: with what was recorded.
        self._sessions = Sessions(2 if cuda_graphs and target.device is not None else 0)
        self._lock, self._closed = threading.Lock(), False
        self._program = self._prepared(self._model.graph)
        self.graph: Graph = fuse_epilogues(self._program.graph)

    def _prepared(self, graph: Graph) -> Program:
        at = self._target
        return Program(
            graph, backend=at.backend, dtype=at.dtype, device=at.device, options=self._options
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
        out: Any = None,
    ) -> Any:
        """Return the last hidden states, or the logits, of a batch of token ids.

        Parameters
        ----------
        x : array of int, (batch, seq)
            Token ids: NumPy, CuPy or any DLPack array, or nested lists. Or a list of sequences of
            any lengths, each a 1-D array or a list: they are packed, not padded, where the model
            can be, and the results are those of each alone. An image encoder takes
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
        out : array of `dtype`, optional
            NumPy or DLPack: where to write the result. Not for a list of sequences.

        Returns
        -------
        array of `dtype`, (batch, seq, hidden), (batch, seq, vocabulary) or (batch, hidden)
            Of the kind and on the device of `x`; 0 at padding. `out` if that is given. The first
            state of an image is its class token's. For a list of sequences a list, of arrays
            (length, hidden) or (length, vocabulary).

        Raises
        ------
        DTypeError
            If `x`, `lengths` or `token_types` are not arrays of integers.
        ShapeError, MaskError
            If shapes do not fit each other or the model's heads, or seq is more than the model
            has positions.
        ArgumentError
            If a token id, type or length is out of its range, the model has no such output,
            `lengths` or `out` come with a list of sequences, or the engine is closed; while a CUDA
            graph is captured, if `x`, `lengths` or `token_types` are not on the GPU.
        OutOfMemoryError
            If the device cannot hold what lies between the operators.

        Notes
        -----
        A run may be a part of a CUDA graph of your own, once it has run with such shapes and the
        same mask. What it is given is read anew at each launch; numbers out of range are not
        reported then, states that depend on one are NaN. Memory that it takes has to stay the
        graph's: capture under ``cupy.cuda.using_allocator(pool.malloc)``, and keep the pool.
        """
        if output not in ("hidden", "logits", "pooled"):
            expected = "'hidden', 'logits' or 'pooled'"
            raise ArgumentError(mismatch("output", repr(output), expected))
        pooler = self._model.pooler if output == "pooled" else None
        if output == "pooled" and pooler is None:
            raise ArgumentError(mismatch("output", "'pooled'", "'hidden': there is no such head"))
        if is_list(x):
            if is_capturing(self.device):
                expected = "one array while a CUDA graph is captured, whose lengths are fixed"
                raise ArgumentError(mismatch("x", "a list of sequences", expected))
            given = {"lengths": lengths, "out": out, "layer_masks": layer_masks}
            pooled = output if pooler is not None else None
            for name, value in {**given, "global_tokens": global_tokens, "output": pooled}.items():
                if value is not None:
                    raise ArgumentError(mismatch(name, "a value", "None with a list of sequences"))
            program = self._program.packed() if self._packs else None
            return run_list(self, program, x, mask, token_types, output)
        ids, origin = import_array(x, "x")
        with self._target.active():
            result = self._forward(
                ids, lengths, mask, token_types, layer_masks, output, global_tokens
            )
            if pooler is not None:
                result = self._run(pooler, {"hidden": result[:, :1]})["pooled"][:, 0]
            return export_array(result, origin) if out is None else written(result, out)

    def _see(self, pixels: Any, mask: Any, layer_masks: Mapping[int, Any] | None) -> Any:
        vision: Any = self._model.vision
        given = image_inputs(self._model, vision, self._target, pixels, mask, layer_masks)
        return self._ran(self._program, given, None)["hidden"]

    def _run(self, graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one of the model's graphs; those beside :attr:`graph` are made when first used."""
        return self._ran(self._program_of(graph), inputs, None)

    def _bind(
        self, graph: Graph, inputs: Mapping[str, Any], finish: Any, changes: Any
    ) -> Callable[[], dict[str, Any]]:
        return bind(self._program_of(graph), inputs, finish=finish, changes=changes)

    def _program_of(self, graph: Graph) -> Program:
        with self._lock:
            if self._closed or graph is self._model.graph:  # closed, it refuses to run
                return self._program
            program = self._others.get(graph.name)
            if program is None:
                program = self._others[graph.name] = self._prepared(graph)
            return program

    def _ran(self, program: Program, inputs: Mapping[str, Any], finish: Any) -> dict[str, Any]:
        try:
            return program.run(inputs, finish=finish)
        finally:
            if self._bar is not None:
                self._bar.close()

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
            other = {"token_types": token_types, "global_tokens": global_tokens}
            other["output"] = output if output == "logits" else None
            refuse_for_images(lengths=lengths, **other)
            return self._see(ids, mask, layer_masks)
        with checked() as later:
            inputs = model_inputs(
                self._model, self._target, ids, lengths, mask, token_types, later=later,
                layer_masks=layer_masks, logits=output == "logits", global_tokens=global_tokens,
            )  # fmt: skip
            batch, seq = inputs["ids"].shape
            whole = bucket(seq, self._model.max_positions)
            # Small runs are bound by launches: better a few idle tokens than a recording a length.
            small = self._program.records and batch * whole <= SMALL and whole != seq
            told = {name for name, each in inputs.items() if each is not None}
            if small and told - {"lengths"} == {"ids", "token_types"}:
                inputs = padded_to(inputs, whole)
            finish = None if inputs.get("lengths") is None else clear_padding
            made = self._ran(self._program, inputs, finish)
        result = made["logits" if output == "logits" else "hidden"]
        padded = result.shape[1] != seq
        return self._target.xp.ascontiguousarray(result[:, :seq]) if padded else result
