// The key tiles of a CTA's list, and what a tile's bits do to its scores.
#pragma once

#include "attention/softmax.cuh"
#include "types.cuh"

namespace stof::attention {

struct KeyTile {
  int col;
  int bitmap_id;  // -1: a full tile
};

// What a warp comes to first.
struct FirstTiles {
  KeyTile tile, next;
};

constexpr int kNoTile = 0x7fffffff >> 6;  // number of a key tile beyond the last

// Entry i of the list of key tiles, or none from `end` on.
template <class Params>
__device__ __forceinline__ KeyTile key_tile(const Params& p, int i, int end) {
  if (i >= end) return {kNoTile, -1};
  if (p.row_ptr == nullptr) return {i, -1};
  return {p.cols[i], p.bitmap_id[i]};
}

// The bits of a thread's scores of kFragments fragments by 64 keys, see mask/accumulator.cuh: bit
// 16 * r + 2 * j + e is element e of column group j in row g + 8 * r.
template <int kFragments>
struct KeepBits {
  u32 word[kFragments];

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

  // Bits 0 and 16: whether the rows g and g + 8 of fragment f keep a key, which a lane of the quad
  // knows.
  __device__ __forceinline__ u32 of(int f, int key, int lane) const {
    const u32 all = __shfl_sync(0xffffffffu, word[f], (lane & ~3) | (key >> 1 & 3));
    return all >> (2 * (key >> 3) + (key & 1));
  }
};

// Where in a bitmap a thread's bits are. Packed heads: the bitmap is that of a mask's tile, and a
// row of the query tile has the bits of its query.
template <int kFragments, bool kPacked>
class BitsAt {
  int at[kPacked ? 2 * kFragments : 1];

 public:
  // Of a warp whose rows begin at `row` of the query tile.
  template <class Params, class Work>
  __device__ __forceinline__ BitsAt(const Params& p, const Work& work, int row, int lane) {
    if constexpr (!kPacked) {
      at[0] = (work.row0 % p.mask_rows + row) * 2 + lane;
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kFragments; ++i) {
        // Rows beyond the last are never stored.
        const int query = min(work.query(p, work.row0 + row + 8 * i + (lane >> 2)), p.seq_q - 1);
        // Twice the place of the word, and which half of it.
        at[i] = 2 * (query / 16 * 32 + query % 8 * 4 + (lane & 3)) + (query >> 3 & 1);
      }
    }
  }

  // Those of a tile, all of a full one.
  template <class Params>
  __device__ __forceinline__ KeepBits<kFragments> operator()(const Params& p,
                                                             const KeyTile& tile) const {
    KeepBits<kFragments> bits;
    bits.fill();
    if (tile.bitmap_id < 0) return bits;
    const u32* map = p.bitmaps + tile.bitmap_id * (2ll * p.mask_rows);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      if constexpr (!kPacked) {
        bits.word[f] = map[at[0] + 32 * f];
      } else {
        u32 half[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int where = at[2 * f + r];
          half[r] = map[where >> 1] >> (where & 1) * 16 & 0xffff;
        }
        bits.word[f] = half[0] | half[1] << 16;
      }
    }
    return bits;
  }
};

}  // namespace stof::attention
