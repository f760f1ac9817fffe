"""Longformer encoders: a window, and global tokens with projections of their own.

Beltagy et al., arXiv 2004.05150. A layer attends twice: all but the global tokens to their window
and the global ones, and the global ones to everyone. A row of a mask that keeps nothing gives 0, so
the sum of both is the layer's attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stof_cupy.errors import ConfigError, mismatch
from stof_cupy.models import LayerMask, Model
from stof_cupy.models.bert import BertConfig, BertLayers
from stof_cupy.models.inputs import both
from stof_cupy.models.pooling import pooler_of
from stof_cupy.models.sparse import Request, global_rows, local_mask, per_sequence, positions_of

if TYPE_CHECKING:
    from stof_cupy.graph import Graph, Node
    from stof_cupy.models.weights import Weights

__all__ = ["PREFIX", "UNUSED", "build"]

PREFIX = "longformer."

UNUSED = ("embeddings.position_ids", "pooler.*", "lm_head.*", "classifier.*", "qa_outputs.*")
"""Weights of parts after the hidden states."""


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of a Longformer's last hidden states.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    from stof_cupy.graph import Graph

    c = BertConfig.parse(
        config, "Longformer", "attention_window", "onnx_export", "ignore_attention_mask",
        "attention_mode", model_type="longformer",
    )  # fmt: skip
    windows = _windows(config, c.num_hidden_layers)
    first = _first_position(config, c)
    c = replace(c, max_position_embeddings=c.max_position_embeddings - first)
    g = Graph("longformer")
    layers = BertLayers(g, weights, c)
    x = layers.embeddings(first=first)
    lengths = g.input("lengths", ("batch",), "lengths")
    for i in range(c.num_hidden_layers):
        mask = g.input(f"mask.{i}", ("seq", "seq"), "mask")
        everyone = g.input(f"global_mask.{i}", ("seq", "seq"), "mask")
        x = _layer(g, layers, f"encoder.layer.{i}", x, (mask, everyone), lengths)
    g.output("hidden", x)
    return Model(
        g,
        vocab_size=c.vocab_size,
        max_positions=c.max_position_embeddings,
        token_types=c.type_vocab_size,
        hidden_size=c.hidden_size,
        heads=c.num_attention_heads,
        layer_masks=tuple(LayerMask(window=window) for window in windows),
        feeds=_feeds,
        pooler=pooler_of(weights, "pooler.dense", c.hidden_size),
    )


def _windows(config: Mapping[str, Any], count: int) -> list[int]:
    """Return how far each layer sees to either side: half of ``attention_window``."""
    given = config.get("attention_window", 512)
    listed = given if isinstance(given, list) else [given] * count
    if len(listed) != count or not all(type(w) is int and w > 0 and w % 2 == 0 for w in listed):
        expected = f"an even number, or {count} of them"
        raise ConfigError(mismatch("config['attention_window']", repr(given), expected))
    return [w // 2 for w in listed]


def _first_position(config: Mapping[str, Any], c: BertConfig) -> int:
    """Return the row of the position table that the first token has: RoBERTa's."""
    pad = config.get("pad_token_id", 1)
    if type(pad) is not int or not 0 <= pad < c.max_position_embeddings - 1:
        raise ConfigError(mismatch("config['pad_token_id']", repr(pad), "a position"))
    return pad + 1


def _layer(
    g: Graph, layers: BertLayers, name: str, x: Node, masks: tuple[Node, Node], lengths: Node
) -> Node:
    parts = []
    for suffix, mask in zip(("", "_global"), masks, strict=True):
        q, k, v = (
            layers.heads(f"{name}.attention.self.{part}{suffix}", x)
            for part in ("query", "key", "value")
        )
        parts.append(g.attention(q, k, v, mask, lengths, scale=layers.scale))
    return layers.after(name, g.add(*parts), x)


def _feeds(model: Model, request: Request) -> dict[str, Any]:
    """Return the masks of all layers, of either attention."""
    positions = positions_of(request)
    everyone: Any = per_sequence([global_rows(request.seq, each) for each in positions])
    made: dict[Any, tuple[Any, Any]] = {}
    feeds = {}
    for i, own in enumerate(model.layer_masks):
        replaced = i in request.layer_masks
        key = id(request.layer_masks[i]) if replaced else (own.window,)
        if key not in made:  # equal masks stay one object, which is uploaded once
            if replaced:
                parts = _parted(request.layer_masks[i], everyone, any(positions))
            else:
                near = [local_mask(request.seq, own.window or 0, each) for each in positions]
                parts = per_sequence(near), everyone
            made[key] = both(parts[0], request.mask), both(parts[1], request.mask)
        feeds[f"mask.{i}"], feeds[f"global_mask.{i}"] = made[key]
    return feeds


def _parted(mask: Any, everyone: Any, is_global: bool) -> tuple[Any, Any]:
    """Return a caller's mask in two: the rows of all but the global tokens, and of these."""
    if not is_global:
        return mask, everyone
    return both(~everyone, mask), both(everyone, mask)
