// Adds up the results of query tiles whose lists the sm_90a attention took in slices.
#pragma once

#include "attention/slices.cuh"
#include "attention/sm90_epilogue.cuh"
#include "attention/sm90_scheduler.cuh"
#include "attention/sm90_shape.cuh"
#include "attention/softmax.cuh"
#include "pipeline.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kDimV, int kM, int kRowWarps>
struct Sm90Combine {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRows = kWarps / kRowWarps;
  static_assert(kRowWarps == 1 || kRowWarps == kWarps, "all of a CTA come to a barrier or none");
  static constexpr int kSmemBytes = kRowWarps > 1 ? kWarps * kDimV * 4 : 0;
  static constexpr int kFloats = kM * (kDimV + 2);  // of a partial result
  using Params = sm90::Params<T>;
  using Slices = attention::Slices<kDimV, kFloats, kRowWarps>;

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    constexpr int kBlocks = kM / kRows;  // of a query tile
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tile = blockIdx.x / kBlocks, all_heads = p.batch * p.heads;
    const int of_all = tile % all_heads, batch = of_all / p.heads, head = of_all % p.heads;
    const i64 mask = sm90::mask_number(p, batch, head);
    const int q_tile = sm90::work_at(p, mask, tile / all_heads, ceil_div(p.seq_q, kM)).x;
    const int at = blockIdx.x % kBlocks * kRows + warp / kRowWarps;
    const int query = q_tile * kM + at;
    if (query >= p.seq_q) return;

    const float* part = p.partial + static_cast<i64>(tile) * p.splits * kFloats;
    const float* stats = part + kM * kDimV + 2 * at;
    Slices all(part + at * kDimV, stats, p.splits);
    if constexpr (kRowWarps > 1) {
      all.join(reinterpret_cast<float*>(memory));
      if (warp > 0) return;
    }
    const RowResult row(all.top, all.sum, p.sinks ? p.sinks[head] : kNegativeInfinity);
    const bool poison = p.overflow != nullptr && *p.overflow != 0;
    const float factor = poison ? sm90::kNaN : row.factor;
    T* to = p.out + batch * p.out_batch + head * p.out_head + query * p.out_row;
#pragma unroll
    for (int i = 0; i < Slices::kColumns; ++i)
      if (lane + 32 * i < p.dim_v) to[lane + 32 * i] = ptx::from_float<T>(all.o[i] * factor);
    if (p.lse != nullptr && lane == 0)
      p.lse[static_cast<i64>(of_all) * p.seq_q + query] = poison ? sm90::kNaN : row.lse;
  }
};

}  // namespace stof::attention
