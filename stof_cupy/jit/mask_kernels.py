"""The kernels that build masks on the GPU, as specs; those with formulas are generated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from stof_cupy.jit.spec import KernelSpec

__all__ = [
    "DOCUMENT_CHUNK",
    "MASK_ARRAYS",
    "MASK_BUILDS",
    "MASK_COLUMNS",
    "MASK_DEPTH",
    "MASK_NODES",
    "NODE_BYTES",
    "SCORES",
    "FormulaCode",
    "mask_build",
    "mask_documents",
    "mask_order",
    "mask_select",
]

MASK_NODES, MASK_ARRAYS, MASK_DEPTH = 24, 16, 4
"""Nodes and arrays of an expression, and accumulators that are set aside at a time."""

NODE_BYTES, _ARRAY_BYTES = 128, 24

MASK_COLUMNS = 1 << 16
"""Tiles of a row that the kernel has room for."""

_THREADS = 256
_WARPS = _THREADS // 32


@dataclass(frozen=True)
class FormulaCode:
    """A user's formula as two C++ expressions.

    Attributes
    ----------
    value : str
        Not 0 where query `i` sees key `j`; arrays are `p`.
    state : str
        The ``State`` of queries `i0` to `i1` and keys `j0` to `j1`.
    arrays : int
        How many `p` are there.
    """

    value: str
    state: str
    arrays: int


@lru_cache(maxsize=256)  # of formulas there may be any number
def mask_build(
    tile: tuple[int, int],
    accumulator: bool,
    formulas: tuple[FormulaCode, ...] = (),
    kinds: int = -1,
) -> KernelSpec:
    """Return the kernel that builds work lists.

    Parameters
    ----------
    tile : tuple of int
        Rows and columns of a tile, multiples of 64.
    accumulator : bool
        Whether bitmaps are in accumulator order, else in 8x8 words.
    formulas : tuple of FormulaCode
        Those that leaves of the program name.
    kinds : int
        A bit for each kind of node that a kernel with formulas has to know; one without knows all.
    """
    rows, cols = tile
    order = "accumulator" if accumulator else "words"
    name = f"mask_build_{rows}x{cols}_{order}"
    kind = f"stof::mask::Build<{rows}, {cols}, {'true' if accumulator else 'false'}"
    if formulas:
        digest = hashlib.sha256(repr((formulas, kinds)).encode()).hexdigest()[:12]
        name, kind = f"{name}_{digest}", f"{kind}, Formulas"
    pointers = ["progress", "row_ptr", "full_ptr", "cols", "bitmap_id", "bitmaps", "totals"]
    pointers += ["found", "known"]
    sizes = ("node_count", "masks", "lead_inner", "queries", "keys")
    program = MASK_NODES * NODE_BYTES + MASK_ARRAYS * _ARRAY_BYTES
    states = 2 * MASK_COLUMNS // 8
    words = 8 * (MASK_DEPTH * _THREADS + _WARPS * rows * cols // 64)
    return KernelSpec(
        name=name,
        header="mask/build.cuh",
        type=f"{kind}>",
        params=(
            ("program", f"({program},)u1"),
            *((pointer, "u8") for pointer in pointers),
            *((size, "i4") for size in (*sizes, "tile_capacity", "bitmap_capacity")),
        ),
        threads=_THREADS,
        smem_bytes=states + words + 16 * MASK_NODES + 4 * _THREADS + 16 + 8 * _WARPS,
        prelude=_formulas(formulas, kinds) if formulas else "",
    )


def _formulas(formulas: Sequence[FormulaCode], kinds: int) -> str:
    """Return the C++ type of formulas, as ``NoFormulas`` in mask/program.cuh."""
    used = max(each.arrays for each in formulas)
    arrays = ", ".join(f"q[{number}]" for number in range(used))
    # A copy with constant indices stays in registers.
    copy = f"[[maybe_unused]] const Array {f'p[] = {{{arrays}}}' if used else '*p = q'};"
    values = "\n".join(
        f"      case {number}:\n"
        f"        return formula_word(i, j, [=](int i, int j) -> bool {{ return {each.value}; }});"
        for number, each in enumerate(formulas)
    )
    states = "\n".join(
        f"      case {number}: return {each.state};" for number, each in enumerate(formulas)
    )
    return f"""\
namespace stof::mask {{
struct Formulas {{
  static constexpr u32 kKinds = {kinds & 0xFFFFFFFF}u;
  static constexpr int kMinBlocks = 1;  // registers for any formula
  __device__ static int box_state(int which, int i0, int i1, int j0, int j1, const Array* p) {{
    switch (which) {{
{states}
      default: return kPart;
    }}
  }}
  __device__ static u64 row_word(int which, int i, int j, const Array* q) {{
    {copy}
    switch (which) {{
{values}
      default: return 0;
    }}
  }}
}};
}}  // namespace stof::mask
using stof::mask::Formulas;"""


@cache
def mask_order() -> KernelSpec:
    """Return the kernel that ranks rows of tiles by how many tiles they list."""
    return KernelSpec(
        name="mask_order",
        header="mask/build.cuh",
        type="stof::mask::Order",
        params=(
            *((name, "u8") for name in ("row_ptr", "full_ptr", "order", "work")),
            ("rows", "i4"),
        ),
        threads=_THREADS,
        smem_bytes=4 * _THREADS,
    )


SCORES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
"""Types of block scores, and their short names."""


@cache
def mask_select(dtype: str) -> KernelSpec:
    """Return the cut below the highest block scores of each row; scores may be float32 too."""
    t = SCORES[dtype]
    strides = ("row_stride", "col_stride", "lead_a_stride", "lead_b_stride")
    return KernelSpec(
        name=f"mask_select_{t}",
        header="mask/select.cuh",
        type=f"stof::mask::Select<{'float' if t == 'f32' else f'stof::{t}'}>",
        params=(
            *((name, "u8") for name in ("scores", "cut")),
            *((name, "i8") for name in strides),
            *((name, "i4") for name in ("lead_b", "rows", "cols", "top")),
        ),
        threads=256,
        smem_bytes=(256 + 256 // 32 + 3) * 4,
    )


DOCUMENT_CHUNK = 4096
"""Tokens that a CTA of :func:`mask_documents` takes."""

_IDS = {
    **{"int8": "signed char", "int16": "short", "int32": "int", "int64": "long long"},
    **{f"uint{8 * size}": f"stof::u{8 * size}" for size in (1, 2, 4, 8)},
}


@cache
def mask_documents(dtype: str) -> KernelSpec:
    """Return the runs of equal document ids, of any integer type."""
    return KernelSpec(
        name=f"mask_documents_{dtype}",
        header="mask/documents.cuh",
        type=f"stof::mask::Documents<{_IDS[dtype]}, {DOCUMENT_CHUNK}>",
        params=(
            *((name, "u8") for name in ("ids", "start", "stop")),
            *((name, "i8") for name in ("id_stride", "lead_stride", "out_lead_stride")),
            *((name, "i4") for name in ("tokens", "causal")),
        ),
        threads=512,
        smem_bytes=(3 * DOCUMENT_CHUNK // 32 + 2) * 4,
    )


MASK_BUILDS = (
    *(((64, 64), False), ((64, 64), True), ((128, 64), True)),
    *(((64, 128), True), ((128, 128), True)),
)
"""Tiles for which masks are built on the GPU, and whether bitmaps are in accumulator order."""
