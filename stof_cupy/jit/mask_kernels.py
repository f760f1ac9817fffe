"""The kernels that build masks on the GPU, as specs; those with formulas are generated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from stof_cupy.jit.spec import KernelSpec

__all__ = [
    "MASK_ARRAYS",
    "MASK_COLUMNS",
    "MASK_DEPTH",
    "MASK_NODES",
    "NODE_BYTES",
    "FormulaCode",
    "mask_build",
    "mask_order",
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
        params=(("row_ptr", "u8"), ("order", "u8"), ("rows", "i4")),
        threads=_THREADS,
        smem_bytes=4 * _THREADS,
    )
