"""The Hopper attention kernel: how it can be tiled, and its spec."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit.attention_kernels import COMBINE_WARPS, combine_smem
from stof_cupy.jit.spec import TENSOR_MAP, KernelSpec
from stof_cupy.jit.wgmma import wgmma

__all__ = [
    "SM90_CONFIGS",
    "SM90_CORNERS",
    "SM90_DIMS",
    "Sm90Config",
    "attention_sm90",
    "attention_sm90_combine",
    "sm90_dim",
]

SM90_DIMS = (64, 96, 128, 192, 256)
"""Head dims of the kernel; others are filled up with zeros by the copies into shared memory."""

_SMEM_PER_BLOCK, _SMEM_PER_SM = 232448, 233472
_SMEM_RESERVED = 1024  # of each block, by the system
_VARIANTS = ("packed", "bounded", "halves")
_REGISTERS_BESIDE = 32  # of a thread, for all but scores, weights and output
_ROW_BYTES, _ROWS = 48 + 2 * 32 * 4, 3  # what a CTA is told of a row, and how many it keeps


def sm90_dim(head_dim: int) -> int:
    """Return the smallest of :data:`SM90_DIMS` that holds `head_dim`.

    Raises
    ------
    UnsupportedError
        If `head_dim` is above 256.

    Examples
    --------
    >>> sm90_dim(80)
    96
    """
    for size in SM90_DIMS:
        if head_dim <= size:
            return size
    raise UnsupportedError(mismatch("head_dim", head_dim, f"at most {SM90_DIMS[-1]} on CUDA"))


@dataclass(frozen=True)
class Sm90Config:
    """How the kernel works.

    Attributes
    ----------
    dim_qk, dim_v : int
        Head dims, of :data:`SM90_DIMS`.
    n : int
        Keys of a tile.
    warpgroups : int
        Those that multiply, 1 to 3; each takes 64 queries of a tile.
    stages : int
        Buffers for key tiles, and as many for value tiles.
    queries : int
        Buffers for query tiles, 1 or 2.
    blocks : int
        CTAs that share an SM.
    packed : bool
        Whether keys are taken from anywhere in groups of 8, for schedules that are packed.
    bounded : bool
        Whether waits that take a second are reported and end in a fault: for finding hangs.
    halves : bool
        Whether 64 queries do without the half of a tile, or the tile, of which they keep nothing;
        of 128 keys.
    scores : tuple of str
        Stages of ``cuda/attention/element_scores.cuh`` that make scores; none: the scale alone.
    """

    dim_qk: int
    dim_v: int
    n: int
    warpgroups: int
    stages: int = 2
    queries: int = 2
    blocks: int = 1
    packed: bool = False
    bounded: bool = False
    halves: bool = False
    scores: tuple[str, ...] = ()

    @property
    def m(self) -> int:
        """Queries of a tile."""
        return 64 * self.warpgroups

    @property
    def threads(self) -> int:
        """Threads of a CTA: the warpgroups that multiply, and one that loads."""
        return 128 * (self.warpgroups + 1)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        slabs_qk, slabs_v = -(-self.dim_qk // 64), -(-self.dim_v // 64)
        queries = self.queries * max(slabs_qk, slabs_v) * self.m * 128
        tiles = (slabs_qk + slabs_v) * self.n * 128
        bitmap = self.m // 16 * 32 * 4 * -(-self.n // 64)
        places = self.n // 2 if self.scores else 8 if self.halves else 0
        barriers = 2 * (2 * self.stages + _ROWS + 1) + self.queries * (2 + self.warpgroups)
        stages = self.stages * (tiles + bitmap + places)
        return queries + stages + _ROWS * _ROW_BYTES + 8 * barriers

    @property
    def tile_registers(self) -> int:
        """Registers of a thread that hold scores, weights and output."""
        return self.n // 2 + self.n // 4 + self.dim_v // 2

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that multiplies, and of one that loads."""
        launched = 65536 // (self.threads * self.blocks) // 8 * 8
        loader = 32 if self.warpgroups == 3 and self.tile_registers > 120 else 40
        loader = 48 if self.packed else loader
        loader = 56 if self.scores and self.warpgroups == 1 else loader
        return min(240, (launched + (launched - loader) // self.warpgroups) // 8 * 8), loader

    @property
    def overlaps(self) -> bool:
        """Whether there are registers to run both products of a step together."""
        return self.tile_registers + _REGISTERS_BESIDE <= self.registers[0]

    def roomy(self, scores: tuple[str, ...]) -> Sm90Config:
        """Return a configuration like this one with registers to make scores, if there is one."""
        groups = min(self.warpgroups, 2)
        like = replace(self, warpgroups=groups, blocks=3 - groups, halves=False, scores=scores)
        return like if like.fault() is None else replace(like, n=min(self.n, 64))

    def fault(self) -> str | None:
        """Return why there is no such kernel, or None.

        Examples
        --------
        >>> Sm90Config(128, 128, n=128, warpgroups=2).fault()
        >>> Sm90Config(256, 256, n=160, warpgroups=2).fault()
        'registers: got 208, expected at most 200 for scores and output'
        """
        if self.dim_qk not in SM90_DIMS or self.dim_v not in SM90_DIMS:
            return mismatch("head dims", (self.dim_qk, self.dim_v), f"of {SM90_DIMS}")
        if self.n % 16 or not 16 <= self.n <= 256:
            return mismatch("n", self.n, "a multiple of 16 up to 256")
        if self.warpgroups not in (1, 2, 3) or self.queries not in (1, 2):
            return mismatch("warpgroups, queries", (self.warpgroups, self.queries), "1-3, 1-2")
        if self.stages < 2:
            return mismatch("stages", self.stages, "2 or more")
        # One of one warpgroup could take more registers than there are names for.
        fewest = 2 if self.warpgroups == 1 else 1
        if not fewest <= self.blocks <= 3:
            return mismatch("blocks", self.blocks, f"{fewest} to 3")
        supported = self.n == 128 and self.dim_v <= 128 and not (self.packed or self.scores)
        if self.halves and not (supported and self.overlaps):
            return mismatch("halves", self, "128 keys, values to 128, both products at once")
        wrong = self._registers_fault()
        if wrong is not None:
            return wrong
        limit = min(_SMEM_PER_BLOCK, _SMEM_PER_SM // self.blocks - _SMEM_RESERVED)
        if self.smem_bytes > limit:
            return mismatch("shared memory", self.smem_bytes, f"at most {limit} bytes")
        return None

    def _registers_fault(self) -> str | None:
        """Return what there are not enough registers for, or None."""
        given = self.registers[0]
        most = given - _REGISTERS_BESIDE
        needed = self.tile_registers if self.overlaps else (self.n + self.dim_v) // 2
        if needed > most:
            return mismatch("registers", needed, f"at most {most} for scores and output")
        if {"Alibi", "Relative"} <= set(self.scores):
            return mismatch("scores", self.scores, "one term of distances")
        return self._spills()

    def _spills(self) -> str | None:
        """Return what of the scores ptxas 13.5 spills for, though there seems to be room, or None.

        All pairs of head dims with terms were compiled in float16 to find these, what is left of
        packed keys in both types (benchmarks/notes/sm90_attention.md).
        """
        arrays = any(stage.startswith("Additive") for stage in self.scores)
        distances = not {"Alibi", "Relative"}.isdisjoint(self.scores)
        short = self.scores in (("Additive<stof::f16>",), ("Additive<stof::bf16>",))
        more = (arrays and distances) or short or {"Softcap", "Relative"} <= set(self.scores)
        expected = None
        if self.packed and self.dim_v > 64 and self.scores not in ((), ("Softcap",)):
            expected = "a softcap alone where keys are packed"
        elif (self.packed or self.dim_v == 256) and arrays and distances:
            expected = "no array beside a term of distances"
        elif self.dim_qk == self.dim_v == 256 and arrays and "Softcap" in self.scores:
            expected = "no array after a softcap"
        elif self.packed and self.dim_qk == 256 and len(self.scores) > 2:
            expected = "two terms where keys of 256 are packed"
        elif self.n % 64 and (distances or (self.packed and self.scores)):
            expected = "no such terms where 64 does not divide the keys of a tile"
        elif self.n > 64 and self.dim_v > 96 and more:
            expected = "64 keys, or others, where values have 128 or more"
        return None if expected is None else mismatch("scores", self.scores, expected)

    @property
    def name(self) -> str:
        """What distinguishes this kernel of a type from others."""
        dims = f"d{self.dim_qk}" + (f"v{self.dim_v}" if self.dim_v != self.dim_qk else "")
        buffers = f"s{self.stages}q{self.queries}b{self.blocks}"
        variant = "".join(f"_{each}" for each in _VARIANTS if getattr(self, each))
        variant += "".join(f"_{stage}" for stage in self.scores)
        variant = variant.lower().replace("additive<stof::", "bias_").replace(">", "")
        variant = variant.replace("additive<", "bias_")
        return f"{dims}_{self.m}x{self.n}_{buffers}{variant}"


SM90_CONFIGS = (
    Sm90Config(64, 64, n=128, warpgroups=3, halves=True),
    Sm90Config(64, 64, n=128, warpgroups=2),
    Sm90Config(64, 64, n=64, warpgroups=1, blocks=3),
    Sm90Config(64, 64, n=64, warpgroups=2, blocks=2),
    Sm90Config(96, 96, n=128, warpgroups=2),
    Sm90Config(96, 96, n=64, warpgroups=1, queries=1, blocks=2),
    Sm90Config(128, 128, n=128, warpgroups=2),
    Sm90Config(128, 128, n=128, warpgroups=2, halves=True),
    Sm90Config(128, 128, n=64, warpgroups=3),
    Sm90Config(128, 128, n=64, warpgroups=1, blocks=2),
    Sm90Config(192, 192, n=112, warpgroups=2, queries=1),
    Sm90Config(192, 192, n=64, warpgroups=2),
    Sm90Config(192, 128, n=128, warpgroups=2, queries=1),
    Sm90Config(256, 256, n=64, warpgroups=2, queries=1),
)
"""What is compiled ahead: each is the fastest somewhere (benchmarks/notes/sm90_attention.md)."""

SM90_CORNERS = (
    ("float16", Sm90Config(192, 96, 112, 2, queries=1, scores=("Softcap",))),
    ("bfloat16", Sm90Config(128, 128, 128, 2, scores=("Relative",))),
    ("float16", Sm90Config(64, 128, 128, 2, scores=("Softcap", "Alibi"))),
    ("float16", Sm90Config(192, 192, 64, 2, scores=("Relative", "Additive<stof::f16>"))),
    ("float16", Sm90Config(256, 256, 64, 2, queries=1, scores=("Softcap", "Relative"))),
    ("bfloat16", Sm90Config(256, 64, 64, 2, queries=1, packed=True, scores=("Softcap", "Alibi"))),
)
"""Other pairs of head dims with terms of scores: what comes next to those that would spill."""


_T = {"float16": "f16", "bfloat16": "bf16"}
_MAPS = tuple(f"map_{name}" for name in ("q", "k", "v", "out", "k_group", "v_group"))
_POINTERS = (
    *("q", "k", "v", "out", "lse", "partial", "work", "cols", "bitmap_id"),
    *("groups", "bitmaps", "mask_of", "kv_lengths", "overflow"),
    *("bias", "alibi", "relative", "sinks", "query_at", "key_at", "counter", "report"),
)
_STRIDES = (
    *(f"{array}_{axis}" for array in ("q", "k", "v", "out") for axis in ("batch", "head", "row")),
    *(f"bias_{axis}" for axis in ("batch", "head", "row", "key")),
)
_SIZES = (
    *("mask_batch", "mask_head", "batch", "heads", "heads_per_kv", "section", "long_slots"),
    *("splits", "seq_q", "seq_k", "dim_qk", "dim_v", "reach", "alike"),
)
_PARAMS = (
    *((name, TENSOR_MAP) for name in _MAPS),
    *((name, "u8") for name in _POINTERS),
    *((name, "i8") for name in _STRIDES),
    *((name, "i4") for name in _SIZES),
    *((name, "f4") for name in ("factor", "cap", "bias_masking")),
)


@cache
def attention_sm90(dtype: str, config: Sm90Config) -> KernelSpec:
    """Return block-wise attention on wgmma for ``"float16"`` or ``"bfloat16"``.

    Raises
    ------
    UnsupportedError
        See `Sm90Config.fault`.
    """
    if (wrong := config.fault()) is not None:
        raise UnsupportedError(wrong)
    t = _T[dtype]
    tile = [config.dim_qk, config.dim_v, config.n, config.warpgroups]
    numbers = [*tile, config.stages, config.queries, config.blocks]
    variant = [str(getattr(config, each)).lower() for each in _VARIANTS]
    stages = ", ".join(f"stof::attention::{stage}" for stage in config.scores)
    arguments = [f"stof::{t}", *map(str, numbers), *variant, f"stof::attention::Scores<{stages}>"]
    return KernelSpec(
        name=f"attention_sm90_{t}_{config.name}",
        header="attention/sm90.cuh",
        type=f"stof::attention::Sm90<{', '.join(arguments)}>",
        params=_PARAMS,
        threads=config.threads,
        smem_bytes=config.smem_bytes,
        arch="90a",
        waits=True,
        prelude=wgmma(t, (config.n, config.dim_v, *([config.n // 2] if config.halves else []))),
    )


@cache
def attention_sm90_combine(dtype: str, dim_v: int, m: int, row_warps: int = 1) -> KernelSpec:
    """Return what adds up the slices of :func:`attention_sm90`; it takes the same parameters.

    `row_warps` warps share a row.
    """
    t = _T[dtype]
    return KernelSpec(
        name=f"attention_sm90_combine_{t}_d{dim_v}_r{m}{'_shared' if row_warps > 1 else ''}",
        header="attention/sm90_combine.cuh",
        type=f"stof::attention::Sm90Combine<stof::{t}, {dim_v}, {m}, {row_warps}>",
        params=_PARAMS,
        threads=32 * COMBINE_WARPS,
        smem_bytes=combine_smem(dim_v, row_warps),
        arch="90a",
    )
