"""BigBird encoders: global blocks, a window of blocks, as Hugging Face runs them.

Zaheer et al., arXiv 2007.14062. In evaluation Hugging Face's random blocks are all the first block,
which so counts ``1 + num_random_blocks`` times in the softmax of every row but those of the first
and the last block. Here the keys of the first block are given that many times. Up to
``(5 + 2 * num_random_blocks) * block_size`` tokens attention is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks import BsrMask
from stof_cupy.models import LayerMask, Model
from stof_cupy.models.bert import BertConfig, BertLayers
from stof_cupy.models.fields import Fields
from stof_cupy.models.pooling import pooler_of
from stof_cupy.models.sparse import Request

if TYPE_CHECKING:
    from stof_cupy.graph import Graph, Node
    from stof_cupy.models.weights import Weights

__all__ = ["PREFIX", "UNUSED", "build"]

PREFIX = "bert."

UNUSED = ("embeddings.position_ids", "pooler.*", "cls.*", "classifier.*", "qa_classifier.*")
"""Weights of parts after the hidden states."""

_OWN = ("attention_type", "block_size", "num_random_blocks", "use_bias", "rescale_embeddings")


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of a BigBird's last hidden states.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    from stof_cupy.graph import Graph

    c = BertConfig.parse(config, "BigBird", *_OWN, model_type="big_bird")
    f = Fields(config, "BigBird")
    sparse = f.choice(
        "attention_type", {"block_sparse": True, "original_full": False}, "block_sparse"
    )
    block, drawn = f.size("block_size", 64), f.size("num_random_blocks", 3, least=0)
    bias = f.flag("use_bias", True)
    grown = c.hidden_size**0.5 if f.flag("rescale_embeddings", False) else None
    g = Graph("big_bird", ("batch", "seq", "keys"))
    layers = BertLayers(g, weights, c)
    x = layers.embeddings(scale=grown)
    g.input("lengths", ("batch",), "lengths")  # every model is given them
    lengths = g.input("key_lengths", ("batch",), "lengths")
    rows = g.input("key_rows", ("batch", "keys"), "int")
    for i in range(c.num_hidden_layers):
        mask = g.input(f"mask.{i}", ("seq", "keys"), "mask")
        x = _layer(g, layers, f"encoder.layer.{i}", x, mask, (lengths, rows), bias)
    g.output("hidden", x)

    def feeds(model: Model, request: Request) -> dict[str, Any]:
        long = sparse and request.seq > (5 + 2 * drawn) * block
        return _feeds(model, request, block if long else 0, drawn if long else 0)

    return Model(
        g,
        vocab_size=c.vocab_size,
        max_positions=c.max_position_embeddings,
        token_types=c.type_vocab_size,
        hidden_size=c.hidden_size,
        heads=c.num_attention_heads,
        layer_masks=(LayerMask(),) * c.num_hidden_layers,
        feeds=feeds,
        pooler=pooler_of(weights, "pooler", c.hidden_size),
    )


def _layer(
    g: Graph,
    layers: BertLayers,
    name: str,
    x: Node,
    mask: Node,
    given: tuple[Node, Node],
    bias: bool,
) -> Node:
    at, (lengths, rows) = f"{name}.attention.self", given
    c = layers.config
    q = layers.heads(f"{at}.query", x, bias=bias)
    k, v = (
        g.split_heads(
            g.take_rows(
                layers.linear(f"{at}.{part}", x, c.hidden_size, c.hidden_size, bias=bias), rows
            ),
            heads=c.num_attention_heads,
        )
        for part in ("key", "value")
    )
    return layers.after(name, g.attention(q, k, v, mask, lengths, scale=layers.scale), x)


def _feeds(model: Model, request: Request, block: int, copies: int) -> dict[str, Any]:
    """Return key rows, lengths and masks; `block` is 0 where attention is full."""
    if request.global_tokens is not None:
        expected = "None: the first and the last block are global"
        raise ArgumentError(mismatch("global_tokens", request.global_tokens, expected))
    xp, seq = request.target.xp, request.seq
    before = copies * block
    row = np.concatenate([np.tile(np.arange(block), copies), np.arange(seq)])
    all_rows = row + np.arange(request.batch)[:, None] * seq
    feeds: dict[str, Any] = {"key_rows": xp.asarray(all_rows.astype(np.int32))}
    own: Any = _sparse(seq, block, copies) if block else None
    taken = _widened(request.mask, block, copies)
    if request.lengths is not None:
        feeds["key_lengths"] = request.lengths + np.int32(before)
    if request.lengths is not None and before:
        short = _short_sequences(request, row)
        taken = short if taken is None else taken if short is None else taken & short
    for i in range(len(model.layer_masks)):
        base = own
        if i in request.layer_masks:
            base = _widened(request.layer_masks[i], block, copies)
        both = base if taken is None else taken if base is None else base & taken
        feeds[f"mask.{i}"] = both
    return feeds


@lru_cache(maxsize=64)
def _sparse(seq: int, block: int, copies: int) -> BsrMask:
    """Return the blocks that are seen: the copies of the first block, then all tokens."""
    count = -(-seq // block)
    layout = np.zeros((count, copies + count), bool)
    own = layout[:, copies:]
    own[[0, -1]] = own[:, [0, -1]] = True
    inner = np.arange(1, count - 1)
    for step in (-1, 0, 1):
        own[inner, inner + step] = True
    layout[1:-1, :copies] = True
    keys = copies * block + seq
    return masks.blocks((seq, keys), *layout.nonzero(), block=block).tobsr()


def _widened(mask: Any, block: int, copies: int) -> Any:
    """Return a mask with the columns of the first block before it, as often as it is copied."""
    if mask is None or not copies:
        return mask
    dense = mask.toarray()
    wide = np.concatenate([*[dense[..., :block]] * copies, dense], axis=-1)
    shape: Any = (*(1,) * (4 - wide.ndim), *wide.shape)
    return masks.as_masks(wide, shape)


def _short_sequences(request: Request, row: np.ndarray[Any, Any]) -> Any:
    """Return which keys there are where a sequence ends in its first block, or None.

    Lengths alone would leave its copies whole.
    """
    given = request.lengths
    lengths = np.asarray(given if isinstance(given, np.ndarray) else given.get())
    if int(lengths.min()) > int(row[: len(row) - request.seq].max()):
        return None
    kept = row < lengths[:, None, None, None]
    whole = np.broadcast_to(kept, (request.batch, 1, request.seq, len(row)))
    return masks.as_masks(whole, (request.batch, request.heads, request.seq, len(row)))
