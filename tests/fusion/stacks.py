"""Small stacks for the tests of schemes and of the search."""

from __future__ import annotations

import numpy as np

from stof_cupy.graph import Graph, Node

HEADS, DIM, WIDE = 2, 4, 24
WIDTH = HEADS * DIM


def constant(g: Graph, name: str, *shape: int) -> Node:
    values = np.random.default_rng(len(name) * 97 + sum(name.encode())).standard_normal(shape)
    return g.constant(name, (values / 3).astype(np.float32))


def paper_layer(g: Graph, x: Node, name: str, mask: Node | None = None) -> Node:
    """The 15 operators of the paper's BERT layer (section 4.3): one product to Q, K and V."""
    qkv = g.gemm(x, constant(g, f"{name}.qkv", 3 * WIDTH, WIDTH))
    qkv = g.add(qkv, constant(g, f"{name}.qkv.b", 3 * WIDTH))
    q, k, v = (
        g.split_heads(g.columns(qkv, start=i * WIDTH, stop=(i + 1) * WIDTH), heads=HEADS)
        for i in range(3)
    )
    scores = g.scale(g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2))), factor=0.5)
    weights = g.softmax(g.masked(scores, mask))
    context = g.merge_heads(g.matmul(weights, v))
    y = g.add(g.gemm(context, constant(g, f"{name}.o", WIDTH, WIDTH)), x)
    x = norm(g, y, f"{name}.1")
    h = g.gemm(x, constant(g, f"{name}.up", WIDE, WIDTH), constant(g, f"{name}.up.b", WIDE))
    y = g.gemm(g.gelu(h), constant(g, f"{name}.down", WIDTH, WIDE))
    return norm(g, g.add(y, x), f"{name}.2")


def norm(g: Graph, x: Node, name: str) -> Node:
    return g.layer_norm(
        x, constant(g, f"{name}.g", WIDTH), constant(g, f"{name}.s", WIDTH), eps=1e-5
    )


def paper_stack(layers: int) -> Graph:
    g = Graph("paper")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    mask = g.input("mask", ("seq", "seq"), "mask")
    for i in range(layers):
        x = paper_layer(g, x, f"l{i}", mask)
    g.output("y", x)
    return g
