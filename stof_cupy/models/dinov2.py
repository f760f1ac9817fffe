"""DINOv2 image encoders: ViT with a scale on each branch; Oquab et al., arXiv 2304.07193."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy.models import Model
from stof_cupy.models.fields import Fields
from stof_cupy.models.vit import VitConfig, VitLayers, assemble

if TYPE_CHECKING:
    from stof_cupy.graph import Node
    from stof_cupy.models.weights import Weights

__all__ = ["PREFIX", "UNUSED", "build"]

PREFIX = "dinov2."

UNUSED = ("embeddings.mask_token", "classifier.*")
"""Weights of training and of parts after the hidden states."""


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of DINOv2's last hidden states, after the last norm.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    f = Fields(config, "DINOv2")
    f.fixed("model_type", "dinov2")
    c = VitConfig.read(f, 1e-6, 14)
    inner = c.hidden * f.size("mlp_ratio", 4)
    gated = f.flag("use_swiglu_ffn", False)
    backbone = ("out_features", "out_indices", "_out_features", "_out_indices", "stage_names")
    training = ("drop_path_rate", "layerscale_value", "use_mask_token")
    f.finish(*backbone, *training, "apply_layernorm", "reshape_hidden_states")

    def scaled(parts: VitLayers, name: str, x: Node) -> Node:
        return parts.layers.graph.mul(x, parts.layers.constant(f"{name}.lambda1", c.hidden))

    def block(parts: VitLayers, name: str, x: Node, mask: Node) -> Node:
        g = parts.layers.graph
        y = parts.attention(name, parts.norm(f"{name}.norm1", x), mask)
        x = g.add(scaled(parts, f"{name}.layer_scale1", y), x)
        y = parts.norm(f"{name}.norm2", x)
        if gated:
            y = _swiglu(parts, f"{name}.mlp", y, (inner * 2 // 3 + 7) // 8 * 8)
        else:
            y = parts.layers.linear(f"{name}.mlp.fc1", y, inner, c.hidden)
            y = g.gelu(y, approximate=c.approximate)
            y = parts.layers.linear(f"{name}.mlp.fc2", y, c.hidden, inner)
        return g.add(scaled(parts, f"{name}.layer_scale2", y), x)

    return assemble("dinov2", c, weights, block)


def _swiglu(parts: VitLayers, name: str, x: Node, inner: int) -> Node:
    """Return a gated linear unit whose two products are stored as one matrix."""
    g, w, hidden = parts.layers.graph, parts.layers.weights, parts.config.hidden
    matrix = w.take(f"{name}.weights_in.weight", (2 * inner, hidden))
    bias = w.take(f"{name}.weights_in.bias", (2 * inner,))
    gate, up = (
        g.add(
            g.gemm(x, g.constant(f"{name}.weights_in.weight.{half}", matrix[cut])),
            g.constant(f"{name}.weights_in.bias.{half}", bias[cut]),
        )
        for half, cut in ((0, np.s_[:inner]), (1, np.s_[inner:]))
    )
    return parts.layers.linear(f"{name}.weights_out", g.gated(gate, up), hidden, inner)
