// Filling tiles of attention in shared memory.
#pragma once

#include "ptx/cp_async.cuh"
#include "ptx/opaque.cuh"
#include "tile.cuh"

namespace stof::attention {

// Copies tiles of a head's keys or values that are there whole. Each thread keeps to rows and
// columns of its own, so that an address is an addition away from another.
template <class Tile, class Shape>
class TileCopy {
  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kLanes = Tile::kChunks % 16 == 0 ? 16 : Tile::kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kStep = kThreads / kLanes;  // rows copied at a time
  static_assert(Tile::kRows % kStep == 0 && kThreads % kLanes == 0);
  u32 to;  // the thread's part of a tile at address 0

 public:
  __device__ __forceinline__ TileCopy()
      : to(ptx::opaque(Tile::address(0, Shape::thread() / kLanes, Shape::thread() % kLanes))) {}

  // The thread's part of rows that are `row_stride` elements apart.
  __device__ __forceinline__ const u16* part(const u16* head, i64 row_stride) const {
    return ptx::opaque(head + Shape::thread() / kLanes * row_stride + Shape::thread() % kLanes * 8);
  }

  // Starts to copy all rows of tile number `tile` to shared address `base`, and of them the whole
  // chunks within the head dim; the other chunks stay as they are. `part` is what `part()` gave.
  __device__ __forceinline__ void operator()(u32 base, const u16* part, int tile, int row_stride,
                                             int chunks) const {
    const int chunk = Shape::thread() % kLanes;
    const u16* at = part + static_cast<i64>(tile * Tile::kRows) * row_stride;
#pragma unroll
    for (int i = 0; i < Tile::kRows; i += kStep)
#pragma unroll
      for (int c = 0; c < Tile::kChunks; c += kLanes)
        if (c + chunk < chunks)
          ptx::cp_async_16(base + (to ^ Tile::swizzle(i) << 4) + i * Tile::kCols * 2 + c * 16,
                           at + static_cast<i64>(i) * row_stride + c * 8);
  }
};

}  // namespace stof::attention
