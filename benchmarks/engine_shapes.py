"""Shapes of layer stacks, and the cells that are timed; engine_stacks.py has the rest."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

EPS = 1e-5
THETA = 500_000.0
FAR = 128  # tokens, beyond which all relative biases are one
MASKS = ("full", "sliding", "longformer", "bigbird")
"""Of a decoder, what of them is not in the future; its "full" is causal.

T5 has them in its encoder and its decoder; between the two everyone sees everyone.
"""


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
    buckets : int
        Of T5's relative bias. Such a stack is an encoder and a decoder with cross-attention, of
        `layers` each: RMSNorm, unscaled scores, ReLU, no biases of products.
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
    buckets: int = 0

    @property
    def plain(self) -> bool:
        """Whether norms are RMSNorm, and products have no bias."""
        return self.rotary or self.buckets > 0

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def qkv(self) -> int:
        """Columns of the projection to queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def layer_sizes(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Return the shapes of the matrices of each layer."""
        up = self.inner * (2 if self.rotary else 1)
        own = {
            "qkv": (self.qkv, self.hidden),
            "out": (self.hidden, self.hidden),
            "up": (up, self.hidden),
            "down": (self.hidden, self.inner),
        }
        if not self.buckets:
            return {str(i): own for i in range(self.layers)}
        between = {"cross_q": 1, "cross_kv": 2, "cross_out": 1}
        more = {part: (n * self.hidden, self.hidden) for part, n in between.items()}
        return {
            f"{side}.{i}": own | (more if side == "decoder" else {})
            for side in ("encoder", "decoder")
            for i in range(self.layers)
        }

    def gemm_flop(self, tokens: int) -> float:
        """Operations of the products."""
        every = self.layer_sizes().values()
        return 2.0 * tokens * sum(rows * columns for own in every for rows, columns in own.values())


STACKS = {
    each.name: each
    for each in (
        Stack("bert-base", 12, 768, 12, 12, 3072, post=True),
        Stack("bert-large", 24, 1024, 16, 16, 4096, post=True),
        Stack("gpt2", 12, 768, 12, 12, 3072, causal=True, gelu="tanh"),
        Stack("llama-1b", 16, 2048, 32, 8, 8192, causal=True, rotary=True),
        Stack("vit-b", 12, 768, 12, 12, 3072),
        Stack("t5", 12, 768, 12, 12, 3072, buckets=32),
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


def frequencies(stack: Stack) -> Any:
    """Return the radians a position of each pair of a head, float32."""
    half = stack.head_dim // 2
    return (THETA ** (-np.arange(half) / half)).astype(np.float32)
