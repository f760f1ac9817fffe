"""T5 encoder-decoders: RMSNorm, relative position bias, no scale; Raffel et al., arXiv 1910.10683.

Three graphs: the encoder, the bridge that makes keys and values of its states once, and the
decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy.models import LayerMask, Model
from stof_cupy.models.fields import Fields
from stof_cupy.models.layers import DECODER_DIMS, DecoderInputs, Layers

if TYPE_CHECKING:
    from stof_cupy.graph import Graph, Node
    from stof_cupy.models.weights import Weights

__all__ = ["FLOAT", "PREFIX", "UNUSED", "T5Config", "build"]

PREFIX = ""

UNUSED = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)
"""Copies of the shared table, and a table that old checkpoints hold and nobody reads."""

FLOAT = "bfloat16"
"""What feed-forward layers give goes beyond 200,000 in flan-t5-small."""

_FORWARD: dict[str, tuple[bool, str]] = {
    "relu": (False, "relu"),
    "gelu": (False, "gelu"),
    "gated-gelu": (True, "gelu_tanh"),
    "gated-silu": (True, "silu"),
    "gated-relu": (True, "relu"),
}
"""``feed_forward_proj`` -> whether it is gated, and by what."""

_ALONE = ["T5EncoderModel"]
"""``architectures`` of an encoder that was saved without its decoder."""

_NO_LIMIT = 1 << 20
"""Tokens of a text: positions are relative, so this only has to be some number."""


@dataclass(frozen=True)
class T5Config:
    """The fields of ``config.json`` that shape the model."""

    hidden: int
    heads: int
    head_dim: int
    inner: int
    layers: int
    decoder_layers: int
    vocab: int
    buckets: int
    max_distance: int
    eps: float
    gated: bool
    activation: str
    tied: bool
    scaled: bool
    start: int
    alone: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> T5Config:
        """Check `config` field by field; raise ConfigError at the first that is wrong."""
        f = Fields(config, "T5")
        f.fixed("model_type", "t5")
        f.fixed("is_decoder", False)
        layers = f.size("num_layers")
        gated, activation = f.choice("feed_forward_proj", _FORWARD, "relu")
        tied = f.flag("tie_word_embeddings", True)
        result = cls(
            hidden=f.size("d_model"),
            heads=f.size("num_heads"),
            head_dim=f.size("d_kv"),
            inner=f.size("d_ff"),
            layers=layers,
            decoder_layers=f.size("num_decoder_layers", layers),
            vocab=f.size("vocab_size"),
            buckets=f.size("relative_attention_num_buckets", 32, least=4),
            max_distance=f.size("relative_attention_max_distance", 128),
            eps=f.number("layer_norm_epsilon", 1e-6),
            gated=gated,
            activation=activation,
            tied=tied,
            scaled=f.flag("scale_decoder_outputs", tied),
            start=f.size("decoder_start_token_id", f.raw("pad_token_id", 0), least=0),
            # Saved before transformers 5, encoders alone still say that they have a decoder.
            alone=not f.flag("is_encoder_decoder", True) or f.raw("architectures") == _ALONE,
        )
        f.finish("dropout_rate", "initializer_factor", "n_positions", "dense_act_fn",
                 "is_gated_act")  # fmt: skip
        return result


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graphs of a T5 model, or of its encoder where that was saved alone.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    from stof_cupy.graph import Graph

    c = T5Config.parse(config)
    table = weights.take("shared.weight", (c.vocab, c.hidden))
    limits: dict[str, Any] = {
        "vocab_size": c.vocab,
        "max_positions": _NO_LIMIT,
        "token_types": 1,
        "hidden_size": c.hidden,
        "heads": c.heads,
    }
    encoder = Graph("t5 encoder", ("batch", "seq"))
    _encode(_Parts(Layers(encoder, weights), c), table)
    if c.alone:
        return Model(encoder, **limits, layer_masks=(LayerMask(),) * c.layers)
    bridge = Graph("t5 bridge", ("batch", "source"))
    _bridge(_Parts(Layers(bridge, weights), c))
    decoder = Graph("t5 decoder", (*DECODER_DIMS, "source"))
    _decode(_Parts(Layers(decoder, weights), c), table)
    layer_masks = (LayerMask(causal=True),) * c.decoder_layers
    return Model(
        encoder,
        **limits,
        kind="encoder-decoder",
        layer_masks=(LayerMask(),) * c.layers,
        bridge=bridge,
        decoder=Model(decoder, **limits, kind="decoder", layer_masks=layer_masks),
        start=c.start,
    )


def _encode(parts: _Parts, table: np.ndarray[Any, Any]) -> None:
    c, g = parts.config, parts.layers.graph
    x = g.embedding(g.input("ids", ("batch", "seq"), "int"), g.constant("shared.weight", table))
    lengths = g.input("lengths", ("batch",), "lengths")
    bias = parts.bias("encoder")
    for i in range(c.layers):
        name = f"encoder.block.{i}.layer"
        y = parts.norm(f"{name}.0.layer_norm", x)
        q, k, v = (parts.heads(f"{name}.0.SelfAttention.{part}", y) for part in "qkv")
        mask = g.input(f"mask.{i}", ("seq", "seq"), "mask")
        y = g.attention(q, k, v, mask, lengths, bias, scale=1.0, max_distance=c.max_distance)
        x = parts.out(f"{name}.0.SelfAttention.o", y, x)
        x = parts.forward(f"{name}.1", x)
    g.output("hidden", parts.norm("encoder.final_layer_norm", x))


def _bridge(parts: _Parts) -> None:
    """Keys and values of the encoder's states, for every layer of the decoder."""
    c, g = parts.config, parts.layers.graph
    x = g.input("hidden", ("batch", "source", c.hidden), "float")
    for i in range(c.decoder_layers):
        for part in "kv":
            y = parts.heads(f"decoder.block.{i}.layer.1.EncDecAttention.{part}", x)
            g.output(f"cross_{part}.{i}", y)


def _decode(parts: _Parts, table: np.ndarray[Any, Any]) -> None:
    c, g = parts.config, parts.layers.graph
    ids, given = DecoderInputs.declare(g)
    shared = g.constant("shared.weight", table)
    x = g.embedding(ids, shared)
    source = g.input("source_lengths", ("batch",), "lengths")
    query_at, bias = g.input("query_at", ("seq",), "int"), parts.bias("decoder")
    for i in range(c.decoder_layers):
        name = f"decoder.block.{i}.layer"
        y = parts.norm(f"{name}.0.layer_norm", x)
        q, k, v = (parts.heads(f"{name}.0.SelfAttention.{part}", y) for part in "qkv")
        k, v = given.cached(i, k, v)
        y = g.attention(
            q, k, v, given.mask(i), given.lengths, bias, query_at,
            scale=1.0, bidirectional=False, max_distance=c.max_distance,
        )  # fmt: skip
        x = parts.out(f"{name}.0.SelfAttention.o", y, x)
        y = parts.norm(f"{name}.1.layer_norm", x)
        q = parts.heads(f"{name}.1.EncDecAttention.q", y)
        shape = ("batch", c.heads, "source", c.head_dim)
        k, v = (g.input(f"cross_{part}.{i}", shape, "float") for part in "kv")
        y = g.attention(q, k, v, None, source, scale=1.0)
        x = parts.out(f"{name}.1.EncDecAttention.o", y, x)
        x = parts.forward(f"{name}.2", x)
    x = parts.norm("decoder.final_layer_norm", x)
    g.output("hidden", x)
    if c.scaled:  # where that is not said, as T5 was before 1.1: where it is tied
        x = g.mul(x, g.constant("head_scale", np.full(c.hidden, c.hidden**-0.5, np.float32)))
    g.output("logits", parts.layers.head(x, shared, c.vocab, tied=c.tied))


@dataclass(frozen=True)
class _Parts:
    layers: Layers
    config: T5Config

    @property
    def graph(self) -> Graph:
        return self.layers.graph

    def norm(self, name: str, x: Node) -> Node:
        return self.layers.rms_norm(name, x, self.config.hidden, self.config.eps)

    def bias(self, side: str) -> Node:
        """Return the table that all layers of one side share."""
        name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        return self.layers.constant(name, self.config.buckets, self.config.heads)

    def heads(self, name: str, x: Node) -> Node:
        c = self.config
        y = self.layers.linear(name, x, c.heads * c.head_dim, c.hidden, bias=False)
        return self.graph.split_heads(y, heads=c.heads)

    def out(self, name: str, y: Node, x: Node) -> Node:
        c = self.config
        y = self.graph.merge_heads(y)
        return self.graph.add(
            self.layers.linear(name, y, c.hidden, c.heads * c.head_dim, bias=False), x
        )

    def forward(self, name: str, x: Node) -> Node:
        c, g = self.config, self.graph
        y = self.norm(f"{name}.layer_norm", x)
        inner = ("wi_0", "wi_1") if c.gated else ("wi",)
        parts = [
            self.layers.linear(f"{name}.DenseReluDense.{part}", y, c.inner, c.hidden, bias=False)
            for part in inner
        ]
        if c.gated:
            y = g.gated(*parts, activation=c.activation)
        else:
            y = g.relu(*parts) if c.activation == "relu" else g.gelu(*parts)
        down = self.layers.linear(f"{name}.DenseReluDense.wo", y, c.hidden, c.inner, bias=False)
        return g.add(down, x)
