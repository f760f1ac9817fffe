"""Every kernel template, as a function from its choices to a spec, and what is built ahead.

The operators ask these functions for the instance they need at every call, so specs are cached.
Instances outside :func:`catalogue` (an unusual epilogue, say) are compiled when they are first
used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit.attention_kernels import (
    COMBINE_WARPS,
    FEW_ROWS,
    SHAPES,
    ScoreKind,
    attention_combine,
    attention_sm80,
)
from stof_cupy.jit.attention_rowwise import ROWWISE_HEAD_DIMS, attention_rowwise
from stof_cupy.jit.attention_sm90 import (
    SM90_CONFIGS,
    SM90_CORNERS,
    attention_sm90,
    attention_sm90_combine,
)
from stof_cupy.jit.attention_token import attention_token
from stof_cupy.jit.decoder_kernels import gemm_few_rows, greedy, kv_cache, rotary
from stof_cupy.jit.epilogues import ACTIVATIONS, PLAIN, EpilogueKind
from stof_cupy.jit.gemm_ahead import GEMM_SM90_AHEAD
from stof_cupy.jit.gemm_pair import PAIR_TILES, gemm_pair
from stof_cupy.jit.gemm_sm90 import gemm_sm90
from stof_cupy.jit.gemm_streamed import gemm_streamed
from stof_cupy.jit.mask_kernels import (
    MASK_BUILDS,
    SCORES,
    mask_build,
    mask_documents,
    mask_order,
    mask_select,
)
from stof_cupy.jit.packing_kernel import packing
from stof_cupy.jit.spec import KernelSpec

__all__ = [
    "GEMM_TILES",
    "HEAD_DIM_CLASSES",
    "GemmTile",
    "catalogue",
    "elementwise",
    "embedding",
    "gemm_sm80",
    "head_dim_class",
    "layer_norm",
    "rms_norm",
    "row_statistics",
]

_SHORT = {"float16": "f16", "bfloat16": "bf16"}

HEAD_DIM_CLASSES = (32, 64, 96, 128, 192, 256)
"""Head dims that attention is instantiated for; others are padded with zeros inside the kernel."""


def head_dim_class(head_dim: int) -> int:
    """Return the smallest of :data:`HEAD_DIM_CLASSES` that holds `head_dim`.

    Raises
    ------
    UnsupportedError
        If `head_dim` is above 256.

    Examples
    --------
    >>> head_dim_class(40)
    64
    """
    for size in HEAD_DIM_CLASSES:
        if head_dim <= size:
            return size
    raise UnsupportedError(
        mismatch("head_dim", head_dim, f"at most {HEAD_DIM_CLASSES[-1]} on CUDA")
    )


@dataclass(frozen=True)
class GemmTile:
    """Rows and columns of C that a CTA and one of its warps compute, and its buffers.

    Attributes
    ----------
    m, n, warp_m, warp_n : int
    k, stages : int
        How deep a slice of A and B is, and how many there are room for.
    """

    m: int
    n: int
    warp_m: int
    warp_n: int
    k: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of the CTA."""
        return self.m // self.warp_m * (self.n // self.warp_n) * 32

    @property
    def smem_bytes(self) -> int:
        """Shared memory of the CTA."""
        return self.stages * (self.m + self.n) * self.k * 2


GEMM_TILES = (
    GemmTile(128, 256, 64, 64, 32, 4),
    GemmTile(128, 128, 64, 64, 32, 3),
    GemmTile(64, 64, 32, 32, 64, 3),
)
"""Large tiles for throughput, a small one for products too small to fill the GPU with large ones.
All GPUs have the shared memory for them."""

_FUNCTORS = {"add": "Add", "mul": "Multiply", "softcap": "SoftCap"}
for _name, _type in ACTIVATIONS.items():
    _FUNCTORS[_name] = f"Unary<stof::activation::{_type}>"
    _FUNCTORS[f"gated_{_name}"] = f"Gated<stof::activation::{_type}>"
"""What :func:`elementwise` can be, and its type."""


@cache
def gemm_sm80(
    dtype: str,
    tile: GemmTile,
    epilogue: EpilogueKind = PLAIN,
    layout: tuple[str, str] = ("k", "k"),
) -> KernelSpec:
    """Return the mma.sync GEMM.

    Parameters
    ----------
    layout : tuple of {"k", "rows", "any"}
        Along which axis A as ``(M, K)`` and B as ``(N, K)`` are contiguous, in 16-byte aligned
        pieces.
    """
    t = _SHORT[dtype]
    where = "" if layout == ("k", "k") else f"_{'_'.join(layout)}"
    kinds = {"k": "kAlongK", "rows": "kAlongRows", "any": "kAnyStrides"}
    arguments = [f"stof::{t}", *map(str, (tile.m, tile.n, tile.warp_m, tile.warp_n))]
    arguments += [str(tile.k), str(tile.stages)]
    arguments += [*(f"stof::gemm::{kinds[each]}" for each in layout), epilogue.type]
    return KernelSpec(
        name=f"gemm_sm80_{t}_{tile.m}x{tile.n}{where}{epilogue.name}",
        header="gemm/sm80.cuh",
        type=f"stof::gemm::Sm80<{', '.join(arguments)}>",
        params=(
            *((name, "u8") for name in ("a", "b", "c", "bias", "residual")),
            *((name, "u8") for name in ("row_statistics", "column_sums", "positions")),
            *((name, "u8") for name in ("frequency", "statistics")),
            *((name, "i8") for name in ("residual_row", "c_row", "c_batch", "c_head")),
            *((f"{name}_{axis}", "i8") for name in ("a", "b") for axis in ("row", "col")),
            *((name, "i4") for name in ("m", "n", "k", "wide_c", "pairs_residual")),
            *((name, "i4") for name in ("turned", "half", "head_dim", "seq")),
            *((name, "f4") for name in ("scale", "magnitude")),
        ),
        threads=tile.threads,
        smem_bytes=tile.smem_bytes,
    )


@cache
def _norm(name: str, dtype: str, *, centred: bool, told: bool = False) -> KernelSpec:
    t = _SHORT[dtype]
    flags = f"{str(centred).lower()}{', true' * told}"
    return KernelSpec(
        name=f"{name}_{t}",
        header="norm.cuh",
        type=f"stof::Norm<stof::{t}, {flags}>",
        params=(
            *((name, "u8") for name in ("x", "residual", "weight", "bias", "sum", "out")),
            *((name, "i8") for name in ("x_row", "residual_row", "sum_row", "out_row", "rows")),
            *((name, "i4") for name in ("cols", "wide", "warps", "backwards")),
            ("eps", "f4"),
        ),
        threads=256,
        smem_bytes=2 * 8 * 4,
        waits=True,
    )


def layer_norm(dtype: str) -> KernelSpec:
    """Return LayerNorm over the last axis, of one array or of the sum of two."""
    return _norm("layer_norm", dtype, centred=True)


def rms_norm(dtype: str) -> KernelSpec:
    """Return RMSNorm over the last axis, of one array or of the sum of two."""
    return _norm("rms_norm", dtype, centred=False)


def row_statistics(dtype: str, *, centred: bool = True) -> KernelSpec:
    """Return mean and inverse deviation of rows: what LayerNorm, or else RMSNorm, finds out."""
    return _norm(f"row_statistics{'' if centred else '_rms'}", dtype, centred=centred, told=True)


@cache
def embedding(dtype: str) -> KernelSpec:
    """Return the sum of up to three table rows per token."""
    t = _SHORT[dtype]
    return KernelSpec(
        name=f"embedding_{t}",
        header="embedding.cuh",
        type=f"stof::Embedding<stof::{t}>",
        params=(
            *(
                (name, "u8")
                for name in ["ids", "table", "position_table", "token_types", "type_table", "out"]
            ),
            *((name, "i8") for name in ("tokens", "seq", "table_rows", "type_rows")),
            *((name, "i4") for name in ("cols", "wide", "long_ids", "long_types")),
        ),
        threads=128,
        smem_bytes=0,
    )


@cache
def elementwise(dtype: str, op: str) -> KernelSpec:
    """Return one of `_FUNCTORS`, such as ``"add"`` or ``"gelu"``, over contiguous arrays."""
    t = _SHORT[dtype]
    return KernelSpec(
        name=f"{op}_{t}",
        header="elementwise.cuh",
        type=f"stof::Elementwise<stof::{t}, stof::{_FUNCTORS[op]}>",
        params=(
            *((name, "u8") for name in ("x", "y", "out")),
            *((name, "i8") for name in ("count", "period")),
            ("wide", "i4"),
        ),
        threads=256,
        smem_bytes=0,
    )


def _attention() -> list[KernelSpec]:
    """Return attention as it is mostly used: a kernel takes seconds to compile.

    float16 in every shape for the usual head dims, and in the first one for others; bfloat16, and
    each kind of scores, in one shape.
    """
    specs = [attention_sm80("float16", dim, SHAPES[dim][0]) for dim in (32, 96, 192, 256)]
    for dim in (64, 128):
        few = FEW_ROWS[dim]
        specs += [attention_sm80("float16", dim, shape) for shape in (*SHAPES[dim], few)]
        specs.append(attention_sm80("bfloat16", dim, SHAPES[dim][-1]))
        specs.append(attention_sm80("float16", dim, few, packed=True))
    shape = SHAPES[128][-1]
    kinds = [ScoreKind(softcap=True), ScoreKind(bias="float16")]
    kinds += [ScoreKind(alibi=True), ScoreKind(distances=True)]
    specs += [attention_sm80("float16", 128, shape, kind) for kind in kinds]
    specs += [attention_sm90("float16", config) for config in SM90_CONFIGS]
    specs.append(attention_combine("float16", 64, SHAPES[64][0], False))
    specs.append(attention_combine("float16", 128, FEW_ROWS[128], False, COMBINE_WARPS))
    specs.append(attention_sm90_combine("float16", 128, 128))
    wide = next(config for config in SM90_CONFIGS if config.dim_v == 128)
    specs.append(attention_sm90("bfloat16", wide.roomy(("Softcap",))))
    specs.append(attention_sm90("float16", wide.roomy(("Additive<stof::f16>",))))
    specs += [attention_sm90(*each) for each in SM90_CORNERS]
    specs += [attention_rowwise("float16", dim, 1, "KeyLists") for dim in ROWWISE_HEAD_DIMS]
    specs.append(attention_rowwise("bfloat16", 64, 1, "KeyLists"))
    specs += [attention_rowwise("float16", 64, 1, "TileLists", wide=wide) for wide in (True, False)]
    specs += [attention_token("float16", 64), attention_token("float16", 128)]
    specs.append(attention_token("bfloat16", 256))
    return specs


def _gemm() -> list[KernelSpec]:
    """Return GEMMs with the most common epilogues, and what each kernel can do once."""
    gelu = EpilogueKind(bias=True, activation="gelu")
    residual = EpilogueKind(bias=True, residual=True)
    specs = [gemm_sm80("float16", *each) for each in product(GEMM_TILES, (gelu, residual))]
    specs.append(gemm_sm80("float16", GEMM_TILES[1], PLAIN))
    gate = EpilogueKind(activation="silu", gated=True)
    specs.append(gemm_sm80("bfloat16", GEMM_TILES[0], gelu))
    specs.append(gemm_sm80("bfloat16", GEMM_TILES[1], gate, ("any", "any")))
    specs.append(gemm_sm80("float16", GEMM_TILES[1], PLAIN, ("rows", "rows")))
    specs.append(gemm_few_rows("float16", 1, 4, EpilogueKind(residual=True)))
    specs.append(gemm_few_rows("bfloat16", 1, 1, gate, normed=True, constant=True, room=8192))
    specs.append(gemm_pair("float16", PAIR_TILES[0], gelu, residual))
    specs.append(gemm_pair("bfloat16", PAIR_TILES[2], gate, PLAIN))
    every = EpilogueKind(normed=True, bias=True, rotary=128, statistics=True, heads=True)
    specs += [gemm_sm80("bfloat16", GEMM_TILES[0], every), row_statistics("bfloat16")]
    specs.append(
        gemm_streamed("float16", 16, 32, EpilogueKind(bias=True, activation="gelu", residual=True))
    )
    specs.append(gemm_streamed("bfloat16", 16, 16, gate))
    specs.append(gemm_streamed("bfloat16", 8, 24, alone=True))
    return specs + [gemm_sm90(*each) for each in GEMM_SM90_AHEAD]


def catalogue() -> tuple[KernelSpec, ...]:
    """Return the instances that ``make kernels`` compiles, for each architecture they are for."""
    specs = _attention()
    for dtype in _SHORT:
        specs += [layer_norm(dtype), rms_norm(dtype), embedding(dtype), kv_cache(dtype)]
        specs.append(greedy(dtype))
        often = ("add", "gelu", "gelu_tanh", "gated_silu", "gated_gelu_tanh")
        specs += [rotary(dtype, False), *(elementwise(dtype, op) for op in often)]
    specs += _gemm()
    specs += [mask_select(dtype) for dtype in SCORES]
    specs += [mask_documents(dtype) for dtype in ("int32", "int64", "uint8")]
    specs += [mask_build(tile, order) for tile, order in MASK_BUILDS]
    specs += [mask_order(), packing()]
    return tuple(specs)
