// The bits of a tile in the order in which tensor cores leave scores in registers. The host's
// statement of it is stof_cupy/masks/layout.py: of an m x n tile, lane 4 * g + q of the warp that
// owns rows 16 * warp .. + 15 has the element at row 16 * warp + 8 * r + g, column 8 * j + 2 * q +
// e as bit r * n / 4 + 2 * j + e.
#pragma once

#include "types.cuh"

namespace stof::mask {

// Of 64 columns of a row, the sixteen bits that quad lane `q` has of them.
__device__ __forceinline__ u32 accumulator_pairs(u64 row, int q) {
  u64 x = row >> 2 * q & 0x0303030303030303;
  x = (x | x >> 6) & 0x000f000f000f000f;
  x = (x | x >> 12) & 0x000000ff000000ff;
  return static_cast<u32>(x | x >> 24) & 0xffff;
}

}  // namespace stof::mask
