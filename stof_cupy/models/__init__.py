"""Model families: from a checkpoint's names to a graph.

A family is one file and one row of :data:`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stof_cupy.dtypes import DEFAULT_FLOAT
from stof_cupy.errors import ConfigError, UnsupportedError, mismatch
from stof_cupy.models.weights import DrawnWeights, Weights

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

    from stof_cupy.graph import Graph
    from stof_cupy.models.images import Vision
    from stof_cupy.models.sparse import Request

__all__ = ["FAMILIES", "LayerMask", "Model", "build", "gpu_float", "random_weights", "shown"]

FAMILIES: dict[str, str] = {
    "bert": "stof_cupy.models.bert",
    "gpt2": "stof_cupy.models.gpt2",
    "llama": "stof_cupy.models.llama",
    "gemma3_text": "stof_cupy.models.gemma3",
    "t5": "stof_cupy.models.t5",
    "vit": "stof_cupy.models.vit",
    "dinov2": "stof_cupy.models.dinov2",
    "longformer": "stof_cupy.models.longformer",
    "big_bird": "stof_cupy.models.big_bird",
}
"""``config["model_type"]`` -> the module of the family.

It has ``build(config, weights) -> Model``, which takes its weights from a
:class:`~stof_cupy.models.weights.Weights` by their names there; ``PREFIX``, which is dropped from
the checkpoint's names; and ``UNUSED``, the patterns of weights it may leave. One whose values
float16 may have no numbers for says ``FLOAT = "bfloat16"``.
"""


@dataclass(frozen=True)
class LayerMask:
    """Who attends to whom in a layer unless a caller says otherwise.

    Attributes
    ----------
    causal : bool
        Whether keys after the query are masked.
    window : int or None
        How far a key may be, see :func:`stof_cupy.masks.sliding_window`; None: anywhere.
    """

    causal: bool = False
    window: int | None = None

    @property
    def spec(self) -> str | None:
        """What :func:`stof_cupy.masks.from_spec` takes; None where all may attend to all.

        Examples
        --------
        >>> LayerMask(causal=True, window=511).spec, LayerMask(causal=True).spec
        ('sliding:w=511,causal=1', 'causal')
        """
        if self.window is not None:
            return f"sliding:w={self.window},causal={int(self.causal)}"
        return "causal" if self.causal else None


@dataclass(frozen=True)
class Model:
    """A model ready to be run: its graph and the limits its inputs must keep.

    Attributes
    ----------
    graph : Graph
        Unfused; inputs ``ids`` and, where the model has them, ``token_types``, ``positions``
        (batch, seq), ``lengths``, ``rows`` (batch, picked), the masks ``mask.0``, ``mask.1`` and
        so on, and the caches ``cache_k.0``, ``cache_v.0`` and so on; outputs ``hidden`` and, of
        language models, the ``logits`` of the tokens numbered `rows`.
    vocab_size, max_positions, token_types : int
        Token ids are in ``[0, vocab_size)``, sequences at most `max_positions` tokens, token types
        in ``[0, token_types)``.
    hidden_size : int
        Width of the hidden states.
    heads : int
        Of every attention: what masks per head have to fit.
    kind : {"encoder", "decoder", "encoder-decoder", "image encoder"}
        Decoders and encoder-decoders can generate. An image encoder's inputs are ``patches``
        (batch, seq, values) and ``places`` (seq, hidden), and masks.
    layer_masks : tuple of LayerMask
        One a layer.
    bridge, decoder : Graph or None, Model or None
        Of an encoder-decoder, whose `graph` is the encoder: from its ``hidden`` to the inputs
        ``cross_k.0`` and so on of the decoder, which takes ``source_lengths`` too.
    start : int
        The token that its decoder begins with.
    vision : Vision or None
        How an image encoder makes its inputs of pixels.
    pooler : Graph or None
        From the state of the first token, ``hidden``, to ``pooled``.
    feeds : callable or None
        ``(model, request) -> inputs``: what makes the masks where a layer has more than one.
    """

    graph: Graph
    vocab_size: int
    max_positions: int
    token_types: int
    hidden_size: int
    heads: int
    kind: str = "encoder"
    layer_masks: tuple[LayerMask, ...] = ()
    bridge: Graph | None = None
    decoder: Model | None = None
    start: int = 0
    vision: Vision | None = None
    feeds: Callable[[Model, Request], dict[str, Any]] | None = None
    pooler: Graph | None = None

    def emptied(self) -> Model:
        """Return it without the weights of its graphs, see `Graph.emptied`."""
        parts = {name: each for name, each in vars(self).items() if hasattr(each, "emptied")}
        return replace(self, **{name: each.emptied() for name, each in parts.items()})


def build(
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    *,
    dtype: np.dtype[Any] | None = None,
    taken: Callable[[], object] | None = None,
) -> Model:
    """Map a checkpoint to a graph with the family that ``config["model_type"]`` names.

    Parameters
    ----------
    config : mapping
        A Hugging Face ``config.json``.
    tensors : mapping of str to ndarray
        The weights by the checkpoint's names.
    dtype : dtype, optional
        What matrices are cast to as they are read, so that they are never all there in another
        type. Default: they stay as they are.
    taken : callable, optional
        Called after each weight that has been read.

    Raises
    ------
    ConfigError
        If `config` is no mapping or names no model type, or a field is missing, unknown or
        unsupported.
    UnsupportedError
        If the family is not one of :data:`FAMILIES`.
    WeightError
        If a weight is missing, unexpected or of the wrong shape.
    """
    family = _family(config)
    weights = Weights(tensors, family.PREFIX, dtype=dtype, taken=taken)
    model: Model = family.build(config, weights)
    weights.finish(family.UNUSED)
    return model


def gpu_float(config: Mapping[str, Any]) -> str:
    """Return the type that a GPU computes a family in unless a caller asks for another.

    Raises
    ------
    ConfigError, UnsupportedError
        As :func:`build`.

    Examples
    --------
    >>> gpu_float({"model_type": "bert"}), gpu_float({"model_type": "t5"})
    ('float16', 'bfloat16')
    """
    return str(getattr(_family(config), "FLOAT", DEFAULT_FLOAT["cuda"]))


def random_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return seeded random float32 weights of the shapes that `config` calls for.

    For tests and benchmarks of a model's shape: activations keep their size from layer to layer.

    Raises
    ------
    ConfigError, UnsupportedError
        As :func:`build`.
    """
    weights = DrawnWeights(seed)
    _family(config).build(config, weights)
    return weights.drawn


def shown(config: Mapping[str, Any], field: str) -> str:
    """Return what an error says it got for a field of `config`."""
    return repr(config[field]) if field in config else "nothing"


def _family(config: Mapping[str, Any]) -> ModuleType:
    if not isinstance(config, Mapping):
        raise ConfigError(mismatch("config", repr(config), "a mapping"))
    name = config.get("model_type")
    known = ", ".join(map(repr, FAMILIES))
    if not isinstance(name, str):
        got = shown(config, "model_type")
        raise ConfigError(mismatch("config['model_type']", got, f"one of {known}"))
    if name not in FAMILIES:
        raise UnsupportedError(mismatch("config['model_type']", repr(name), f"one of {known}"))
    return import_module(FAMILIES[name])
