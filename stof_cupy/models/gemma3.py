"""Gemma 3 text decoders: windows in most layers, norms around each part; arXiv 2503.19786."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy.models import LayerMask, Model
from stof_cupy.models.fields import Fields
from stof_cupy.models.layers import DECODER_DIMS, DecoderInputs, Layers
from stof_cupy.models.rope import Rope, rope_of

if TYPE_CHECKING:
    from stof_cupy.graph import Node
    from stof_cupy.models.weights import Weights

__all__ = ["FLOAT", "PREFIX", "UNUSED", "Gemma3Config", "build"]

PREFIX = "model."

UNUSED = ("lm_head.weight",)

FLOAT = "bfloat16"
"""Hidden states of the smallest checkpoint go beyond 100,000."""

_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_WINDOW, _FULL = "sliding_attention", "full_attention"
_BASES = {_FULL: ("rope_theta", 1e6), _WINDOW: ("rope_local_base_freq", 1e4)}


@dataclass(frozen=True)
class Gemma3Config:
    """The fields of ``config.json`` that shape the model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    positions: int
    eps: float
    activation: str
    bias: bool
    tied: bool
    scale: float
    window: int
    softcap: float | None
    final_softcap: float | None
    kinds: tuple[str, ...]
    ropes: Mapping[str, Rope]

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Gemma3Config:
        """Check `config` field by field; raise ConfigError at the first that is wrong."""
        f = Fields(config, "Gemma 3 text")
        f.fixed("model_type", "gemma3_text")
        f.fixed("use_bidirectional_attention", False)
        heads = f.size("num_attention_heads")
        kv_heads = f.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise f.error("num_key_value_heads", f"a divisor of {heads}, the query heads")
        head_dim, positions = f.size("head_dim", 256), f.size("max_position_embeddings", 131072)
        result = cls(
            hidden=f.size("hidden_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            inner=f.size("intermediate_size"),
            vocab=f.size("vocab_size"),
            positions=positions,
            eps=f.number("rms_norm_eps", 1e-6),
            activation=f.choice("hidden_activation", _ACTIVATIONS, "gelu_pytorch_tanh"),
            bias=f.flag("attention_bias", False),
            tied=f.flag("tie_word_embeddings", True),
            scale=f.number("query_pre_attn_scalar", head_dim) ** -0.5,
            window=f.size("sliding_window", 4096),
            softcap=f.optional("attn_logit_softcapping"),
            final_softcap=f.optional("final_logit_softcapping"),
            kinds=_kinds(f),
            ropes=_ropes(f, head_dim, positions),
        )
        f.finish("attention_dropout", "hidden_act", "cache_implementation", "unk_token_id")
        return result


def _kinds(f: Fields) -> tuple[str, ...]:
    """Return the kind of each layer: listed, or every n-th one full."""
    count = f.size("num_hidden_layers", least=0)
    every = f.size("sliding_window_pattern", f.raw("_sliding_window_pattern", 6))
    listed = f.raw("layer_types")
    if listed is None:
        return tuple(_FULL if (i + 1) % every == 0 else _WINDOW for i in range(count))
    if not isinstance(listed, list) or len(listed) != count or {*listed} - {_FULL, _WINDOW}:
        raise f.error("layer_types", f"{count} of {_FULL!r} and {_WINDOW!r}")
    return tuple(listed)


def _ropes(f: Fields, head_dim: int, positions: int) -> dict[str, Rope]:
    """Return the rotary embedding of each kind; only full layers are ever scaled by old configs."""
    both = f.raw("rope_parameters", {})
    older = {_FULL: f.raw("rope_scaling", {})}
    ropes = {}
    for kind, (name, base) in _BASES.items():
        scaling = both.get(kind) if isinstance(both, Mapping) else None
        theta = f.number(name, base)
        ropes[kind] = rope_of(scaling or older.get(kind, {}), head_dim, positions, theta)
    return ropes


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of a Gemma 3 language model.

    Norm weights are those of Hugging Face, to which 1 is added.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    from stof_cupy.graph import Graph

    c = Gemma3Config.parse(config)
    g = Graph("gemma3", (*DECODER_DIMS, "near"))
    ids, given = DecoderInputs.declare(g)
    parts = _Parts(Layers(g, weights), c, given)
    table = parts.layers.constant("embed_tokens.weight", c.vocab, c.hidden)
    grown = g.constant("embed_scale", np.full(c.hidden, c.hidden**0.5, np.float32))
    x = g.mul(g.embedding(ids, table), grown)
    for i, kind in enumerate(c.kinds):
        x = parts.block(i, kind, x)
    x = parts.norm("norm", x)
    g.output("hidden", x)
    logits = parts.layers.head(x, table, c.vocab, tied=c.tied)
    if c.final_softcap is not None:
        cap = g.constant("final_softcap", np.full(c.vocab, c.final_softcap, np.float32))
        logits = g.softcap(logits, cap)
    g.output("logits", logits)
    near, far = LayerMask(causal=True, window=c.window - 1), LayerMask(causal=True)
    return Model(
        g,
        vocab_size=c.vocab,
        max_positions=c.positions,
        token_types=1,
        hidden_size=c.hidden,
        heads=c.heads,
        kind="decoder",
        layer_masks=tuple(far if kind == _FULL else near for kind in c.kinds),
    )


@dataclass(frozen=True)
class _Parts:
    layers: Layers
    config: Gemma3Config
    given: DecoderInputs

    def norm(self, name: str, x: Node) -> Node:
        return self.layers.rms_norm(name, x, self.config.hidden, self.config.eps, plus=1.0)

    def heads(self, name: str, x: Node, heads: int) -> Node:
        c = self.config
        y = self.layers.linear(name, x, heads * c.head_dim, c.hidden, bias=c.bias)
        return self.layers.graph.split_heads(y, heads=heads)

    def turned(self, name: str, x: Node, rope: Rope) -> Node:
        """Normalise each head, then give it its position."""
        y = self.layers.rms_norm(name, x, self.config.head_dim, self.config.eps, plus=1.0)
        return self.layers.graph.rotary(
            y, self.given.positions, frequency=rope.frequency, magnitude=rope.magnitude
        )

    def block(self, i: int, kind: str, x: Node) -> Node:
        c, g, name = self.config, self.layers.graph, f"layers.{i}"
        y = self.norm(f"{name}.input_layernorm", x)
        q, k, v = (
            self.heads(f"{name}.self_attn.{part}_proj", y, heads)
            for part, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads))
        )
        q, k = (
            self.turned(f"{name}.self_attn.{part}_norm", each, c.ropes[kind])
            for part, each in (("q", q), ("k", k))
        )
        near = kind == _WINDOW
        k, v = self.given.cached(i, k, v, near=near)
        mask, lengths = self.given.mask(i, near=near), self.given.lengths
        y = g.attention(q, k, v, mask, lengths, scale=c.scale, softcap=c.softcap)
        y = self.layers.linear(
            f"{name}.self_attn.o_proj",
            g.merge_heads(y),
            c.hidden,
            c.heads * c.head_dim,
            bias=c.bias,
        )
        x = g.add(self.norm(f"{name}.post_attention_layernorm", y), x)
        y = self.norm(f"{name}.pre_feedforward_layernorm", x)
        gate, up = (
            self.layers.linear(f"{name}.mlp.{part}_proj", y, c.inner, c.hidden, bias=False)
            for part in ("gate", "up")
        )
        y = g.gated(gate, up, activation=c.activation)
        y = self.layers.linear(f"{name}.mlp.down_proj", y, c.hidden, c.inner, bias=False)
        return g.add(self.norm(f"{name}.post_feedforward_layernorm", y), x)
