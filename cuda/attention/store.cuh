// What a CTA of sm80.cuh writes: outputs, or the partial result of a slice.
#pragma once

#include "attention/params.cuh"
#include "attention/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kHeadDim, class Shape, bool kPacked, class Work>
struct Store {
  using Params = attention::Params<T>;
  using QTile = Tile<Shape::kRows, kHeadDim>;
  static constexpr int kFragments = Shape::kFragments;
  static constexpr int kOutputs = kHeadDim / 8;
  using Output = float[kFragments][kOutputs][4];
  using Softmax = OnlineSoftmax<kFragments>;

  // The warp's rows, by way of its part of a Q tile at `smem`, which nobody else uses any more.
  __device__ static __forceinline__ void outputs(const Params& p, const Work& work, u32 smem,
                                                 const Output& o, const Softmax& softmax) {
    const int thread = ptx::opaque(Shape::thread()), lane = thread % 32;
    const int warp_row = thread / 32 * Shape::kWarpRows, row0 = work.row0 + warp_row;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = 16 * f + 8 * r + (lane >> 2);
        const int query = work.query(p, row0 + at), head = work.head_of(p, row0 + at);
        const bool valid = query < p.seq_q;
        const float sink = valid && p.sinks ? p.sinks[head] : kNegativeInfinity;
        const RowResult row(softmax.origin[f][r], softmax.sum[f][r], sink);
        if (valid && p.lse && (lane & 3) == 0)
          p.lse[(work.batch * p.heads + head) * p.seq_q + query] = row.lse;
        const u32 to = QTile::address(smem, warp_row + at, 0) + 4 * (lane & 3);
#pragma unroll
        for (int j = 0; j < kOutputs; ++j)
          ptx::store_shared_4(QTile::further(to, j), ptx::pack<T>(o[f][j][2 * r] * row.factor,
                                                                  o[f][j][2 * r + 1] * row.factor));
      }
    __syncwarp();
    constexpr int kLanes = QTile::kChunks % 8 == 0 ? 8 : 4, kStep = 32 / kLanes;
    if (!kPacked && p.wide_out && p.dim_v == kHeadDim && row0 + Shape::kWarpRows <= p.seq_q) {
      const int chunk = lane % kLanes;
      T* to = p.out + work.batch * p.out_batch + work.head * p.out_head +
              (row0 + lane / kLanes) * p.out_row + 8 * chunk;
#pragma unroll
      for (int i = 0; i < Shape::kWarpRows; i += kStep, to += kStep * p.out_row)
#pragma unroll
        for (int c = 0; c < QTile::kChunks; c += kLanes)
          *reinterpret_cast<uint4*>(to + 8 * c) =
              ptx::load_shared_16(QTile::address(smem, warp_row + i + lane / kLanes, c + chunk));
      return;
    }
#pragma unroll 1
    for (int i = lane; i < Shape::kWarpRows * QTile::kChunks; i += 32) {
      const int at = i / QTile::kChunks, chunk = i % QTile::kChunks;
      const int query = work.query(p, row0 + at);
      const int valid = p.dim_v - 8 * chunk;
      if (query >= p.seq_q || valid <= 0) continue;
      const uint4 x = ptx::load_shared_16(QTile::address(smem, warp_row + at, chunk));
      T* to = p.out + work.batch * p.out_batch + work.head_of(p, row0 + at) * p.out_head +
              query * p.out_row + 8 * chunk;
      if (p.wide_out && valid >= 8) {
        *reinterpret_cast<uint4*>(to) = x;
      } else {
        const u32 word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (e < valid) to[e] = {static_cast<u16>(word[e / 2] >> e % 2 * 16)};
      }
    }
  }

  // A slice's result, see Work::partial.
  __device__ static __forceinline__ void partial(const Params& p, const Work& work, const Output& o,
                                                 const Softmax& softmax) {
    const int thread = ptx::opaque(Shape::thread()), lane = thread % 32;
    const int warp_row = thread / 32 * Shape::kWarpRows;
    constexpr int kRows = Work::kRows;
    float* to = p.partial + work.partial(p, work.split) * (kRows * (kHeadDim + 2));
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = work.row0 + warp_row + 16 * f + 8 * r + (lane >> 2), row = at % kRows;
        if (at >= p.seq_q * p.pack) continue;
#pragma unroll
        for (int j = 0; j < kOutputs; ++j)
          *reinterpret_cast<float2*>(to + row * kHeadDim + 8 * j + 2 * (lane & 3)) =
              make_float2(o[f][j][2 * r], o[f][j][2 * r + 1]);
        if ((lane & 3) == 0)
          *reinterpret_cast<float2*>(to + kRows * kHeadDim + 2 * row) =
              make_float2(softmax.origin[f][r], softmax.sum[f][r]);
      }
  }

  // All of a query tile's output, where nothing right can be computed.
  __device__ static void nan(const Params& p, const Work& work) {
    const float nan = __int_as_float(0x7fffffff);
    for (int i = threadIdx.x; i < Shape::kRows * p.dim_v; i += Shape::kThreads * Shape::kGroups) {
      const int row = work.row0 + i / p.dim_v, col = i % p.dim_v;
      const i64 query = work.query(p, row), head = work.head_of(p, row);
      if (query >= p.seq_q) break;
      p.out[work.batch * p.out_batch + head * p.out_head + query * p.out_row + col] =
          ptx::from_float<T>(nan);
      if (p.lse != nullptr && col == 0)
        p.lse[(work.batch * p.heads + head) * p.seq_q + query] = nan;
    }
  }
};

}  // namespace stof::attention
