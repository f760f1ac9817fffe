// A kRows x kCols tile of 16-bit elements in shared memory, and how it is filled from global
// memory.
//
// Rows are kCols * 2 bytes apart. The 16-byte chunk c of row r is stored at chunk c ^ swizzle(r),
// which spreads the eight rows that one ldmatrix phase reads over all 32 banks.
#pragma once

#include "ptx/cp_async.cuh"
#include "ptx/shared.cuh"
#include "types.cuh"

namespace stof {

template <int kRows_, int kCols_>
struct Tile {
  static constexpr int kRows = kRows_;
  static constexpr int kCols = kCols_;
  static constexpr int kChunks = kCols / 8;
  static constexpr int kBytes = kRows * kCols * 2;
  static_assert(kCols % 32 == 0, "the swizzle needs rows of 4 or 8 chunks, or a multiple");

  // Row pitches of 4 chunks modulo 8 (64 or 192 bytes ...) start every other row half a bank line
  // later, so two bits are enough there.
  static constexpr int kSwizzled = kChunks % 8 == 0 ? 7 : 3;
  __device__ static constexpr int swizzle(int row) {
    return kSwizzled == 7 ? row & 7 : (row >> 1) & 3;
  }

  __device__ static u32 address(u32 base, int row, int chunk) {
    return base + static_cast<u32>(row * kCols * 2 + ((chunk ^ swizzle(row)) << 4));
  }

  // The address `chunks` chunks further in a row, where the chunk that `address` is of has none of
  // the bits of `chunks`; one instruction, or none. `base` was a multiple of 128.
  __device__ static u32 further(u32 address, int chunks) {
    return (address ^ (chunks & kSwizzled) << 4) + ((chunks & ~kSwizzled) << 4);
  }
};

// A two-dimensional piece of a global tensor of 16-bit elements; strides in elements.
struct GlobalTile {
  const u16* data;
  i64 row_stride;
  i64 col_stride;
  int rows;      // valid rows from `data` on; the tile's other rows read as zero
  int cols;      // likewise
  bool wide;     // unit column stride, and all rows 16-byte aligned
  int fold = 0;  // from one half of the rows to the other, if they come folded

  // Where row `row` of the tile is, and whether it is a valid one. Folded, 8 rows of each half come
  // in turn, and `rows` are those of a half.
  template <bool kFolded>
  __device__ __forceinline__ i64 place(int row, bool& inside) const {
    const int in_half = kFolded ? row / 16 * 8 + row % 8 : row;
    inside = in_half < rows;
    return in_half + (kFolded ? row / 8 % 2 * fold : 0);
  }
};

// Starts filling `Tile` at shared address `base`; done for this thread after its cp_async_wait, for
// all after a barrier behind it. kThreads threads do it, of which this is number `thread`.
template <class Tile, int kThreads, bool kFolded = false>
__device__ __forceinline__ void load_tile(u32 base, const GlobalTile& src,
                                          int thread = threadIdx.x) {
  constexpr int kTotal = Tile::kRows * Tile::kChunks;
  static_assert(kTotal % kThreads == 0, "every thread copies the same number of chunks");
  if (src.wide) {
    // More would keep more addresses in registers than attention has left beside its accumulators.
#pragma unroll 2
    for (int index = thread; index < kTotal; index += kThreads) {
      const int row = index / Tile::kChunks;
      const int chunk = index % Tile::kChunks;
      bool inside;
      const i64 place = src.place<kFolded>(row, inside);
      const int valid = inside ? max(0, min(8, src.cols - chunk * 8)) : 0;
      const u16* from = src.data + (valid > 0 ? place * src.row_stride + chunk * 8 : 0);
      ptx::cp_async_16(Tile::address(base, row, chunk), from, valid * 2);
    }
  } else {
#pragma unroll 1
    for (int index = thread; index < kTotal; index += kThreads) {
      const int row = index / Tile::kChunks;
      const int chunk = index % Tile::kChunks;
      bool inside;
      const i64 place = src.place<kFolded>(row, inside);
      u32 word[4];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int col = chunk * 8 + e;
        const u32 x =
            inside && col < src.cols ? src.data[place * src.row_stride + col * src.col_stride] : 0;
        word[e / 2] = e % 2 == 0 ? x : word[e / 2] | x << 16;
      }
      ptx::store_shared_16(Tile::address(base, row, chunk),
                           make_uint4(word[0], word[1], word[2], word[3]));
    }
  }
}

}  // namespace stof
