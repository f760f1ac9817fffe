"""The cells that selection is judged on: masks, lengths, batches and head dims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from stof_cupy import masks
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case

MASKS = (
    *("full", "causal", "sliding", "causal-sliding", "longformer", "bigbird", "document"),
    *("block10", "random0.1", "random1", "random10"),
)
"""Those of the peers' anchors, and random elements of so many per cent."""

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 8, 16)
HEADS = {64: 12, 128: 16}
"""Heads by head dim."""

MOST_TOKENS = 131_072
"""Of a batch."""

BLOCK = 64


@dataclass(frozen=True, order=True)
class Cell:
    """A point of the grid."""

    mask: str
    seq: int
    batch: int
    dim: int

    @property
    def name(self) -> str:
        return f"{self.mask}-{self.seq}-{self.batch}-{self.dim}"

    @classmethod
    def of(cls, name: str) -> Cell:
        mask, *numbers = name.rsplit("-", 3)
        return cls(mask, *map(int, numbers))

    @property
    def problem(self) -> Problem:
        heads = HEADS[self.dim]
        sizes = (self.batch, heads, heads, self.seq, self.seq, self.dim, self.dim)
        return Problem("float16", *sizes)

    def case(self, mask: Any, facts: DeviceFacts) -> Case:
        return Case(self.problem, mask, facts)


def groups() -> list[tuple[Cell, ...]]:
    """Return all cells, those of one mask together; shuffled, so that any part is a sample."""
    every = [
        tuple(
            Cell(mask, seq, batch, dim)
            for batch, dim in product(BATCHES, HEADS)
            if batch * seq <= MOST_TOKENS
        )
        for mask, seq in product(MASKS, LENGTHS)
    ]
    np.random.default_rng(0).shuffle(every)  # type: ignore[arg-type]
    return every


def cells() -> Iterator[Cell]:
    """Yield every cell once."""
    for group in groups():
        yield from group


def make_mask(name: str, s: int) -> Any:
    """Return a mask on the CPU; None for "full"."""
    window, tokens = (256, 64) if s >= 1024 else (64, 16)
    draw, blocks = np.random.default_rng(0), -(-s // BLOCK)
    scattered = draw.random((blocks, blocks)) < 3 / blocks
    documents = np.sort(draw.integers(0, max(2, s // 512), s))
    tenth = (draw.random((blocks, blocks)) < 0.1) | np.eye(blocks, dtype=bool)
    if name.startswith("random"):
        return random_elements(s, float(name.removeprefix("random")) / 100)
    make: dict[str, Callable[[], Any]] = {
        "full": lambda: None,
        "causal": lambda: masks.causal(s),
        "sliding": lambda: masks.sliding_window(s, window=window),
        "causal-sliding": lambda: masks.sliding_window(s, window=window, causal=True),
        "longformer": lambda: masks.longformer(s, window=window, global_tokens=tokens),
        "bigbird": lambda: (
            masks.bigbird(s, random_blocks=0) | masks.blocks((s, s), *scattered.nonzero())
        ),
        "document": lambda: masks.document_ids(documents, causal=True),
        "block10": lambda: masks.blocks((s, s), *tenth.nonzero()),
    }
    pattern = make[name]()
    return None if pattern is None else pattern.tobsr()


def random_elements(s: int, density: float) -> masks.BsrMask:
    """Return a mask of independent elements, from two random bytes each."""
    draw, below = np.random.default_rng(0), round(density * 2**16)
    dense = np.empty((s, s), bool)
    for row in range(0, s, 1024):
        part = dense[row : row + 1024]
        np.less(np.frombuffer(draw.bytes(2 * part.size), np.uint16).reshape(part.shape), below,
                out=part)  # fmt: skip
    return masks.BsrMask(dense)
