// The key tiles of a CTA's list, and what a tile's bits do to its scores.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/shared.cuh"
#include "types.cuh"

namespace stof::attention {

struct KeyTile {
  int col;
  int bitmap_id;  // -1: a full tile
};

// A list of key tiles. Its entries go to shared memory beside the tiles, a few ahead, so that
// reading them neither waits for global memory nor takes registers.
template <class Params, int kSlots>
struct KeyTiles {
  static constexpr int kBytes = kSlots * sizeof(KeyTile);
  static_assert((kSlots & (kSlots - 1)) == 0);
  const Params& p;
  const u32 smem;

  // Starts to copy entry i; one thread is enough.
  __device__ __forceinline__ void fetch(int i, int end) const {
    if (p.row_ptr == nullptr || threadIdx.x != 0 || i >= end) return;
    const u32 to = smem + i % kSlots * sizeof(KeyTile);
    ptx::cp_async_4(to, p.cols + i);
    ptx::cp_async_4(to + 4, p.bitmap_id + i);
  }

  // Entry i, from global memory; and once its copy is there, from shared memory.
  __device__ __forceinline__ KeyTile read(int i) const {
    if (p.row_ptr == nullptr) return {i, -1};
    return {p.cols[i], p.bitmap_id[i]};
  }
  __device__ __forceinline__ KeyTile operator[](int i) const {
    if (p.row_ptr == nullptr) return {i, -1};
    const uint2 entry = ptx::load_shared_8(smem + i % kSlots * sizeof(KeyTile));
    return {static_cast<int>(entry.x), static_cast<int>(entry.y)};
  }
};

// The bits of a thread's scores of kFragments fragments by 64 keys, see mask/accumulator.cuh: bit
// 16 * r + 2 * j + e is element e of column group j in row g + 8 * r.
template <int kFragments>
struct KeepBits {
  u32 word[kFragments];

  // Of a warp whose rows begin at `row` of the query tile, whose bits are in shared memory. Packed
  // heads: these are the bits of a mask's tile, and a row has those of its query.
  template <bool kPacked, class Params, class Work>
  __device__ __forceinline__ void load(const Params& p, const Work& work, u32 smem, int row,
                                       int lane) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      if constexpr (!kPacked) {
        word[f] = ptx::load_shared_4(smem + ((row / 16 + f) * 32 + lane) * 4);
      } else {
        u32 half[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          // Rows beyond the last are never stored.
          const int at = work.row0 + row + 16 * f + 8 * r + (lane >> 2);
          const int query = min(work.query(p, at), p.seq_q - 1);
          const int index = query / 16 * 32 + query % 8 * 4 + (lane & 3);
          half[r] = ptx::load_shared_4(smem + 4 * index) >> (query & 8) * 2 & 0xffff;
        }
        word[f] = half[0] | half[1] << 16;
      }
    }
  }

  __device__ __forceinline__ void fill() {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) word[f] = 0xffffffffu;
  }

  // Leaves the first `keys` keys of the tile.
  __device__ __forceinline__ void limit(int keys, int lane) {
    keys = max(0, min(keys, 64));
    const u32 bits = 2 * (keys / 8) + max(0, min(keys % 8 - 2 * (lane & 3), 2));
    const u32 row = (1u << bits) - 1;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) word[f] &= row | row << 16;
  }

  __device__ __forceinline__ void apply(float (&s)[kFragments][8][4]) const {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (!(word[f] >> (e / 2 * 16 + 2 * j + e % 2) & 1)) s[f][j][e] = kNegativeInfinity;
  }

  // The opposite: a bit for each score that is not -inf.
  __device__ __forceinline__ void read(const float (&s)[kFragments][8][4]) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      word[f] = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (s[f][j][e] != kNegativeInfinity) word[f] |= 1u << (e / 2 * 16 + 2 * j + e % 2);
    }
  }

  // All 64 bits of a row, of which each lane of a quad has sixteen.
  __device__ __forceinline__ u64 row(int f, int r, int lane) const {
    u64 bits = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      bits |= static_cast<u64>(word[f] >> (16 * r + 2 * j) & 3) << (8 * j);
    bits <<= 2 * (lane & 3);
    bits |= __shfl_xor_sync(0xffffffffu, bits, 1);
    return bits | __shfl_xor_sync(0xffffffffu, bits, 2);
  }
};

}  // namespace stof::attention
