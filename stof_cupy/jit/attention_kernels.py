"""The attention kernels as specs: shapes, score modifications, and their common parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from stof_cupy.jit.spec import KernelSpec

__all__ = [
    "COMBINE_WARPS",
    "FEW_ROWS",
    "KEYS",
    "PARTIAL_STATS",
    "PLAIN",
    "SHAPES",
    "TIGHT_NVRTC",
    "ScoreKind",
    "Shape",
    "attention_combine",
    "attention_sm80",
    "combine_smem",
    "row_warps_for",
]

_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_TYPES = {"float16": "stof::f16", "bfloat16": "stof::bf16", "float32": "float"}

KEYS = 64
"""Keys of a tile."""

TIGHT_NVRTC = (12, 9)
"""The oldest NVRTC release that finds registers for all kernels."""

PARTIAL_STATS = 2
"""Floats of a row's partial result beside its outputs."""

COMBINE_WARPS = 4
"""Of a CTA that adds up partial results."""

# Rows of more slices are shared by warps, unless there are warps enough for a GPU.
_ONE_WARP_SLICES = 8
_SHARED_ROWS = 2048


@dataclass(frozen=True)
class Shape:
    """How a CTA is made up; ``Shape`` of ``cuda/attention/shape.cuh``.

    Attributes
    ----------
    warps : int
    warp_rows : int
        Query rows of a warp, 16 or 32.
    stages : int
        Pairs of a K and a V tile in shared memory, 1 or 2.
    q_in_registers : bool
    min_blocks : int
        CTAs that are to fit an SM: the registers of a thread are limited to that.
    groups : int
        Groups of `warps` warps that share the key tiles of the same rows.
    """

    warps: int
    warp_rows: int
    stages: int
    q_in_registers: bool
    min_blocks: int
    groups: int = 1

    @property
    def rows(self) -> int:
        """Query rows of a CTA."""
        return self.warps * self.warp_rows

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps * self.groups

    @property
    def registers(self) -> int:
        """How many a thread can have."""
        return min(65536 // (self.threads * self.min_blocks) // 8 * 8, 255)

    @property
    def name(self) -> str:
        """For kernel names, e.g. ``"4x32s2q1b2"``."""
        q = int(self.q_in_registers)
        groups = f"g{self.groups}" if self.groups > 1 else ""
        return f"{self.warps}x{self.warp_rows}s{self.stages}q{q}b{self.min_blocks}{groups}"

    def smem_bytes(self, head_dim: int) -> int:
        """Return the shared memory of a CTA."""
        in_stage = self.q_in_registers and self.stages > 1 and self.rows <= 2 * KEYS
        rows = (0 if in_stage else self.rows) + 2 * self.stages * KEYS
        return self.groups * rows * head_dim * 2 + 64

    def cuda(self) -> str:
        """Return the C++ type."""
        q = str(self.q_in_registers).lower()
        numbers = f"{self.warps}, {self.warp_rows}, {self.stages}, {q}"
        return f"stof::attention::Shape<{numbers}, {self.min_blocks}, {self.groups}>"


_SMALL = (Shape(4, 16, 2, True, 4), Shape(4, 16, 2, True, 2))
_SHARED = Shape(2, 16, 2, True, 3, groups=2)

SHAPES: dict[int, tuple[Shape, ...]] = {
    32: (Shape(4, 32, 2, True, 2), Shape(2, 32, 2, True, 4), *_SMALL, _SHARED),
    64: (Shape(4, 32, 2, True, 2), Shape(2, 32, 2, True, 4), *_SMALL, _SHARED),
    96: (
        *(Shape(4, 32, 2, False, 2), Shape(2, 32, 2, False, 3), Shape(4, 16, 2, False, 2)),
        Shape(4, 16, 2, False, 1, groups=2),
    ),
    128: (
        *(Shape(4, 32, 1, False, 2), Shape(2, 32, 1, False, 4), Shape(4, 16, 1, False, 3)),
        *(Shape(4, 16, 1, False, 2), Shape(4, 16, 1, False, 1, groups=2)),
        Shape(2, 16, 1, False, 2, groups=2),
    ),
    192: (Shape(4, 16, 1, False, 2),),
    256: (Shape(4, 16, 1, False, 2),),
}
"""Shapes of attention by head-dim class, the fastest for long rows first."""

FEW_ROWS: dict[int, Shape] = {
    **dict.fromkeys((32, 64), Shape(1, 16, 2, True, 3)),
    **dict.fromkeys((96, 128), Shape(1, 16, 2, False, 3)),
    **dict.fromkeys((192, 256), Shape(1, 16, 1, False, 2)),
}
"""For up to 16 rows, as in decoding: one warp a CTA, so that many CTAs share the keys."""


@dataclass(frozen=True)
class ScoreKind:
    """Which score modifications a kernel makes; ``Scores`` of ``cuda/attention/scores.cuh``.

    Attributes
    ----------
    softcap, alibi, distances : bool
    bias : str or None
        Type of a bias array.
    """

    softcap: bool = False
    bias: str | None = None
    alibi: bool = False
    distances: bool = False

    @property
    def name(self) -> str:
        """For kernel names, ``""`` of plain scores."""
        parts = (
            "softcap" if self.softcap else "",
            f"bias{_SHORT[self.bias]}" if self.bias else "",
            "alibi" if self.alibi else "",
            "distances" if self.distances else "",
        )
        return "".join(f"_{part}" for part in parts if part)

    def cuda(self) -> str:
        """Return the C++ type."""
        bias = _TYPES[self.bias] if self.bias else "stof::attention::None"
        softcap, alibi, distances = (
            str(each).lower() for each in (self.softcap, self.alibi, self.distances)
        )
        return f"stof::attention::Scores<{softcap}, {bias}, {alibi}, {distances}>"


PLAIN = ScoreKind()
"""Nothing but the scale."""

_POINTERS = (
    *("q", "k", "v", "out", "lse", "partial"),
    *("row_ptr", "cols", "bitmap_id", "bitmaps", "order", "mask_of", "kv_lengths", "overflow"),
    *("bias", "alibi", "distances", "sinks", "query_at", "key_at"),
)
_STRIDES = (
    *(f"{array}_{axis}" for array in ("q", "k", "v", "out") for axis in ("batch", "head", "row")),
    *(f"bias_{axis}" for axis in ("batch", "head", "row")),
)
_SIZES = (
    *("mask_batch", "mask_head", "mask_rows", "row_tiles", "slots", "long_slots", "splits"),
    *("slice", "heads", "heads_per_kv", "pack", "seq_q", "seq_k", "dim_qk", "dim_v"),
    *("wide_q", "wide_k", "wide_v", "wide_out", "bias_col", "reach", "negative", "early"),
)
_PARAMS = (
    *((name, "u8") for name in _POINTERS),
    *((name, "i8") for name in _STRIDES),
    *((name, "i4") for name in _SIZES),
    *(("scale_log2", "f4"), ("softcap_log2", "f4")),
)


@cache
def attention_sm80(
    dtype: str,
    head_dim: int,
    shape: Shape,
    scores: ScoreKind = PLAIN,
    packed: bool = False,
) -> KernelSpec:
    """Return block-wise attention on mma.sync.

    Parameters
    ----------
    dtype : {"float16", "bfloat16"}
    head_dim : int
        One of :data:`~stof_cupy.jit.catalogue.HEAD_DIM_CLASSES`.
    shape : Shape
    scores : ScoreKind
    packed : bool
        Whether query heads that share keys lie in one tile.
    """
    t = _SHORT[dtype]
    suffix = f"{scores.name}{'_packed' if packed else ''}"
    arguments = f"stof::{t}, {head_dim}, {shape.cuda()}, {scores.cuda()}, {str(packed).lower()}"
    # With two fragments a warp, or few registers: for sm_100 and newer there are none left.
    tight = shape.warp_rows == 32 if head_dim == 128 else shape.registers <= 128 and head_dim == 64
    old = tight or (head_dim == 128 and shape.registers <= 168)
    return KernelSpec(
        name=f"attention_sm80_{t}_d{head_dim}_{shape.name}{suffix}",
        header="attention/sm80.cuh",
        type=f"stof::attention::Sm80<{arguments}>",
        params=_PARAMS,
        threads=shape.threads,
        smem_bytes=shape.smem_bytes(head_dim),
        arch="80-90" if tight else "80+",
        nvrtc=TIGHT_NVRTC if old else (0, 0),
        waits=True,
    )


@cache
def attention_combine(
    dtype: str, head_dim: int, shape: Shape, packed: bool, row_warps: int = 1
) -> KernelSpec:
    """Return what adds up the slices of :func:`attention_sm80`; it takes the same parameters.

    Parameters
    ----------
    dtype, head_dim, shape, packed
        As of the kernel whose slices they are.
    row_warps : {1, 4}
        See :func:`row_warps_for`.
    """
    t = _SHORT[dtype]
    arguments = f"stof::{t}, {head_dim}, {shape.cuda()}, {str(packed).lower()}, {row_warps}"
    name = f"attention_combine_{t}_d{head_dim}_r{shape.rows}"
    return KernelSpec(
        name=f"{name}{'_packed' if packed else ''}{'_shared' if row_warps > 1 else ''}",
        header="attention/combine.cuh",
        type=f"stof::attention::Combine<{arguments}>",
        params=_PARAMS,
        threads=32 * COMBINE_WARPS,
        smem_bytes=combine_smem(head_dim, row_warps),
    )


def combine_smem(dim_v: int, row_warps: int) -> int:
    """Return the bytes of shared memory by which warps that share a row add it up."""
    return COMBINE_WARPS * dim_v * 4 if row_warps > 1 else 0


def row_warps_for(rows: int, splits: int) -> int:
    """Return how many warps share a row, of `rows` with up to `splits` slices each."""
    return COMBINE_WARPS if splits > _ONE_WARP_SLICES and rows <= _SHARED_ROWS else 1
