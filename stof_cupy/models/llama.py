"""LLaMA decoders: RMSNorm, rotary positions, grouped heads, gated MLP; arXiv 2302.13971."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stof_cupy.models import LayerMask, Model
from stof_cupy.models.fields import Fields
from stof_cupy.models.layers import DECODER_DIMS, DecoderInputs, Layers
from stof_cupy.models.rope import Rope, read_rope

if TYPE_CHECKING:
    from stof_cupy.graph import Node
    from stof_cupy.models.weights import Weights

__all__ = ["PREFIX", "UNUSED", "LlamaConfig", "build"]

PREFIX = "model."

UNUSED = ("layers.*.self_attn.rotary_emb.inv_freq", "score.*")
"""Frequencies that old checkpoints hold, and parts beside the language model."""

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of ``config.json`` that shape the model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    positions: int
    eps: float
    activation: str
    attention_bias: bool
    mlp_bias: bool
    tied: bool
    rope: Rope
    interleaved: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Check `config` field by field; raise ConfigError at the first that is wrong."""
        f = Fields(config, "LLaMA")
        f.fixed("model_type", "llama")
        hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
        kv_heads = f.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise f.error("num_key_value_heads", f"a divisor of {heads}, the query heads")
        if f.raw("head_dim") is None and hidden % heads:
            raise f.error("hidden_size", f"a multiple of num_attention_heads = {heads}")
        head_dim = f.size("head_dim", hidden // heads)
        positions = f.size("max_position_embeddings", 2048)
        result = cls(
            hidden=hidden,
            layers=f.size("num_hidden_layers", least=0),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            inner=f.size("intermediate_size"),
            vocab=f.size("vocab_size"),
            positions=positions,
            eps=f.number("rms_norm_eps", 1e-6),
            activation=f.choice("hidden_act", _ACTIVATIONS, "silu"),
            attention_bias=f.flag("attention_bias", False),
            mlp_bias=f.flag("mlp_bias", False),
            tied=f.flag("tie_word_embeddings", False),
            rope=read_rope(f, head_dim, positions),
            interleaved=f.flag("rope_interleaved", False),
        )
        f.finish("attention_dropout", "pretraining_tp", "is_llama_config", "unk_token_id")
        return result


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of a LLaMA language model.

    Rows of query and key weights are in Hugging Face's order, which turns halves of a head; with
    ``rope_interleaved`` in the config in the order of the paper, which turns neighbours.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    from stof_cupy.graph import Graph

    c = LlamaConfig.parse(config)
    g = Graph("llama", DECODER_DIMS)
    ids, given = DecoderInputs.declare(g)
    parts = _Parts(Layers(g, weights), c, given)
    table = parts.layers.constant("embed_tokens.weight", c.vocab, c.hidden)
    x = g.embedding(ids, table)
    for i in range(c.layers):
        x = parts.block(i, x)
    x = parts.norm("norm", x)
    g.output("hidden", x)
    g.output("logits", parts.layers.head(x, table, c.vocab, tied=c.tied))
    return Model(
        g,
        vocab_size=c.vocab,
        max_positions=c.positions,
        token_types=1,
        hidden_size=c.hidden,
        heads=c.heads,
        kind="decoder",
        layer_masks=(LayerMask(causal=True),) * c.layers,
    )


@dataclass(frozen=True)
class _Parts:
    layers: Layers
    config: LlamaConfig
    given: DecoderInputs

    def norm(self, name: str, x: Node) -> Node:
        return self.layers.rms_norm(name, x, self.config.hidden, self.config.eps)

    def heads(self, name: str, x: Node, heads: int, *, turned: bool) -> Node:
        c, g = self.config, self.layers.graph
        y = self.layers.linear(name, x, heads * c.head_dim, c.hidden, bias=c.attention_bias)
        y = g.split_heads(y, heads=heads)
        if not turned:
            return y
        return g.rotary(
            y,
            self.given.positions,
            frequency=c.rope.frequency,
            interleaved=c.interleaved,
            magnitude=c.rope.magnitude,
        )

    def block(self, i: int, x: Node) -> Node:
        c, g, name = self.config, self.layers.graph, f"layers.{i}"
        y = self.norm(f"{name}.input_layernorm", x)
        q = self.heads(f"{name}.self_attn.q_proj", y, c.heads, turned=True)
        k = self.heads(f"{name}.self_attn.k_proj", y, c.kv_heads, turned=True)
        v = self.heads(f"{name}.self_attn.v_proj", y, c.kv_heads, turned=False)
        k, v = self.given.cached(i, k, v)
        y = g.attention(q, k, v, self.given.mask(i), self.given.lengths, scale=c.head_dim**-0.5)
        width = c.heads * c.head_dim
        y = g.merge_heads(y)
        y = self.layers.linear(
            f"{name}.self_attn.o_proj", y, c.hidden, width, bias=c.attention_bias
        )
        x = g.add(y, x)
        y = self.norm(f"{name}.post_attention_layernorm", x)
        gate, up = (
            self.layers.linear(f"{name}.mlp.{part}_proj", y, c.inner, c.hidden, bias=c.mlp_bias)
            for part in ("gate", "up")
        )
        y = g.gated(gate, up, activation=c.activation)
        down = self.layers.linear(f"{name}.mlp.down_proj", y, c.hidden, c.inner, bias=c.mlp_bias)
        return g.add(down, x)
