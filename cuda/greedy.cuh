// The token of the highest logit of each sequence, the first of equals, and one more token counted:
// what a token needs from the one before it stays on the device. One CTA a sequence.
#pragma once

#include "types.cuh"
#include "vector.cuh"

namespace stof {

template <typename T>
struct Greedy {
  static constexpr int kThreads = 1024;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSmemBytes = kThreads / 32 * sizeof(u64);

  struct Params {
    const T* logits;  // (sequences, vocabulary)
    i64* tokens;      // (sequences,), and so the others
    int* positions;
    int* lengths;
    i64 row;  // stride of logits in elements
    int vocabulary;
    int wide;  // 16-byte aligned rows
  };

  // Greater for a greater logit, then for a smaller index; NaN is above all, as in NumPy.
  __device__ static __forceinline__ u64 key(float x, int index) {
    const u32 bits = __float_as_uint(x + 0.f);  // no -0
    const u32 order = x != x ? ~0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return u64{order} << 32 | static_cast<u32>(~index);
  }

  __device__ static __forceinline__ u64 highest(u64 best) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const u64 other = __shfl_xor_sync(0xffffffffu, best, step);
      best = other > best ? other : best;
    }
    return best;
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    u64* const of_warps = reinterpret_cast<u64*>(smem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T* const logits = p.logits + blockIdx.x * p.row;
    u64 best = 0;
    for (int c = threadIdx.x * 8; c < p.vocabulary; c += kThreads * 8) {
      const int valid = p.vocabulary - c;
      const auto v = Vector8<T>::load(logits + c, valid, p.wide != 0);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const u64 each = i < valid ? key(v.x[i], c + i) : 0;
        best = each > best ? each : best;
      }
    }
    best = highest(best);
    if (lane == 0) of_warps[warp] = best;
    __syncthreads();
    if (warp > 0) return;
    best = highest(of_warps[lane]);
    if (lane > 0) return;
    p.tokens[blockIdx.x] = static_cast<int>(~static_cast<u32>(best));
    p.positions[blockIdx.x] += 1;
    p.lengths[blockIdx.x] += 1;
  }
};

}  // namespace stof
