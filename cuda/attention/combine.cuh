// Adds up the partial results of query tiles whose lists sm80.cuh took in slices.
#pragma once

#include "attention/params.cuh"
#include "attention/shape.cuh"
#include "attention/slices.cuh"
#include "attention/softmax.cuh"
#include "attention/work.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kHeadDim, class Shape, bool kPacked, int kRowWarps>
struct Combine {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRows = kWarps / kRowWarps;
  static_assert(kRowWarps == 1 || kRowWarps == kWarps, "all of a CTA come to a barrier or none");
  static constexpr int kSmemBytes = kRowWarps > 1 ? kWarps * kHeadDim * 4 : 0;
  static constexpr int kFloats = Shape::kRows * (kHeadDim + 2);  // of a partial result
  using Params = attention::Params<T>;
  using Work = attention::Work<Params, Shape, kPacked>;
  using Slices = attention::Slices<kHeadDim, kFloats, kRowWarps>;

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    if (p.overflow != nullptr && *p.overflow != 0) return;  // it is all NaN
    constexpr int kBlocks = Shape::kRows / kRows;           // of a query tile
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 tile = blockIdx.x / kBlocks;
    const int groups = p.heads / p.pack;
    const u32 group = tile / p.long_slots;
    const Work work(p, group / groups, group % groups, tile % p.long_slots);
    const int at = blockIdx.x % kBlocks * kRows + warp / kRowWarps;
    const int row = work.row0 + at;
    const int query = work.query(p, row), head = work.head_of(p, row);
    if (work.slices == 1 || query >= p.seq_q) return;

    const float* part = p.partial + work.partial(p, 0) * kFloats;
    const float* stats = part + Shape::kRows * kHeadDim + 2 * at;
    Slices all(part + at * kHeadDim, stats, work.slices);
    if constexpr (kRowWarps > 1) {
      all.join(reinterpret_cast<float*>(memory));
      if (warp > 0) return;
    }
    const RowResult result(all.top, all.sum, p.sinks ? p.sinks[head] : kNegativeInfinity);
    T* to = p.out + work.batch * p.out_batch + head * p.out_head + query * p.out_row;
#pragma unroll
    for (int i = 0; i < Slices::kColumns; ++i)
      if (lane + 32 * i < p.dim_v) to[lane + 32 * i] = ptx::from_float<T>(all.o[i] * result.factor);
    if (p.lse != nullptr && lane == 0)
      p.lse[(work.batch * p.heads + head) * p.seq_q + query] = result.lse;
  }
};

}  // namespace stof::attention
