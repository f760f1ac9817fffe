// The bits of a lane's scores: which of them count.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/shared.cuh"
#include "types.cuh"

namespace stof::attention::sm90 {

// Of a 64 x kN tile of scores. Bit r * kN / 4 + 2 * j + e is that of the lane's row g + 8 * r,
// column 8 * j + 2 * q + e (stof_cupy/masks/layout.py), so its place is known to the compiler.
template <int kN>
struct MaskBits {
  static constexpr int kWords = (kN / 2 + 31) / 32;
  u32 word[kWords];

  __device__ __forceinline__ void keep_all() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = ~0u;
  }

  __device__ __forceinline__ void load(u32 address) {
    if constexpr (kWords == 2) {
      const uint2 both = ptx::load_shared_8(address);
      word[0] = both.x, word[1] = both.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[i] = ptx::load_shared_4(address + 4 * i);
    }
  }

  // Those of the left or right half of a tile of twice as many columns.
  __device__ __forceinline__ void load_half(u32 address, int half) {
    static_assert(kN == 64, "a word for each of a lane's two rows");
    const uint2 both = ptx::load_shared_8(address);
    word[0] = (both.x >> 16 * half & 0xffff) | both.y >> 16 * half << 16;
  }

  // Keeps columns below `limit` only; q is the lane's place in its quad.
  __device__ __forceinline__ void cut(int limit, int q) {
    const int kept = 2 * (limit / 8) + max(0, min(2, limit % 8 - 2 * q));  // of each row
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      u32 keep = 0;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = r * (kN / 4) - 32 * i;  // where its bits begin, seen from this word
        keep |= below(row + kept) & ~below(row);
      }
      word[i] &= keep;
    }
  }

  __device__ __forceinline__ void mask(float (&s)[kN / 2]) const {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i)
      s[i] = keeps(i / 2 % 2, i / 4, i % 2) ? s[i] : kNegativeInfinity;
  }

  __device__ __forceinline__ bool keeps(int r, int j, int e) const {
    const int bit = r * (kN / 4) + 2 * j + e;
    return word[bit / 32] >> bit % 32 & 1;
  }

  // The bits of a word that lie before `bit`, which need not be in it.
  __device__ static __forceinline__ u32 below(int bit) {
    return bit <= 0 ? 0 : bit >= 32 ? ~0u : (1u << bit) - 1;
  }
};

}  // namespace stof::attention::sm90
