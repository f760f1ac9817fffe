"""ViT image encoders: patches as tokens, pre-LN; Dosovitskiy et al., arXiv 2010.11929."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stof_cupy.models import LayerMask, Model
from stof_cupy.models.fields import Fields
from stof_cupy.models.images import Vision
from stof_cupy.models.layers import Layers
from stof_cupy.models.pooling import pooler_of

if TYPE_CHECKING:
    from stof_cupy.graph import Node
    from stof_cupy.models.weights import Weights

__all__ = ["PREFIX", "UNUSED", "VitConfig", "VitLayers", "assemble", "build"]

PREFIX = "vit."

UNUSED = ("embeddings.mask_token", "pooler.*", "classifier.*", "decoder.*")
"""Weights of training and of parts after the hidden states."""

_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True)
class VitConfig:
    """The fields of ``config.json`` that ViT and DINOv2 have in common."""

    hidden: int
    layers: int
    heads: int
    eps: float
    approximate: str
    patch: int
    channels: int
    size: tuple[int, int]
    bias: bool

    @classmethod
    def read(cls, f: Fields, eps: float, patch: int) -> VitConfig:
        """Read them; `eps` and `patch` are what holds where the config does not say."""
        hidden, heads = f.size("hidden_size", 768), f.size("num_attention_heads", 12)
        if hidden % heads:
            raise f.error("hidden_size", f"a multiple of num_attention_heads = {heads}")
        patch = f.size("patch_size", patch)
        size = f.raw("image_size", 224)
        sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        if len(sides) != 2 or not all(type(n) is int and n >= patch for n in sides):
            raise f.error("image_size", f"one or two integers of at least {patch}")
        return cls(
            hidden=hidden,
            layers=f.size("num_hidden_layers", 12, least=0),
            heads=heads,
            eps=f.number("layer_norm_eps", eps),
            approximate=f.choice("hidden_act", _GELU, "gelu"),
            patch=patch,
            channels=f.size("num_channels", 3),
            size=(sides[0], sides[1]),
            bias=f.flag("qkv_bias", True),
        )


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of a ViT's last hidden states, after the last norm.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    f = Fields(config, "ViT")
    f.fixed("model_type", "vit")
    c, inner = VitConfig.read(f, 1e-12, 16), f.size("intermediate_size", 3072)
    f.finish("encoder_stride", "pooler_output_size", "pooler_act")

    def block(parts: VitLayers, name: str, x: Node, mask: Node) -> Node:
        y = parts.norm(f"{name}.layernorm_before", x)
        g = parts.layers.graph
        x = g.add(parts.attention(name, y, mask), x)
        y = parts.norm(f"{name}.layernorm_after", x)
        y = parts.layers.linear(f"{name}.intermediate.dense", y, inner, c.hidden)
        y = g.gelu(y, approximate=c.approximate)
        return g.add(parts.layers.linear(f"{name}.output.dense", y, c.hidden, inner), x)

    return assemble("vit", c, weights, block)


Block = Callable[["VitLayers", str, "Node", "Node"], "Node"]
"""``(layers, name, x, mask) -> x``: one layer of an encoder."""


def assemble(name: str, c: VitConfig, weights: Weights, block: Block) -> Model:
    """Return a model of patches, layers by `block`, and a last norm."""
    from stof_cupy.graph import Graph

    g = Graph(name, ("batch", "seq"))
    parts = VitLayers(Layers(g, weights), c)
    values = c.channels * c.patch**2
    shape = (c.hidden, c.channels, c.patch, c.patch)
    kernel = weights.take("embeddings.patch_embeddings.projection.weight", shape)
    table = g.constant("embeddings.patches", kernel.reshape(c.hidden, values))
    x = g.gemm(g.input("patches", ("batch", "seq", values), "float"), table)
    x = g.add(x, g.input("places", ("seq", c.hidden), "float"))
    for i in range(c.layers):
        mask = g.input(f"mask.{i}", ("seq", "seq"), "mask")
        x = block(parts, f"encoder.layer.{i}", x, mask)
    g.output("hidden", parts.norm("layernorm", x))
    return Model(
        g,
        vocab_size=0,
        max_positions=0,
        token_types=0,
        hidden_size=c.hidden,
        heads=c.heads,
        kind="image encoder",
        layer_masks=(LayerMask(),) * c.layers,
        vision=_vision(c, weights),
        pooler=pooler_of(weights, "pooler.dense", c.hidden),
    )


def _vision(c: VitConfig, weights: Weights) -> Vision:
    count = (c.size[0] // c.patch) * (c.size[1] // c.patch)
    class_row = weights.take("embeddings.cls_token", (1, 1, c.hidden))[0, 0]
    table = weights.take("embeddings.position_embeddings", (1, count + 1, c.hidden))[0]
    bias = weights.take("embeddings.patch_embeddings.projection.bias", (c.hidden,))
    return Vision(c.patch, c.channels, c.size, class_row + table[0], table[1:], bias)


@dataclass(frozen=True)
class VitLayers:
    """The parts of a layer that ViT and DINOv2 have in common."""

    layers: Layers
    config: VitConfig

    def norm(self, name: str, x: Node) -> Node:
        """LayerNorm."""
        return self.layers.layer_norm(name, x, self.config.hidden, self.config.eps)

    def attention(self, name: str, x: Node, mask: Node) -> Node:
        """Self-attention with its output projection."""
        c, g = self.config, self.layers.graph
        q, k, v = (
            g.split_heads(
                self.layers.linear(
                    f"{name}.attention.attention.{part}", x, c.hidden, c.hidden, bias=c.bias
                ),
                heads=c.heads,
            )
            for part in ("query", "key", "value")
        )
        y = g.merge_heads(g.attention(q, k, v, mask, scale=(c.hidden // c.heads) ** -0.5))
        return self.layers.linear(f"{name}.attention.output.dense", y, c.hidden, c.hidden)
