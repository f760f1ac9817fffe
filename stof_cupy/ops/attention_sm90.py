"""Attention on Hopper's own instructions: its configurations, and which can run a case."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from stof_cupy.jit import tensormap
from stof_cupy.jit.attention_kernels import PARTIAL_STATS, row_warps_for
from stof_cupy.jit.attention_sm90 import (
    SM90_CONFIGS,
    Sm90Config,
    attention_sm90,
    attention_sm90_combine,
    sm90_dim,
)
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.mask_kernels import MASK_BUILDS
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.device.built import BuiltMask
from stof_cupy.ops._arrays import Array, pointer
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case, Given
from stof_cupy.ops.attention_fields import Args
from stof_cupy.ops.attention_rowwise import stages

__all__ = ["Config", "configs", "given", "legal", "shapes", "whole"]

_STORED = 8  # elements: a TMA store writes whole pieces of 16 bytes, and what follows a row too
_LONG = 1 / 8  # of a CTA's work
_MOST_SPLITS = 64
_MOST_PARTIAL = 256 << 20  # bytes of partial results
_WAVES = (1, 2, 4)  # slices are tried that fill the GPU so many times
_SCATTERED, _GROUPS = 0.75, 0.6  # keys are packed if so much is not kept, in whole groups of 8
_BUILT = {tile for tile, accumulator in MASK_BUILDS if accumulator}


@dataclass(frozen=True)
class Config:
    """How.

    Attributes
    ----------
    shape : Sm90Config
        Tile, buffers and CTAs per SM; see there.
    long_slots : int
        So many query tiles of a head, longest first, come before those of all other heads.
    splits : int
        Into so many slices the lists of these are cut.
    """

    shape: Sm90Config
    long_slots: int = 0
    splits: int = 1

    kernel: ClassVar[str] = "sm90"

    @property
    def name(self) -> str:
        """What tells it from others for the same case, e.g. ``"d64_192x128_s2q2b1 / 1x4"``.

        After the slash, how many query tiles of a head are cut, and into how many slices.
        """
        return self.shape.name + (f" / {self.long_slots}x{self.splits}" if self.splits > 1 else "")

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the mask's tiles."""
        return self.shape.m, self.shape.n

    @property
    def packed(self) -> bool:
        """Whether the mask's tiles are made of groups of 8 keys."""
        return self.shape.packed

    def spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel for `problem`."""
        return attention_sm90(problem.dtype, self.shape)

    def combine_spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel that adds up slices."""
        how = problem.dtype, self.shape.dim_v, self.shape.m
        return attention_sm90_combine(*how, self.combine_warps(problem))

    def combine_warps(self, problem: Problem) -> int:
        """Return how many warps add up a row's slices."""
        return row_warps_for(self.cut(problem) * self.shape.m, self.splits)

    def slots(self, problem: Problem) -> int:
        """Return the query tiles of a head."""
        return -(-problem.seq_q // self.shape.m)

    def rows(self, problem: Problem) -> int:
        """Return what CTAs take one after another: query tiles of all heads, and slices."""
        per_head = self.slots(problem) + self.long_slots * (self.splits - 1)
        return per_head * problem.heads * problem.batch

    def cut(self, problem: Problem) -> int:
        """Return the query tiles of all heads that are cut into slices."""
        return self.long_slots * problem.heads * problem.batch if self.splits > 1 else 0

    def partial_floats(self, problem: Problem) -> int:
        """Return the size of all partial results."""
        row = self.shape.dim_v + PARTIAL_STATS
        return self.cut(problem) * self.splits * self.shape.m * row

    def resident(self, facts: DeviceFacts) -> int:
        """Return how many CTAs an SM runs at a time."""
        return self.shape.blocks


def given(args: Args) -> Given:
    """Return what of the arguments the kernel depends on beside the case's other parts."""
    arrays = (x for x in (args.q, args.k, args.v, args.out) if x is not None)
    boxes = all(_in_boxes(x, args.problem.dtype) for x in arrays)
    return Given(boxes, args.kv_lengths is not None, args.scores.scale < 0)


def _in_boxes(x: Array, dtype: str) -> bool:
    shape, strides = x.shape, x.strides  # CuPy makes a tuple each time
    if shape[-1] > 1 and strides[-1] != x.itemsize:  # it is copied
        return bool(shape[-1] % _STORED == 0)
    return _aligned(pointer(x) % 16, dtype, shape, strides)


@lru_cache(maxsize=4096)
def _aligned(start: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return tensormap.fault(16 + start, dtype, *tensormap.layout(shape, strides)) is None


def legal(config: Config, case: Case) -> str:
    """Say why the kernel cannot run a case; empty if it can."""
    p, shape, mask, terms = case.problem, config.shape, case.mask, stages(case.scores)
    if shape.fault() is not None:
        return str(shape.fault())
    if not config.spec(p).supports(case.facts.arch):
        return f"{case.facts.name} is sm_{case.facts.arch}: sm_90a alone"
    if p.empty:
        return "an empty axis"
    if p.dim_qk > shape.dim_qk or p.dim_v > shape.dim_v:
        return f"head dims {p.dim_qk} and {p.dim_v}: at most {shape.dim_qk} and {shape.dim_v}"
    if p.dim_v % _STORED:
        return f"value dim {p.dim_v}: a multiple of {_STORED}"
    if not case.given.boxes:
        return "q, k, v and out: starts and positive strides of multiples of 16 bytes, for TMA"
    if terms != shape.scores:
        return f"scores made by {terms}: the kernel has {shape.scores}"
    if not terms and case.given.negative:
        return "a negative scale"
    if max(p.seq_q, p.seq_k) > 2**31 - 256:
        return "more than 2^31 - 256 queries or keys"
    if config.rows(p) > 2**31 - 2**16:
        return f"{config.rows(p)} query tiles: at most 2^31 - 2^16"
    if isinstance(mask, BuiltMask) and config.tile not in _BUILT:
        return f"tiles of {config.tile}: no mask is built on the GPU for them"
    if config.packed and (mask is None or isinstance(mask, BuiltMask) or case.given.lengths):
        return "packed keys: without a mask that the CPU knows, or with kv_lengths"
    if config.long_slots > config.slots(p) or not 1 <= config.splits <= _MOST_SPLITS:
        return f"{config.long_slots} lists in {config.splits} slices: there are not so many"
    if config.partial_floats(p) * 4 > _MOST_PARTIAL:
        return f"{config.partial_floats(p)} partial results: more than {_MOST_PARTIAL} bytes"
    return ""


def shapes(case: Case) -> Iterator[Sm90Config]:
    """Yield tiles for a case: those that are compiled ahead, or what of them there is.

    For head dims of a pair that is not among them, those of the larger one. Where more than the
    scale makes scores, with the registers for it.

    Examples
    --------
    >>> from stof_cupy.jit.device import DeviceFacts
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> case = Case(Problem("float16", 1, 8, 8, 100, 100, 40, 40), None, h100)
    >>> [(shape.m, shape.n) for shape in shapes(case)]
    [(192, 128), (128, 128), (64, 64), (128, 64)]
    """
    p, terms = case.problem, stages(case.scores)
    dims = sm90_dim(p.dim_qk), sm90_dim(p.dim_v)
    found = [each for each in SM90_CONFIGS if (each.dim_qk, each.dim_v) == dims]
    if not found:
        larger = [each for each in SM90_CONFIGS if each.dim_qk == each.dim_v == max(dims)]
        found = [replace(each, dim_qk=dims[0], dim_v=dims[1]) for each in larger]
    if terms:
        found = [each.roomy(terms) for each in found]
    found = list(dict.fromkeys(found))
    yield from found
    for packed in dict.fromkeys(replace(each, packed=True, halves=False) for each in found):
        if packed.fault() is None and _scattered(packed, case):
            yield packed


def _scattered(shape: Sm90Config, case: Case) -> bool:
    """Whether so little of the tiles is kept that lists of packed keys are worth making."""
    mask = case.mask
    if mask is None or isinstance(mask, BuiltMask) or case.given.lengths:
        return False
    tiles = case.demand.tiles((shape.m, shape.n))
    if tiles.part * tiles.waste <= _SCATTERED:
        return False
    return bool(case.demand.source.group_share() < _GROUPS)


def configs(case: Case) -> Iterator[Config]:
    """Yield the legal configurations: every shape, and long lists in slices.

    Raises
    ------
    UnsupportedError
        If a head dim is beyond the kernel's.
    """
    for shape in shapes(case) if case.facts.arch == "90a" else ():
        if not legal(Config(shape), case):
            yield whole(shape, case)
            yield from _sliced(Config(shape), case)


def whole(shape: Sm90Config, case: Case) -> Config:
    """Return the configuration of a tile that cuts no list.

    Query tiles that are long beside all the work of a CTA come first: begun late, such a one would
    be worked on alone in the end. Of a mask that the GPU has built it is not known which these are.
    """
    lengths = case.demand.tiles((shape.m, shape.n), packed=shape.packed).lengths
    share = lengths.sum() * case.demand.places / (case.facts.sm_count * shape.blocks)
    even = isinstance(case.mask, BuiltMask) or lengths.max() == lengths.min()
    return Config(shape, 0 if even else int(np.count_nonzero(lengths > _LONG * share)))


def _sliced(config: Config, case: Case) -> Iterator[Config]:
    """Yield a config with long lists in slices, of a few sizes, where it is known which these are.

    All are cut into as many slices: those that are long differ little.
    """
    if isinstance(case.mask, BuiltMask):
        return
    lengths = case.demand.tiles(config.tile, packed=config.packed).lengths
    longest, total = float(lengths.max(initial=0)), float(lengths.sum()) * case.demand.places
    running = case.facts.sm_count * config.shape.blocks
    found: dict[Config, None] = {}
    for waves in _WAVES:
        size = max(math.ceil(total / (waves * running)), 2)
        splits = min(math.ceil(longest / size), _MOST_SPLITS)
        cut = int(np.count_nonzero(lengths > 1.5 * size))
        if splits > 1 and cut:
            found[replace(config, long_slots=cut, splits=splits)] = None
    yield from (each for each in found if not legal(each, case))
