// The token of the highest logit of each sequence, the first of equals, and one more token counted:
// what a token needs from the one before it stays on the device. One CTA a sequence or several, of
// which the last to arrive looks at what all have found.
#pragma once

#include "ptx/global.cuh"
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
    u64* partial;   // (sequences, blocks), if there are several
    int* counters;  // (sequences,), left as they were found: 0
    i64 row;        // stride of logits in elements
    int vocabulary;
    int wide;    // 16-byte aligned rows
    int blocks;  // CTAs of a sequence
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
    const int sequence = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks;
    const T* const logits = p.logits + sequence * p.row;
    u64 best = 0;
    for (int c = (block * kThreads + threadIdx.x) * 8; c < p.vocabulary;
         c += p.blocks * kThreads * 8) {
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
    if (p.blocks > 1 && !joined(p, sequence, block, best)) return;
    if (lane > 0) return;
    p.tokens[sequence] = static_cast<int>(~static_cast<u32>(best));
    p.positions[sequence] += 1;
    p.lengths[sequence] += 1;
  }

  // Lets `best` be that of all CTAs of a sequence, by a warp; false if some are yet to come.
  __device__ static __forceinline__ bool joined(const Params& p, int sequence, int block,
                                                u64& best) {
    const int lane = threadIdx.x % 32;
    u64* const all = p.partial + static_cast<i64>(sequence) * p.blocks;
    bool last = false;
    if (lane == 0) {
      all[block] = best;
      last = ptx::arrive(p.counters + sequence) == p.blocks - 1;
      if (last) p.counters[sequence] = 0;
    }
    __syncwarp();
    if (!__any_sync(0xffffffffu, last)) return false;
    for (int i = lane; i < p.blocks; i += 32) {
      const uint2 each = ptx::load_l2_8(all + i);
      const u64 other = u64{each.y} << 32 | each.x;
      best = other > best ? other : best;
    }
    best = highest(best);
    return true;
  }
};

}  // namespace stof
