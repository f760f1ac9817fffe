// Adds up the partial results of query tiles whose lists sm80.cuh took in slices, always in the
// same order. One warp a row.
#pragma once

#include "attention/params.cuh"
#include "attention/shape.cuh"
#include "attention/softmax.cuh"
#include "attention/work.cuh"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kHeadDim, class Shape, bool kPacked = false>
struct Combine {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kColumns = kHeadDim / 32;  // of a lane
  using Params = attention::Params<T>;
  using Work = attention::Work<Params, Shape, kPacked>;

  __device__ static __forceinline__ void run(const Params& p, char*) {
    if (p.overflow != nullptr && *p.overflow != 0) return;  // it is all NaN
    constexpr int kBlocks = Shape::kRows / kWarps;          // of a query tile
    const u32 tile = blockIdx.x / kBlocks;
    const int groups = p.heads / p.pack;
    const u32 group = tile / p.long_slots;
    const Work work(p, group / groups, group % groups, tile % p.long_slots);
    const int at = blockIdx.x % kBlocks * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = work.row0 + at;
    const int query = work.query(p, row), head = work.head_of(p, row);
    if (work.slices == 1 || query >= p.seq_q) return;

    constexpr int kFloats = Shape::kRows * (kHeadDim + 2);
    const float* part = p.partial + work.partial(p, 0) * kFloats;
    const float* stats = part + Shape::kRows * kHeadDim + 2 * at;
    part += at * kHeadDim + lane;

    float top = kLowest;
    for (int slice = 0; slice < work.slices; ++slice)
      top = fmaxf(top, stats[static_cast<i64>(slice) * kFloats]);
    float sum = 0.f;
    float o[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] = 0.f;
#pragma unroll 4
    for (int slice = 0; slice < work.slices; ++slice) {
      const i64 offset = static_cast<i64>(slice) * kFloats;
      const float share = ptx::exp2(stats[offset] - top);
      sum = fmaf(stats[offset + 1], share, sum);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) o[i] = fmaf(part[offset + 32 * i], share, o[i]);
    }
    const RowResult result(top, sum, p.sinks ? p.sinks[head] : kNegativeInfinity);
    T* to = p.out + work.batch * p.out_batch + head * p.out_head + query * p.out_row;
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if (lane + 32 * i < p.dim_v) to[lane + 32 * i] = ptx::from_float<T>(o[i] * result.factor);
    if (p.lse != nullptr && lane == 0)
      p.lse[(work.batch * p.heads + head) * p.seq_q + query] = result.lse;
  }
};

}  // namespace stof::attention
