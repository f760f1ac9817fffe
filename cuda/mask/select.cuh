// Which block scores of a row are kept: the cut below its `top` highest, one CTA a row.
#pragma once

#include "mask/node.cuh"
#include "mask/score.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof::mask {

// A radix select: each of four passes counts keys by one byte, those that agree with the key of the
// cut in the bytes before. Grid: leading axes times rows.
template <typename T>
struct Select {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kMinBlocks = 4;

  struct Shared {
    u32 bins[kThreads];
    u32 warps[kWarps];
    u32 bin, kept, ties;
  };
  static constexpr int kSmemBytes = sizeof(Shared);

  struct Params {
    const T* scores;
    Cut* cut;  // (lead_a, lead_b, rows); +inf and -1 where nothing is kept
    i64 row_stride, col_stride, lead_a_stride, lead_b_stride;  // in elements
    int lead_b, rows, cols;
    int top;
  };

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    Shared& shared = *reinterpret_cast<Shared*>(smem);
    const u32 lead = blockIdx.x / p.rows;
    const T* scores = p.scores + blockIdx.x % p.rows * p.row_stride +
                      lead / p.lead_b * p.lead_a_stride + lead % p.lead_b * p.lead_b_stride;

    u32 cut = 0;       // its key, as far as it is known
    u32 kept = p.top;  // how many of the keys that agree with it are kept
    u32 ties = 0;      // how many keys agree with it
    for (int shift = 24; shift >= 0; shift -= 8) {
      shared.bins[threadIdx.x] = 0;
      __syncthreads();
      for (int col = threadIdx.x; col < p.cols; col += kThreads) {
        const u32 key = key_at(p, scores, col);
        if (key > kForbiddenKey && (key ^ cut) >> shift >> 8 == 0)
          atomicAdd(&shared.bins[key >> shift & 0xff], 1u);
      }
      __syncthreads();

      // The highest bin first.
      const u32 bin = kThreads - 1 - threadIdx.x;
      const u32 count = shared.bins[bin];
      const Sum sum = scan(count, shared.warps);
      kept = min(kept, sum.total);  // fewer only in the first pass
      if (kept == 0) {
        if (threadIdx.x == 0) p.cut[blockIdx.x] = {score_of_key(0xff800000u), -1};
        return;
      }
      const u32 above = sum.upto - count;
      if (above < kept && kept <= sum.upto) {
        shared.bin = bin;
        shared.kept = kept - above;
        shared.ties = count;
      }
      __syncthreads();
      cut |= shared.bin << shift;
      kept = shared.kept;
      ties = shared.ties;
    }
    const int all = p.cols - 1;
    if (kept == ties) {
      if (threadIdx.x == 0) p.cut[blockIdx.x] = {score_of_key(cut), all};
      return;
    }

    for (int first = 0;; first += kThreads) {
      const int col = first + threadIdx.x;
      const bool tie = col < p.cols && key_at(p, scores, col) == cut;
      const u32 here = __syncthreads_count(tie);
      if (here < kept) {
        kept -= here;
        continue;
      }
      const u32 rank = scan(tie, shared.warps).upto;
      if (tie && rank == kept) p.cut[blockIdx.x] = {score_of_key(cut), col};
      return;
    }
  }

  __device__ static __forceinline__ u32 key_at(const Params& p, const T* scores, int col) {
    const T score = scores[col * p.col_stride];
    if constexpr (sizeof(T) == sizeof(float)) {
      return score_key(score);
    } else {
      return score_key(ptx::to_float(score));
    }
  }

  struct Sum {
    u32 upto, total;
  };

  // Sums over the threads up to this one and over all; between two calls there has to be a barrier.
  __device__ static __forceinline__ Sum scan(u32 x, u32* warps) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const u32 before = __shfl_up_sync(0xffffffffu, x, step);
      if (lane >= step) x += before;
    }
    if (lane == 31) warps[warp] = x;
    __syncthreads();
    u32 before = 0, total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) before += warps[i];
      total += warps[i];
    }
    return {before + x, total};
  }
};

}  // namespace stof::mask
