// Adds up the results of query tiles whose lists the sm_90a attention took in slices, always in the
// same order. One warp a row.
#pragma once

#include "attention/sm90_epilogue.cuh"
#include "attention/sm90_scheduler.cuh"
#include "attention/sm90_shape.cuh"
#include "attention/softmax.cuh"
#include "pipeline.cuh"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kDimV, int kM>
struct Sm90Combine {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kColumns = kDimV / 32;  // of a lane
  static_assert(kDimV % 32 == 0, "whole columns of lanes");
  using Params = sm90::Params<T>;

  __device__ static __forceinline__ void run(const Params& p, char*) {
    constexpr int kBlocks = kM / kWarps;  // of a query tile
    const int tile = blockIdx.x / kBlocks, all_heads = p.batch * p.heads;
    const int of_all = tile % all_heads, batch = of_all / p.heads, head = of_all % p.heads;
    const i64 mask = sm90::mask_number(p, batch, head);
    const int q_tile = sm90::work_at(p, mask, tile / all_heads, ceil_div(p.seq_q, kM)).x;
    const int at = blockIdx.x % kBlocks * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int query = q_tile * kM + at;
    if (query >= p.seq_q) return;

    constexpr int kFloats = kM * (kDimV + 2);
    const float* part = p.partial + static_cast<i64>(tile) * p.splits * kFloats;
    const float* stats = part + kM * kDimV + 2 * at;
    part += at * kDimV + lane;

    float top = kLowest;
    for (int slice = 0; slice < p.splits; ++slice)
      top = fmaxf(top, stats[static_cast<i64>(slice) * kFloats]);
    float sum = 0.f;
    float o[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] = 0.f;
#pragma unroll 4
    for (int slice = 0; slice < p.splits; ++slice) {
      const i64 offset = static_cast<i64>(slice) * kFloats;
      const float share = ptx::exp2(stats[offset] - top);
      if (stats[offset + 1] == 0.f) continue;  // no key was allowed in
      sum = fmaf(stats[offset + 1], share, sum);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) o[i] = fmaf(part[offset + 32 * i], share, o[i]);
    }
    const RowResult row(top, sum, p.sinks ? p.sinks[head] : kNegativeInfinity);
    const bool poison = p.overflow != nullptr && *p.overflow != 0;
    const float factor = poison ? sm90::kNaN : row.factor;
    T* to = p.out + batch * p.out_batch + head * p.out_head + query * p.out_row;
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if (lane + 32 * i < p.dim_v) to[lane + 32 * i] = ptx::from_float<T>(o[i] * factor);
    if (p.lse != nullptr && lane == 0)
      p.lse[static_cast<i64>(of_all) * p.seq_q + query] = poison ? sm90::kNaN : row.lse;
  }
};

}  // namespace stof::attention
