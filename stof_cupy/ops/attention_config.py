"""Block-wise attention on CUDA: the shape of a CTA, and how long lists are cut into slices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stof_cupy.jit import catalogue
from stof_cupy.jit.attention_kernels import (
    FEW_ROWS,
    KEYS,
    PARTIAL_STATS,
    PLAIN,
    SHAPES,
    ScoreKind,
    Shape,
    attention_combine,
    attention_sm80,
    row_warps_for,
)
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.device.built import BuiltMask
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case

__all__ = ["Config", "configs", "kind_for", "legal", "slices"]

_MASK_ROWS = 64  # of a tile of the smallest schedule that is built on the GPU
_MOST_MASK_ROWS = 256
_RESERVED = 1024  # bytes of shared memory that every CTA takes beside its own
_MOST_SLICES = 128
_MOST_PARTIAL = 256 << 20  # bytes of partial results
_FOLDED_SHARE = 16  # of the GPU's memory, one part may hold the sum of two terms
_ALL_REGISTERS = 256  # threads of an SM of which each can have as many as there are for one
_FEW_TERMS = 128  # head dims above leave registers for one term beside the products
_WAVES = (1, 2, 4)  # slices are tried that fill the GPU so many times
_SIZES = (2, 4, 8, 16, 32, 64, 128)  # key tiles of slices that are tried


@dataclass(frozen=True)
class Config:
    """How: the kernel's head-dim class and shape, and the slices of long lists.

    Attributes
    ----------
    head_dim : int
    shape : Shape
    scores : ScoreKind
    pack : int
        Query heads in one tile.
    mask_rows : int
        Rows of the mask's tiles.
    long_slots, splits, slice : int
        The first `long_slots` query tiles of a head, longest first, are cut into at most `splits`
        slices of about `slice` key tiles each.
    """

    head_dim: int
    shape: Shape
    scores: ScoreKind = PLAIN
    pack: int = 1
    mask_rows: int = _MASK_ROWS
    long_slots: int = 0
    splits: int = 1
    slice: int = 1

    kernel: ClassVar[str] = "blockwise"

    @property
    def name(self) -> str:
        """What tells it from others for the same case, e.g. ``"4x32s2q1b2 / 8"``."""
        packed = f" p{self.pack}" if self.pack > 1 else ""
        return f"{self.shape.name}{packed}" + (f" / {self.slice}" if self.long_slots else "")

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the mask's tiles."""
        return self.mask_rows, getattr(self.shape, "keys", KEYS)

    def spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel for `problem`."""
        packed = self.pack > 1
        return attention_sm80(problem.dtype, self.head_dim, self.shape, self.scores, packed)

    def combine_spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel that adds up slices."""
        how = problem.dtype, self.head_dim, self.shape, self.pack > 1
        return attention_combine(*how, self.combine_warps(problem))

    def combine_warps(self, problem: Problem) -> int:
        """Return how many warps add up a row's slices."""
        cut = self.long_slots * self.heads(problem)
        return row_warps_for(cut * self.shape.rows, self.splits)

    def slots(self, problem: Problem) -> int:
        """Return the query tiles of a head, or of heads packed together."""
        rows = problem.seq_q * self.pack
        if self.pack > 1:
            return -(-rows // self.shape.rows)
        return -(-rows // self.mask_rows) * (self.mask_rows // self.shape.rows)

    def heads(self, problem: Problem) -> int:
        """Return how many heads have query tiles of their own, over the batch."""
        return problem.batch * problem.heads // self.pack

    def items(self, problem: Problem) -> int:
        """Return the CTAs of a head."""
        return self.slots(problem) + self.long_slots * (self.splits - 1)

    def partial_floats(self, problem: Problem) -> int:
        """Return the size of all partial results."""
        row = self.head_dim + PARTIAL_STATS
        return self.long_slots * self.splits * self.heads(problem) * self.shape.rows * row

    def resident(self, facts: DeviceFacts) -> int:
        """Return how many CTAs an SM runs at a time."""
        smem = self.shape.smem_bytes(self.head_dim) + _RESERVED
        fit = min(facts.smem_per_sm // smem, facts.threads_per_sm // self.shape.threads)
        return max(1, min(self.shape.min_blocks, fit))

    def of_slots(self, rows: NDArray[Any], problem: Problem) -> NDArray[Any]:
        """Return for each slot that has rows what is given for each row of the mask's tiles."""
        slots = -(-problem.seq_q * self.pack // self.shape.rows)
        return rows.repeat(slots if self.pack > 1 else self.mask_rows // self.shape.rows)[:slots]


def slices(config: Config, lengths: NDArray[Any]) -> NDArray[Any]:
    """Return into how many slices lists of so many tiles are cut; ``slices_of`` in ``work.cuh``."""
    cut = np.minimum(-(-lengths // config.slice), config.splits)
    return np.where(lengths <= config.slice + config.slice // 2, 1, cut).astype(np.int64)


def _two_terms(kind: ScoreKind) -> bool:
    return kind.alibi and (kind.bias is not None or kind.distances)


def kind_for(case: Case) -> ScoreKind:
    """Return the scores that the kernel makes: of two terms it may need their sum as one."""
    kind, problem = case.scores, case.problem
    if _two_terms(kind) and max(problem.dim_qk, problem.dim_v) > _FEW_TERMS:
        return replace(kind, bias=kind.bias and "float32", alibi=False)
    return kind


def legal(config: Config, case: Case) -> str:
    """Say why the kernel cannot run a case; empty if it can."""
    p, facts, shape, packed = case.problem, case.facts, config.shape, config.pack > 1
    smem = shape.smem_bytes(config.head_dim)
    spec = config.spec(p)
    if max(p.dim_qk, p.dim_v) > config.head_dim:
        return f"head dims {p.dim_qk} and {p.dim_v}: at most {config.head_dim}"
    if smem > facts.smem_per_block_optin:
        return f"{smem} bytes of shared memory: {facts.name} has {facts.smem_per_block_optin}"
    if not spec.supports(facts.arch) or case.nvrtc < spec.nvrtc:
        return f"{shape.name} in head dim {config.head_dim}: more registers than there are"
    if config.scores != PLAIN and shape.warp_rows != 16:
        return f"{shape.name}: what modifies scores needs the registers of the other rows"
    if (packed or config.scores != PLAIN) and shape.threads * shape.min_blocks > _ALL_REGISTERS:
        return f"{shape.name}: packed heads and what modifies scores need more registers"
    kind = config.scores
    stages = kind.softcap + (kind.bias is not None) + kind.alibi + kind.distances
    if packed and stages > 1 and config.head_dim >= _FEW_TERMS:
        return f"{shape.name}: packed heads and {stages} modifications need more registers"
    if packed and not _packs(config, case):
        return f"{config.pack} heads in a tile: not of one mask, or of more than {_MASK_ROWS} rows"
    if not packed and config.mask_rows % shape.rows:
        return f"mask tiles of {config.mask_rows} rows: a multiple of {shape.rows}"
    if isinstance(case.mask, BuiltMask) and any(side % _MASK_ROWS for side in config.tile):
        return f"tiles of {config.tile}: multiples of 64 of a mask that was built on the GPU"
    if config.long_slots > config.slots(p) or config.splits > _MOST_SLICES:
        return f"{config.long_slots} lists in {config.splits} slices: there are not so many"
    if config.partial_floats(p) * 4 > _MOST_PARTIAL:
        return f"{config.partial_floats(p)} partial results: more than {_MOST_PARTIAL} bytes"
    if config.items(p) * config.heads(p) >= 2**31:
        return f"2^31 tiles of {shape.rows} queries"
    most = facts.memory_bytes // _FOLDED_SHARE
    if config.scores != case.scores and case.given.folded > most:
        return f"the sum of bias and ALiBi takes {case.given.folded} bytes: at most {most}"
    if max(p.seq_q, p.seq_k) > 2**31 - 128:
        return "more than 2^31 - 128 queries or keys"
    return ""


def _packs(config: Config, case: Case) -> bool:
    """Whether heads can lie in one tile: few queries, whose heads share keys and mask."""
    p = case.problem
    lead: tuple[int, ...] = getattr(case.mask, "lead", ())  # a BsrMask has none
    group = p.heads // p.kv_heads
    fits = p.seq_q <= config.mask_rows == _MASK_ROWS
    return fits and lead[-1:] in ((), (1,)) and group % config.pack == 0


def configs(case: Case) -> Iterator[Config]:
    """Yield the legal configurations: every shape, heads packed or not, and slices of many sizes.

    Raises
    ------
    UnsupportedError
        If the head dim is beyond the kernels'.
    """
    p = case.problem
    head_dim = catalogue.head_dim_class(max(p.dim_qk, p.dim_v))
    kind = kind_for(case)
    for pack in dict.fromkeys((1, max(p.heads // p.kv_heads, 1))):
        shapes = (*SHAPES[head_dim], FEW_ROWS[head_dim])
        if pack > 1 or kind != PLAIN:
            shapes = tuple(_roomy(shape) for shape in shapes)
        for shape in dict.fromkeys(shapes):
            rows = math.lcm(shape.rows, _MASK_ROWS)
            if pack > 1:
                rows = _MASK_ROWS
            elif case.mask is None or rows > _MOST_MASK_ROWS:
                rows = shape.rows
            config = Config(head_dim, shape, kind, pack, rows)
            if legal(config, case):
                continue
            yield config
            yield from (each for each in _cut(config, case) if not legal(each, case))


def _roomy(shape: Shape) -> Shape:
    """Return a shape whose threads may have all registers: packed heads and terms need them."""
    return replace(shape, min_blocks=min(shape.min_blocks, max(_ALL_REGISTERS // shape.threads, 1)))


def _cut(config: Config, case: Case) -> Iterator[Config]:
    """Yield a config with long lists in slices, for each size that cuts any."""
    p = case.problem
    tiles = case.demand.tiles(config.tile)
    most = config.of_slots(tiles.most, p)
    longest = int(most.max(initial=0))
    total = float(config.of_slots(tiles.lengths, p).sum()) * config.heads(p)
    running = case.facts.sm_count * config.resident(case.facts)
    shares = (math.ceil(total / (waves * running)) for waves in _WAVES)
    for size in sorted({*_SIZES, *shares}):
        if size < _SIZES[0] or longest <= size + size // 2 or longest > size * _MOST_SLICES:
            continue
        splits = -(-longest // size)
        long_slots = int(np.count_nonzero(most > size + size // 2))
        yield replace(config, long_slots=long_slots, splits=splits, slice=size)
