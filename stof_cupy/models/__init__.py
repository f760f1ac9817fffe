"""Model families: from a checkpoint's names to a graph.

A family is one file and one row of :data:`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stof_cupy.errors import ConfigError, UnsupportedError, mismatch
from stof_cupy.models.weights import DrawnWeights, Weights

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

    from stof_cupy.graph import Graph

__all__ = ["FAMILIES", "Model", "build", "random_weights", "shown"]

FAMILIES: dict[str, str] = {"bert": "stof_cupy.models.bert"}
"""``config["model_type"]`` -> the module of the family.

It has ``build(config, weights) -> Model``, which takes its weights from a
:class:`~stof_cupy.models.weights.Weights` by their names there, and ``UNUSED``, the patterns of
those it may leave.
"""


@dataclass(frozen=True)
class Model:
    """A model ready to be run: its graph and the limits its inputs must keep.

    Attributes
    ----------
    graph : Graph
        Unfused; inputs ``ids``, ``token_types`` (batch, seq), ``mask``, ``lengths``; output
        ``hidden``.
    vocab_size, max_positions, token_types : int
        Token ids are in ``[0, vocab_size)``, sequences at most `max_positions` tokens, token types
        in ``[0, token_types)``.
    hidden_size : int
        Width of the hidden states.
    heads : int
        Of every attention: what masks per head have to fit.
    """

    graph: Graph
    vocab_size: int
    max_positions: int
    token_types: int
    hidden_size: int
    heads: int


def build(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]]) -> Model:
    """Map a checkpoint to a graph with the family that ``config["model_type"]`` names.

    Parameters
    ----------
    config : mapping
        A Hugging Face ``config.json``.
    tensors : mapping of str to ndarray
        The weights by the checkpoint's names.

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
    weights = Weights(tensors, prefix=f"{config['model_type']}.")
    model: Model = family.build(config, weights)
    weights.finish(family.UNUSED)
    return model


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
