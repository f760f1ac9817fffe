"""Layer stacks as a user of `Graph` would write them, of plain operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from engine_shapes import EPS, FAR, Stack, frequencies

from stof_cupy import Graph
from stof_cupy.graph import Node


def graph(stack: Stack, arrays: dict[str, Any]) -> Graph:
    """Return the stack as a user would write it, of plain operators; `inputs` are its inputs.

    The decoder of T5 is given the hidden states that its encoder is given.
    """
    g = Graph(stack.name)
    x = g.input("x", ("batch", "seq", stack.hidden), "float")
    mask = g.input("mask", ("seq", "seq"), "mask")
    given = _Layer(g, stack, arrays, mask)
    if stack.rotary:
        given = replace(given, positions=g.input("positions", ("batch", "seq"), "int"))
    if stack.buckets:
        g.output("y", _encoder_decoder(given, x))
        return g
    for i in range(stack.layers):
        x = given.post(str(i), x) if stack.post else given.pre(str(i), x)
    g.output("y", x)
    return g


def _encoder_decoder(given: _Layer, x: Node) -> Node:
    g, y = given.g, x
    encoder = given.biased("encoder")
    for i in range(given.stack.layers):
        x = encoder.pre(f"encoder.{i}", x)
    x = given.norm("encoder_norm", x)
    decoder_mask = g.input("decoder_mask", ("seq", "seq"), "mask")
    decoder = replace(given.biased("decoder"), mask=decoder_mask, source=x)
    for i in range(given.stack.layers):
        y = decoder.pre(f"decoder.{i}", y)
    return given.norm("decoder_norm", y)


@dataclass(frozen=True)
class _Layer:
    g: Graph
    stack: Stack
    arrays: dict[str, Any]
    mask: Node
    positions: Node | None = None
    bias: Node | None = None
    source: Node | None = None
    side: str = ""

    def biased(self, side: str) -> _Layer:
        return replace(self, bias=self.constant(f"{side}_bias"), side=side)

    def pre(self, name: str, x: Node) -> Node:
        x = self.g.add(self.attention(name, self.norm(f"{name}.norm1", x)), x)
        if self.source is not None:
            x = self.g.add(self.cross(name, self.norm(f"{name}.norm3", x), self.source), x)
        return self.g.add(self.mlp(name, self.norm(f"{name}.norm2", x)), x)

    def post(self, name: str, x: Node) -> Node:
        x = self.norm(f"{name}.norm1", self.g.add(self.attention(name, x), x))
        return self.norm(f"{name}.norm2", self.g.add(self.mlp(name, x), x))

    def constant(self, name: str, part: slice = slice(None)) -> Node:
        if part == slice(None):
            return self.g.constant(name, self.arrays[name])
        return self.g.constant(f"{name}[{part.start}:{part.stop}]", self.arrays[name][part])

    def linear(self, name: str, x: Node, part: slice = slice(None)) -> Node:
        y = self.g.gemm(x, self.constant(f"{name}.weight", part))
        if f"{name}.bias" not in self.arrays:
            return y
        return self.g.add(y, self.constant(f"{name}.bias", part))

    def norm(self, name: str, x: Node) -> Node:
        weight = self.constant(f"{name}.weight")
        if self.stack.plain:
            return self.g.rms_norm(x, weight, eps=EPS)
        return self.g.layer_norm(x, weight, self.constant(f"{name}.bias"), eps=EPS)

    def heads(self, name: str, x: Node, counts: tuple[int, ...]) -> list[Node]:
        """Return parts of a product with so many heads each."""
        stops = np.cumsum([count * self.stack.head_dim for count in counts]).tolist()
        return [
            self.g.split_heads(self.linear(name, x, slice(start, stop)), heads=count)
            for start, stop, count in zip([0, *stops], stops, counts, strict=False)
        ]

    def attention(self, name: str, x: Node) -> Node:
        s, g = self.stack, self.g
        q, k, v = self.heads(f"{name}.qkv", x, (s.heads, s.kv_heads, s.kv_heads))
        if self.positions is not None:
            q, k = (g.rotary(each, self.positions, frequency=frequencies(s)) for each in (q, k))
        how: dict[str, Any] = {"scale": s.head_dim**-0.5}
        if self.bias is not None:
            how = {"scale": 1.0, "bidirectional": self.side == "encoder", "max_distance": FAR}
        y = g.attention(q, k, v, self.mask, None, self.bias, **how)
        return self.linear(f"{name}.out", g.merge_heads(y))

    def cross(self, name: str, x: Node, source: Node) -> Node:
        count = self.stack.heads
        (q,) = self.heads(f"{name}.cross_q", x, (count,))
        k, v = self.heads(f"{name}.cross_kv", source, (count, count))
        y = self.g.attention(q, k, v, scale=1.0)
        return self.linear(f"{name}.cross_out", self.g.merge_heads(y))

    def mlp(self, name: str, x: Node) -> Node:
        s, g = self.stack, self.g
        if not s.rotary:
            y = self.linear(f"{name}.up", x)
            y = g.relu(y) if s.buckets else g.gelu(y, approximate=s.gelu)
            return self.linear(f"{name}.down", y)
        halves = slice(0, s.inner), slice(s.inner, 2 * s.inner)
        gate, up = (self.linear(f"{name}.up", x, half) for half in halves)
        return self.linear(f"{name}.down", g.gated(gate, up, activation="silu"))
