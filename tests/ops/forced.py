"""One attention kernel after another, whatever `attention` would choose: for tests and fuzzing.

`forced` is the only place that knows where the choice is made. Everything else here says which
instances there are, and which arguments each of them takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from stof_cupy.jit import catalogue
from stof_cupy.jit.attention_kernels import (
    COMBINE_WARPS,
    FEW_ROWS,
    PLAIN,
    SHAPES,
    ScoreKind,
    Shape,
    attention_combine,
    attention_sm80,
)
from stof_cupy.jit.attention_rowwise import ROWWISE_HEAD_DIMS, attention_rowwise
from stof_cupy.jit.attention_sm90 import (
    SM90_CONFIGS,
    Sm90Config,
    attention_sm90,
    attention_sm90_combine,
)
from stof_cupy.jit.mask_kernels import MASK_BUILDS
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops import attention_config, attention_cuda
from stof_cupy.ops import attention_rowwise as rowwise
from stof_cupy.ops import attention_sm90 as sm90
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_candidates import legal
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_fields import Args, kind_of
from stof_cupy.ops.attention_model import choose
from stof_cupy.testing import rng
from tests.ops.gpus import H100

DTYPES = ("float16", "bfloat16")
_RUN = attention_cuda.run


class RefusalError(Exception):
    """A kernel does not take these arguments; nothing has run."""


@dataclass(frozen=True)
class Block:
    """An instance of the sm_80 kernel."""

    dtype: str
    head_dim: int
    shape: Shape
    kind: ScoreKind = PLAIN
    packed: bool = False

    @property
    def name(self) -> str:
        return self.specs()[0].name

    def specs(self) -> list[KernelSpec]:
        how = self.dtype, self.head_dim, self.shape
        combine = [attention_combine(*how, self.packed, warps) for warps in (1, COMBINE_WARPS)]
        return [attention_sm80(*how, self.kind, self.packed), *combine]

    def refusal(self, args: Args) -> str:
        problem = args.problem
        if kind_of(args.scores) != self.kind:
            return "other scores"
        if max(problem.dim_qk, problem.dim_v) > self.head_dim:
            return "head dims"
        if self.packed:
            if problem.heads == problem.kv_heads or problem.seq_q > 64:
                return "nothing to pack"
            if getattr(args.mask, "lead", ())[-1:] not in ((), (1,)):
                return "a mask for each head"
        return ""

    def config(self, g: np.random.Generator, args: Args) -> attention_config.Config:
        """Return one with any slices."""
        rows = self.shape.rows
        mask_rows = math.lcm(64, rows)
        if not self.packed:
            more = [mask_rows] * 4 + [128] * (128 % mask_rows == 0)
            mask_rows = rows if args.mask is None else int(g.choice(more))
        pack = args.problem.heads // args.problem.kv_heads if self.packed else 1
        how = (self.head_dim, self.shape, self.kind, pack, 64 if self.packed else mask_rows)
        config = attention_config.Config(*how)
        slots, tiles = config.slots(args.problem), -(-args.problem.seq_k // 64)
        if slots and g.random() < 0.5:
            splits = int(g.choice([2, 3, 5, 8, 9, 20, 40]))
            size = int(g.integers(1, max(2, tiles // 2)))
            config = attention_config.Config(*how, int(g.integers(1, slots + 1)), splits, size)
        return config

    def launch(self, g: np.random.Generator, args: Args) -> Any:
        return _RUN(args, True, candidate=self.config(g, args))


@dataclass(frozen=True)
class Row:
    """An instance of the row-wise kernel."""

    dtype: str
    head_dim: int
    pairs: int
    lists: Any
    stages: tuple[str, ...] = ()
    wide: bool = True

    @property
    def name(self) -> str:
        return self.specs()[0].name

    def specs(self) -> list[KernelSpec]:
        source = {"keys": "KeyLists", "tiles": "TileLists"}[self.lists]
        how = self.dtype, self.head_dim, self.pairs, source, self.stages
        return [attention_rowwise(*how, wide=self.wide)]

    def refusal(self, args: Args) -> str:
        if rowwise.stages(kind_of(args.scores)) != self.stages:
            return "other scores"
        if not args.out.size:
            return "nothing to do"
        config = self.config(rng(0), args)
        if reason := legal(config, Case(args.problem, args.mask, H100, config.scores)):
            return reason
        every, _used = attention_cuda.launches(config, attention_cuda.completed(args, False))
        return "" if every[0].spec == self.specs()[0] else "other alignment"

    def config(self, g: np.random.Generator, args: Args) -> rowwise.Config:
        """Return one with any number of rows a block."""
        rows = int(g.choice(rowwise.BLOCK_ROWS))
        return rowwise.Config(self.head_dim, self.pairs, self.lists, rows, kind_of(args.scores))

    def launch(self, g: np.random.Generator, args: Args) -> Any:
        return _RUN(args, True, candidate=self.config(g, args))


@dataclass(frozen=True)
class Hopper:
    """An instance of the sm_90a kernel."""

    dtype: str
    shape: Sm90Config

    @property
    def head_dim(self) -> int:
        return max(self.shape.dim_qk, self.shape.dim_v)

    @property
    def stages(self) -> tuple[str, ...]:
        return self.shape.scores

    @property
    def name(self) -> str:
        return self.specs()[0].name

    def specs(self) -> list[KernelSpec]:
        kernel = attention_sm90(self.dtype, self.shape)
        how = self.dtype, self.shape.dim_v, self.shape.m
        return [kernel, *(attention_sm90_combine(*how, warps) for warps in (1, COMBINE_WARPS))]

    def refusal(self, args: Args) -> str:
        case = Case(args.problem, args.mask, H100, kind_of(args.scores), given=sm90.given(args))
        return legal(sm90.Config(self.shape), case)

    def config(self, g: np.random.Generator, args: Args) -> sm90.Config:
        """Return one with any slices."""
        slots = sm90.Config(self.shape).slots(args.problem)
        long_slots, splits = int(g.integers(slots + 1)), int(g.choice([1, 1, 2, 3, 7, 9]))
        return sm90.Config(self.shape, long_slots, splits)

    def launch(self, g: np.random.Generator, args: Args) -> Any:
        return _RUN(args, True, candidate=self.config(g, args))


Instance = Block | Row | Hopper


@contextmanager
def forced(run: Callable[[Args, Callable[[], Any]], Any]) -> Iterator[None]:
    """Let ``run(args, chosen)`` stand in for the launch of attention; ``chosen()`` is what it was.

    Of NumPy arrays too, whose computation ``chosen()`` is then.
    """
    from stof_cupy.ops import cpu_attention

    on_cpu = cpu_attention.attention

    def gpu(args: Args, *rest: Any, **how: Any) -> Any:
        return run(args, partial(_RUN, args, *rest, **how))

    def cpu(q: Any, k: Any, v: Any, mask: Any, scores: Any, **rest: Any) -> Any:
        sizes = (q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])
        problem = Problem(q.dtype.name, *sizes)
        args = Args(problem, q, k, v, rest["out"], None, mask, scores, rest["kv_lengths"])
        return run(args, partial(on_cpu, q, k, v, mask, scores, **rest))

    with (
        mock.patch.object(attention_cuda, "run", gpu),
        mock.patch.object(cpu_attention, "attention", cpu),
    ):
        yield


def chosen_specs(args: Args) -> list[KernelSpec]:
    """Return the kernels that `attention` itself launches."""
    candidate = choose(*attention_cuda._case(args))
    every, _used = attention_cuda.launches(candidate, attention_cuda.completed(args, True))
    return [each.spec for each in every]


KINDS = {
    "softcap": ScoreKind(softcap=True),
    "bias16": ScoreKind(bias="float16"),
    "biasbf16": ScoreKind(bias="bfloat16"),
    "bias32": ScoreKind(bias="float32"),
    "alibi": ScoreKind(alibi=True),
    "distances": ScoreKind(distances=True),
    "three": ScoreKind(softcap=True, bias="float32", alibi=True),
}
STAGES = {
    "softcap": ("Softcap",),
    "bias16": ("Additive<stof::f16>",),
    "biasbf16": ("Additive<stof::bf16>",),
    "bias32": ("Additive<float>",),
    "alibi": ("Alibi",),
    "distances": ("Relative",),
    "three": ("Softcap", "Alibi", "Additive<float>"),
}


def instances(most: int = 200) -> list[Instance]:
    """Return what is fuzzed: of `most` kernels at most, some of every kind."""
    families: list[list[Instance]] = [[*_block()], [*_row()], [*_hopper()]]
    spread = sorted(
        (i / len(each), n, i) for n, each in enumerate(families) for i in range(len(each))
    )
    chosen: list[Instance] = []
    used: set[KernelSpec] = set()
    beside = len(MASK_BUILDS) + 2  # what builds masks
    for _, n, i in spread:
        instance = families[n][i]
        more = used | set(instance.specs())
        if len(more) + beside <= most:
            chosen.append(instance)
            used = more
    return chosen


def kernels(chosen: list[Instance]) -> list[KernelSpec]:
    """Return the kernels of instances, each once."""
    return list(dict.fromkeys(spec for each in chosen for spec in each.specs()))


def roomy(dim: int) -> Shape:
    """Return a shape with the registers that packed heads and score modifications need."""
    narrow = (shape for shape in SHAPES[dim] if shape.warp_rows == 16)
    return next(shape for shape in narrow if shape.threads * shape.min_blocks <= 256)


def _block() -> Iterator[Block]:
    for i, dim in enumerate(catalogue.HEAD_DIM_CLASSES):
        usual = dict.fromkeys((SHAPES[dim][0], SHAPES[dim][-1], FEW_ROWS[dim]))
        yield from (Block("float16", dim, shape) for shape in (*SHAPES[dim], FEW_ROWS[dim]))
        yield from (Block("bfloat16", dim, shape) for shape in usual)
        for shape in (roomy(dim), FEW_ROWS[dim]):
            yield Block(DTYPES[i % 2], dim, shape, packed=True)
        for j, (name, kind) in enumerate(KINDS.items()):
            usual = dim in (64, 128) or (i + j) % 2  # of other head dims, every second kind
            if usual and (dim <= 128 or name != "three"):
                yield Block(DTYPES[(i + j // 2) % 2], dim, roomy(dim), kind)
    for name in ("bias16", "alibi", "three"):
        yield Block("float16", 64, FEW_ROWS[64], KINDS[name])
        yield Block("bfloat16", 64, FEW_ROWS[64], KINDS[name], packed=True)


def _row() -> Iterator[Row]:
    number = 0
    for dim in ROWWISE_HEAD_DIMS:
        for pairs, wide in ((1, True), (1, False), (2, True), (2, False)):
            if pairs == 1 or dim <= 128:
                yield from (Row(dtype, dim, pairs, "keys", wide=wide) for dtype in DTYPES)
                if pairs == 1 or wide:
                    yield Row(DTYPES[number % 2], dim, pairs, "tiles", wide=wide)
                number += 1
    for i, stages in enumerate(STAGES.values()):
        yield Row(DTYPES[i % 2], 64, 1, ("keys", "tiles")[i // 2 % 2], stages)


def _hopper() -> Iterator[Hopper]:
    for i, config in enumerate(SM90_CONFIGS):
        yield Hopper(DTYPES[(i + 1) % 2], config)
    for dim in (64, 128):
        first = next(i for i, c in enumerate(SM90_CONFIGS) if c.dim_qk == dim)
        yield Hopper(DTYPES[first % 2], SM90_CONFIGS[first])
    yield Hopper("bfloat16", Sm90Config(64, 64, n=64, warpgroups=2, packed=True))
    yield Hopper("float16", Sm90Config(128, 128, n=128, warpgroups=2, packed=True))
    for i, scores in enumerate(STAGES.values()):
        like = Sm90Config(*((64, 64) if i % 2 else (128, 128)), n=128, warpgroups=2)
        yield Hopper(DTYPES[i // 2 % 2], like.roomy(scores))
