// Filling tiles of attention in shared memory.
#pragma once

#include "ptx/opaque.cuh"
#include "tile.cuh"

namespace stof::attention {

// Tiles of keys or values that are copied whole: each thread keeps to columns of its own, so that
// an address is an addition away from the one before.
template <class Tile, int kThreads>
struct WholeTile {
  static constexpr int kLanes = Tile::kChunks % 16 == 0 ? 16 : Tile::kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kStep = kThreads / kLanes;  // rows copied at a time
  static_assert(Tile::kRows % kStep == 0 && kThreads % kLanes == 0);

  // Copies all rows, asynchronously, and of them the whole chunks within the head dim; the other
  // chunks stay as they are.
  __device__ static __forceinline__ void load(u32 base, const u16* from, i64 row_stride,
                                              int chunks) {
    const u32 thread = ptx::opaque(threadIdx.x);  // no registers between tiles
    const int row = thread / kLanes, chunk = thread % kLanes;
    const u32 to = Tile::address(base, row, chunk);
    from += row * row_stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < Tile::kRows; i += kStep, from += kStep * row_stride)
#pragma unroll
      for (int c = 0; c < Tile::kChunks; c += kLanes)
        if (c + chunk < chunks)
          ptx::cp_async_16((to ^ Tile::swizzle(i) << 4) + i * Tile::kCols * 2 + c * 16,
                           from + c * 8);
  }
};

}  // namespace stof::attention
