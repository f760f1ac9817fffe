"""GPT-2 decoders: pre-LN, learned positions, causal; Radford et al., 2019."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy.models import LayerMask, Model
from stof_cupy.models.fields import Fields
from stof_cupy.models.layers import DECODER_DIMS, DecoderInputs, Layers

if TYPE_CHECKING:
    from stof_cupy.graph import Node
    from stof_cupy.models.weights import Weights

__all__ = ["PREFIX", "UNUSED", "Gpt2Config", "build"]

PREFIX = "transformer."

UNUSED = ("h.*.attn.bias", "h.*.attn.masked_bias", "score.*")
"""Causal masks that old checkpoints hold, and parts beside the language model."""

_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True)
class Gpt2Config:
    """The fields of ``config.json`` that shape the model."""

    hidden: int
    layers: int
    heads: int
    inner: int
    vocab: int
    positions: int
    eps: float
    approximate: str
    scaled: bool
    scaled_by_layer: bool
    tied: bool

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Gpt2Config:
        """Check `config` field by field; raise ConfigError at the first that is wrong."""
        f = Fields(config, "GPT-2")
        f.fixed("model_type", "gpt2")
        f.fixed("add_cross_attention", False)
        hidden, heads = f.size("n_embd"), f.size("n_head")
        if hidden % heads:
            raise f.error("n_embd", f"a multiple of config['n_head'] = {heads}")
        result = cls(
            hidden=hidden,
            layers=f.size("n_layer", least=0),
            heads=heads,
            inner=f.size("n_inner", 4 * hidden),
            vocab=f.size("vocab_size"),
            positions=f.size("n_positions", f.raw("n_ctx")),
            eps=f.number("layer_norm_epsilon", 1e-5),
            approximate=f.choice("activation_function", _GELU, "gelu_new"),
            scaled=f.flag("scale_attn_weights", True),
            scaled_by_layer=f.flag("scale_attn_by_inverse_layer_idx", False),
            tied=f.flag("tie_word_embeddings", True),
        )
        dropouts = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
        summary = ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")
        f.finish(*dropouts, *(f"summary_{n}" for n in summary), "n_ctx", "reorder_and_upcast_attn")
        return result


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of a GPT-2 language model.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    from stof_cupy.graph import Graph

    c = Gpt2Config.parse(config)
    g = Graph("gpt2", DECODER_DIMS)
    ids, given = DecoderInputs.declare(g)
    parts = _Parts(Layers(g, weights), c, given)
    table = parts.layers.constant("wte.weight", c.vocab, c.hidden)
    places = parts.layers.constant("wpe.weight", c.positions, c.hidden)
    x = g.add(g.embedding(ids, table), g.embedding(given.positions, places))
    for i in range(c.layers):
        x = parts.block(i, x)
    x = parts.layers.layer_norm("ln_f", x, c.hidden, c.eps)
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
    config: Gpt2Config
    given: DecoderInputs

    def affine(self, name: str, x: Node, rows: int, columns: int, part: int = 0) -> Node:
        """Multiply by part of a matrix stored (columns, parts * rows), parts side by side."""
        g, w = self.layers.graph, self.layers.weights
        parts = 3 if name.endswith("c_attn") else 1
        cut = np.s_[part * rows : (part + 1) * rows]
        matrix = w.take(f"{name}.weight", (columns, parts * rows))[:, cut].T
        bias = w.take(f"{name}.bias", (parts * rows,))[cut]
        suffix = f".{part}" if parts > 1 else ""
        y = g.gemm(x, g.constant(f"{name}.weight{suffix}", matrix))
        return g.add(y, g.constant(f"{name}.bias{suffix}", bias))

    def block(self, i: int, x: Node) -> Node:
        c, g, name = self.config, self.layers.graph, f"h.{i}"
        y = self.layers.layer_norm(f"{name}.ln_1", x, c.hidden, c.eps)
        q, k, v = (
            g.split_heads(
                self.affine(f"{name}.attn.c_attn", y, c.hidden, c.hidden, part), heads=c.heads
            )
            for part in range(3)
        )
        k, v = self.given.cached(i, k, v)
        scale = (c.hidden // c.heads) ** -0.5 if c.scaled else 1.0
        scale = scale / (i + 1) if c.scaled_by_layer else scale
        y = g.attention(q, k, v, self.given.mask(i), self.given.lengths, scale=scale)
        y = self.affine(f"{name}.attn.c_proj", g.merge_heads(y), c.hidden, c.hidden)
        x = g.add(y, x)
        y = self.layers.layer_norm(f"{name}.ln_2", x, c.hidden, c.eps)
        y = self.affine(f"{name}.mlp.c_fc", y, c.inner, c.hidden)
        y = g.gelu(y, approximate=c.approximate)
        return g.add(self.affine(f"{name}.mlp.c_proj", y, c.hidden, c.inner), x)
