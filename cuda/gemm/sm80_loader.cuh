// How an operand of the sm_80 GEMM comes into shared memory.
#pragma once

#include "ptx/cp_async.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::gemm {

// Along which axis a matrix is contiguous, in pieces that are 16-byte aligned.
enum Layout { kAlongK, kAlongRows, kAnyStrides };

// A matrix of 16-bit elements, `rows` of which begin at `data`; strides in elements.
struct Operand {
  const u16* data;
  i64 row, col;
  int rows;  // if folded, of each half; see Chain
  int k;
  int fold;  // from one half of the rows to the other
};

// Fills tiles of kRows x kK, one after the other along K, or of kK x kRows if kAlongRows. A thread
// copies the same 16-byte chunk of every kRowStep-th row.
template <int kRows, int kK, int kThreads, Layout kLayout, bool kFolded>
struct Loader {
  static constexpr bool kTransposed = kLayout == kAlongRows;
  using Tile = stof::Tile<kTransposed ? kK : kRows, kTransposed ? kRows : kK>;
  static constexpr int kRowStep = kThreads / Tile::kChunks;
  static constexpr int kEach = Tile::kRows / kRowStep;
  static_assert(kThreads % Tile::kChunks == 0 && Tile::kRows % kRowStep == 0);
  static_assert(kRowStep % 8 == 0, "a thread's chunks are swizzled alike");
  static_assert(!kFolded || kTransposed || kRowStep % 16 == 0, "and in the same half");
  static_assert(kEach <= 32, "a bit each");

  const u16* from;
  i64 row_step, tile_step;  // elements
  u32 to;                   // in a tile
  u32 inside = 0;           // bit i: its i-th row is one; if not kTransposed
  int chunk_bytes;          // inside, of its rows; if kTransposed
  int k;                    // left, from this thread's first element on

  __device__ __forceinline__ explicit Loader(const Operand& x) {
    const int chunk = threadIdx.x % Tile::kChunks;
    const int first = threadIdx.x / Tile::kChunks;
    to = Tile::address(0, first, chunk);
    if constexpr (kTransposed) {
      const int place = kFolded ? chunk / 2 * 8 : chunk * 8;
      chunk_bytes = bytes(x.rows - place);
      from = x.data + first * x.col + place + (kFolded ? chunk % 2 * x.fold : 0);
      row_step = kRowStep * x.col;
      tile_step = kK * x.col;
      k = x.k - first;
    } else {
      const int place = kFolded ? first / 16 * 8 + first % 8 : first;
      constexpr int kPlaceStep = kFolded ? kRowStep / 2 : kRowStep;
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (place + i * kPlaceStep < x.rows) inside |= 1u << i;
      from = x.data + (place + (kFolded ? first / 8 % 2 * static_cast<i64>(x.fold) : 0)) * x.row +
             chunk * 8;
      row_step = kPlaceStep * x.row;
      tile_step = kK;
      k = x.k - chunk * 8;
    }
  }

  __device__ static __forceinline__ int bytes(int elements) { return max(0, min(8, elements)) * 2; }

  // Starts the `part`-th of `kParts` parts of a tile at shared address `base`.
  template <int kParts>
  __device__ __forceinline__ void start(u32 base, int part) const {
    constexpr int kCount = (kEach + kParts - 1) / kParts;
    const int of_row = kTransposed ? 0 : bytes(k);
#pragma unroll
    for (int i = part * kCount; i < (part + 1) * kCount && i < kEach; ++i) {
      const bool read = kTransposed ? i * kRowStep < k : inside >> i & 1;
      ptx::cp_async_16(base + to + i * (kRowStep * Tile::kCols * 2), from + i * row_step,
                       read ? (kTransposed ? chunk_bytes : of_row) : 0);
    }
  }

  // On to the next tile.
  __device__ __forceinline__ void advance() {
    from += tile_step;
    k -= kK;
  }
};

// Element by element: at once, and by the threads that wait for nothing else.
template <int kRows, int kK, int kThreads, bool kFolded>
struct Loader<kRows, kK, kThreads, kAnyStrides, kFolded> {
  static constexpr bool kTransposed = false;
  using Tile = stof::Tile<kRows, kK>;
  GlobalTile rest;

  __device__ __forceinline__ explicit Loader(const Operand& x)
      : rest{x.data, x.row, x.col, x.rows, x.k, false, x.fold} {}

  template <int kParts>
  __device__ __forceinline__ void start(u32 base, int part) const {
    if (part == 0) load_tile<Tile, kThreads, kFolded>(base, rest);
  }

  __device__ __forceinline__ void advance() {
    rest.data += kK * rest.col_stride;
    rest.cols -= kK;
  }
};

}  // namespace stof::gemm
