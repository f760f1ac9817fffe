"""Layer stacks that bench_engine.py runs: their shapes, weights, masks, and ours as a graph.

No embedding and no head: hidden states go in and come out. Weights are random and the same for all
who run them.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from shapes import BLOCK

from stof_cupy import Graph, masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.graph import Node

EPS = 1e-5
THETA = 500_000.0
MASKS = ("full", "sliding", "longformer", "bigbird")
"""Of a decoder, what of them is not in the future; its "full" is causal."""


@dataclass(frozen=True)
class Stack:
    """The shape of a stack.

    Attributes
    ----------
    post : bool
        Whether norms follow the residual, as in BERT.
    causal : bool
    rotary : bool
        LLaMA's: RMSNorm, turned queries and keys, a gated MLP, no biases.
    gelu : {"none", "tanh"}
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    post: bool = False
    causal: bool = False
    rotary: bool = False
    gelu: str = "none"

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def qkv(self) -> int:
        """Columns of the projection to queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def gemm_flop(self, tokens: int) -> float:
        """Operations of the products."""
        up = self.inner * (2 if self.rotary else 1)
        each = self.qkv + self.hidden + up + self.inner
        return 2.0 * tokens * self.layers * self.hidden * each


STACKS = {
    each.name: each
    for each in (
        Stack("bert-base", 12, 768, 12, 12, 3072, post=True),
        Stack("bert-large", 24, 1024, 16, 16, 4096, post=True),
        Stack("gpt2", 12, 768, 12, 12, 3072, causal=True, gelu="tanh"),
        Stack("llama-1b", 16, 2048, 32, 8, 8192, causal=True, rotary=True),
        Stack("vit-b", 12, 768, 12, 12, 3072),
    )
}
SIZES = ((1, 128), (8, 512), (16, 2048))


@dataclass(frozen=True)
class Cell:
    """A stack, a batch and a mask; as text ``"bert-base:8x512:longformer"``."""

    stack: Stack
    batch: int
    seq: int
    mask: str

    def __str__(self) -> str:
        return f"{self.stack.name}:{self.batch}x{self.seq}:{self.mask}"

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Read the form above."""
        stack, size, mask = text.split(":")
        batch, seq = map(int, size.split("x"))
        if mask not in MASKS:
            raise ValueError(f"mask {mask!r}: one of {MASKS}")
        return cls(STACKS[stack], batch, seq, mask)


GRID = [
    Cell(stack, *size, mask)
    for stack, size, mask in itertools.product(STACKS.values(), SIZES, MASKS)
]
ANCHORS = [
    Cell.parse(text)
    for text in (
        *("bert-base:8x512:longformer", "bert-base:16x2048:bigbird", "bert-base:1x128:full"),
        *("gpt2:16x2048:full", "llama-1b:1x8192:sliding"),
    )
]
"""The cells whose times of peers are in the reference."""


# ---------------------------------------------------------------- weights


_BLOCK = 2**22 + 77  # numbers that are drawn
Rule = Callable[[Any, Any], Any]


def weights(stack: Stack, dtype: str = "bfloat16") -> dict[str, Any]:
    """Return all weights by name, matrices ``(rows, columns)``, activations keeping their size."""
    block = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)

    @cache
    def scaled(mean: float, deviation: float) -> Any:
        return np.resize((mean + deviation * block).astype(as_dtype(dtype)), 2 * _BLOCK)

    def drawn(name: str, shape: tuple[int, ...], mean: float, deviation: float) -> Any:
        # A billion draws take a minute: windows of one block do as well.
        first = zlib.crc32(name.encode()) % _BLOCK
        return np.resize(scaled(mean, deviation)[first : first + _BLOCK], shape)

    shapes: dict[str, tuple[tuple[int, ...], float, float]] = {}
    for i in range(stack.layers):
        up = stack.inner * (2 if stack.rotary else 1)
        sizes = {
            "qkv": (stack.qkv, stack.hidden),
            "out": (stack.hidden, stack.hidden),
            "up": (up, stack.hidden),
            "down": (stack.hidden, stack.inner),
        }
        for part, (rows, columns) in sizes.items():
            shapes[f"{i}.{part}.weight"] = (rows, columns), 0.0, columns**-0.5
            if not stack.rotary:
                shapes[f"{i}.{part}.bias"] = (rows,), 0.0, 0.1
        for norm in ("norm1", "norm2"):
            shapes[f"{i}.{norm}.weight"] = (stack.hidden,), 1.0, 0.1
            if not stack.rotary:
                shapes[f"{i}.{norm}.bias"] = (stack.hidden,), 0.0, 0.1
    return {name: drawn(name, *each) for name, each in shapes.items()}


def hidden_states(cell: Cell, dtype: str = "bfloat16") -> Any:
    """Return the inputs (batch, seq, hidden)."""
    block = np.random.default_rng(1).standard_normal(2**20 + 33, np.float32)
    return np.resize(block.astype(as_dtype(dtype)), (cell.batch, cell.seq, cell.stack.hidden))


def frequencies(stack: Stack) -> Any:
    """Return the radians a position of each pair of a head, float32."""
    half = stack.head_dim // 2
    return (THETA ** (-np.arange(half) / half)).astype(np.float32)


# ---------------------------------------------------------------- masks


def reach(seq: int) -> tuple[int, int]:
    """Return the window and the global tokens of the reference's masks."""
    return (256, 64) if seq >= 1024 else (64, 16)


def scattered(seq: int) -> Any:
    """Return BigBird's random blocks, bool, as the reference draws them."""
    blocks = -(-seq // BLOCK)
    return np.random.default_rng(0).random((blocks, blocks)) < min(1.0, 3.0 / blocks)


def rule(cell: Cell, blocks: Any) -> Rule | None:
    """Return who sees whom, of positions, for arrays of any library; None: everyone everyone.

    `blocks` is `scattered` as such an array.
    """
    window, tokens = reach(cell.seq)
    rules: dict[str, Rule] = {
        "sliding": lambda q, k: abs(q - k) <= window,
        "longformer": lambda q, k: (abs(q - k) <= window) | (q < tokens) | (k < tokens),
        "bigbird": lambda q, k: (
            (abs(q // BLOCK - k // BLOCK) <= 1)
            | (q < 2 * BLOCK)
            | (k < 2 * BLOCK)
            | blocks[q // BLOCK, k // BLOCK]
        ),
    }
    found = rules.get(cell.mask)
    if not cell.stack.causal:
        return found
    return lambda q, k: (q >= k) if found is None else (q >= k) & found(q, k)


def pattern(cell: Cell) -> Any:
    """Return the mask as ours, lowered; None: everyone sees everyone."""
    (window, tokens), s = reach(cell.seq), cell.seq
    made: Any = {
        "full": lambda: None,
        "sliding": lambda: masks.sliding_window(s, window=window),
        "longformer": lambda: masks.longformer(s, window=window, global_tokens=tokens),
        "bigbird": lambda: (
            masks.bigbird(s, random_blocks=0) | masks.blocks((s, s), *scattered(s).nonzero())
        ),
    }[cell.mask]()
    if cell.stack.causal:
        made = masks.causal(s) if made is None else made & masks.causal(s)
    return None if made is None else made.tobsr()


def dense(cell: Cell) -> Any:
    """Return the mask as a bool array (seq, seq) by its rule, or None."""
    found = rule(cell, scattered(cell.seq))
    at = np.arange(cell.seq)
    return None if found is None else found(at[:, None], at[None, :])


# ---------------------------------------------------------------- ours


def graph(stack: Stack, arrays: dict[str, Any]) -> Graph:
    """Return the stack as a user would write it, of plain operators: inputs ``x``, ``mask``."""
    g = Graph(stack.name)
    x = g.input("x", ("batch", "seq", stack.hidden), "float")
    mask = g.input("mask", ("seq", "seq"), "mask")
    given = _Layer(g, stack, arrays, mask)
    if stack.rotary:
        given = replace(given, positions=g.input("positions", ("batch", "seq"), "int"))
    for i in range(stack.layers):
        x = given.post(i, x) if stack.post else given.pre(i, x)
    g.output("y", x)
    return g


@dataclass(frozen=True)
class _Layer:
    g: Graph
    stack: Stack
    arrays: dict[str, Any]
    mask: Node
    positions: Node | None = None

    def pre(self, i: int, x: Node) -> Node:
        x = self.g.add(self.attention(i, self.norm(f"{i}.norm1", x)), x)
        return self.g.add(self.mlp(i, self.norm(f"{i}.norm2", x)), x)

    def post(self, i: int, x: Node) -> Node:
        x = self.norm(f"{i}.norm1", self.g.add(self.attention(i, x), x))
        return self.norm(f"{i}.norm2", self.g.add(self.mlp(i, x), x))

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
        if self.stack.rotary:
            return self.g.rms_norm(x, weight, eps=EPS)
        return self.g.layer_norm(x, weight, self.constant(f"{name}.bias"), eps=EPS)

    def attention(self, i: int, x: Node) -> Node:
        s, g = self.stack, self.g
        counts = (s.heads, s.kv_heads, s.kv_heads)
        stops = np.cumsum([count * s.head_dim for count in counts]).tolist()
        q, k, v = (
            g.split_heads(self.linear(f"{i}.qkv", x, slice(start, stop)), heads=count)
            for start, stop, count in zip([0, *stops], stops, counts, strict=False)
        )
        if self.positions is not None:
            q, k = (g.rotary(each, self.positions, frequency=frequencies(s)) for each in (q, k))
        y = g.attention(q, k, v, self.mask, scale=s.head_dim**-0.5)
        return self.linear(f"{i}.out", g.merge_heads(y))

    def mlp(self, i: int, x: Node) -> Node:
        s, g = self.stack, self.g
        if not s.rotary:
            return self.linear(f"{i}.down", g.gelu(self.linear(f"{i}.up", x), approximate=s.gelu))
        halves = slice(0, s.inner), slice(s.inner, 2 * s.inner)
        gate, up = (self.linear(f"{i}.up", x, half) for half in halves)
        return self.linear(f"{i}.down", g.gated(gate, up, activation="silu"))
