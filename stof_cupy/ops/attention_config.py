"""How attention runs on CUDA: the shape of a CTA, and how long lists are cut into slices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit import catalogue
from stof_cupy.jit.attention_kernels import (
    FEW_ROWS,
    KEYS,
    PLAIN,
    SHAPES,
    ScoreKind,
    Shape,
    attention_combine,
    attention_sm80,
)
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.schedule import Schedule
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops.attention_args import Problem

__all__ = ["Config", "choose", "cut", "legal"]

_MASK_ROWS = 64  # of a tile of the smallest schedule that is built on the GPU
_RESERVED = 1024  # bytes of shared memory that every CTA takes beside its own
_SLICE = 8  # key tiles; shorter slices cost more in adding up than they save
_MOST_SLICES = 128


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

    def spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel for `problem`."""
        packed = self.pack > 1
        return attention_sm80(problem.dtype, self.head_dim, self.shape, self.scores, packed)

    def combine_spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel that adds up slices."""
        return attention_combine(problem.dtype, self.head_dim, self.shape, self.pack > 1)

    def slots(self, problem: Problem) -> int:
        """Return the query tiles of a head, or of heads packed together."""
        rows = problem.seq_q * self.pack
        if self.pack > 1:
            return -(-rows // self.shape.rows)
        return -(-rows // self.mask_rows) * (self.mask_rows // self.shape.rows)

    def heads(self, problem: Problem) -> int:
        """Return how many heads have query tiles of their own, over the batch."""
        return problem.batch * problem.heads // self.pack


def legal(shape: Shape, head_dim: int, facts: DeviceFacts, packed: bool = False) -> bool:
    """Whether a CTA of `shape` has the shared memory that it needs on a GPU."""
    return shape.smem_bytes(head_dim) <= facts.smem_per_block_optin


def choose(
    problem: Problem,
    scores: ScoreKind,
    mask: AnyMask | None,
    facts: DeviceFacts,
    old_compiler: bool = False,
) -> Config:
    """Return the config for a problem on a GPU; depends on nothing that only the GPU knows.

    Parameters
    ----------
    problem, scores, mask, facts
        What is to be computed, and where.
    old_compiler : bool
        NVRTC before 12.8 spills registers where a warp has 32 rows of head dim 128; for sm_100
        and newer all do.

    Raises
    ------
    UnsupportedError
        If the head dim is beyond the kernels', or the problem beyond their indices.
    """
    if mask is None:
        return _unmasked(problem, scores, facts, old_compiler)
    return _chosen(problem, scores, mask, facts, old_compiler)


@lru_cache(maxsize=1024)
def _unmasked(
    problem: Problem, scores: ScoreKind, facts: DeviceFacts, old_compiler: bool
) -> Config:
    return _chosen(problem, scores, None, facts, old_compiler)


def _chosen(
    problem: Problem,
    scores: ScoreKind,
    mask: AnyMask | None,
    facts: DeviceFacts,
    old_compiler: bool,
) -> Config:
    head_dim = catalogue.head_dim_class(max(problem.dim_qk, problem.dim_v))
    group = problem.heads // problem.kv_heads
    pack = 1
    if group > 1 and problem.seq_q <= _MASK_ROWS and _shared_by_heads(mask, problem):
        pack = group
    rows = problem.seq_q * pack
    shapes = [shape for shape in SHAPES[head_dim] if legal(shape, head_dim, facts, packed=pack > 1)]
    # What modifies scores needs the registers of the other rows.
    tight = old_compiler or facts.compute_capability >= (10, 0)
    if scores != PLAIN or (tight and head_dim == 128):
        shapes = [shape for shape in shapes if shape.warp_rows == 16]
    shape = shapes[0]
    if rows <= 16:
        shape = FEW_ROWS[head_dim]
    elif rows <= _MASK_ROWS or not _enough(problem, shape, pack, facts):
        small = [each for each in shapes if each.rows == _MASK_ROWS]
        # More warps a tile where even these leave SMs without one.
        shape = small[0] if _enough(problem, small[0], pack, facts) else small[-1]
    mask_rows = _MASK_ROWS if pack > 1 else max(shape.rows, _MASK_ROWS)
    if mask is None and pack == 1:
        mask_rows = shape.rows
    config = Config(head_dim, shape, scores, pack, mask_rows)
    config = cut(config, problem, mask, facts)
    _check(config, problem)
    return config


def _shared_by_heads(mask: AnyMask | None, problem: Problem) -> bool:
    """Whether one mask serves all heads."""
    lead: tuple[int, ...] = getattr(mask, "lead", ())  # a BsrMask has none
    return lead[-1:] in ((), (1,))


def _resident(shape: Shape, head_dim: int, packed: bool, facts: DeviceFacts) -> int:
    """Return how many CTAs the GPU runs at a time."""
    fit = facts.smem_per_sm // (shape.smem_bytes(head_dim) + _RESERVED)
    return facts.sm_count * max(1, min(shape.min_blocks, fit))


def _enough(problem: Problem, shape: Shape, pack: int, facts: DeviceFacts) -> bool:
    """Whether tiles of this many rows give every SM something to do."""
    tiles = -(-problem.seq_q * pack // shape.rows) * problem.batch * problem.heads // pack
    return tiles >= 2 * facts.sm_count


def cut(config: Config, problem: Problem, mask: AnyMask | None, facts: DeviceFacts) -> Config:
    """Return the config with long lists in slices, where they would leave the GPU idle."""
    slots, heads = config.slots(problem), config.heads(problem)
    ctas = slots * heads
    if not ctas:
        return config
    resident = _resident(config.shape, config.head_dim, config.pack > 1, facts)
    schedule = None
    if mask is not None:
        schedule = mask.schedule((config.mask_rows, KEYS), layout="accumulator")
        if not isinstance(schedule, Schedule) and ctas >= resident:
            return config  # of lists that were built on the GPU, nothing is known
    if isinstance(schedule, Schedule):
        each = config.mask_rows // config.shape.rows if config.pack == 1 else slots
        lengths = schedule.lengths.repeat(each)
        tiles = schedule.stats.visited * slots * heads
        total = tiles // (schedule.mask_of.size * len(schedule.lengths))
    else:
        lengths = np.full(slots, -(-problem.seq_k // KEYS))
        total = int(lengths.sum()) * heads
    # Few CTAs: slices fill the GPU once. Many: none takes much longer than its share.
    share = -(-total // (resident if ctas < resident else 4 * resident))
    size = max(_SLICE, share)
    long_slots = int(np.count_nonzero(lengths > size + size // 2))
    if not long_slots:
        return config
    splits = min(_MOST_SLICES, -(-int(lengths.max()) // size))
    return Config(
        *(config.head_dim, config.shape, config.scores, config.pack, config.mask_rows),
        *(long_slots, splits, size),
    )


def _check(config: Config, problem: Problem) -> None:
    items = config.slots(problem) + config.long_slots * (config.splits - 1)
    if items * config.heads(problem) >= 2**31:
        size = (problem.batch, problem.heads, problem.seq_q)
        expected = f"fewer than 2^31 tiles of {config.shape.rows} queries"
        raise UnsupportedError(mismatch("(batch, heads, seq_q)", size, expected))
    if max(problem.seq_q, problem.seq_k) > 2**31 - 128:
        sizes = (problem.seq_q, problem.seq_k)
        raise UnsupportedError(mismatch("(seq_q, seq_k)", sizes, "each at most 2^31 - 128"))
