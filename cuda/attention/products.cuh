// The two products of attention on mma.sync, from tiles in shared memory.
#pragma once

#include "attention/shape.cuh"
#include "ptx/convert.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::attention {

// Of a warp: its Shape::kWarpRows rows by a tile's keys.
template <typename T, int kHeadDim, class Shape>
struct Products {
  static constexpr int kFragments = Shape::kFragments;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kColumns = Shape::kKeys / 8;  // mma tiles along the keys
  static constexpr int kOutputs = kHeadDim / 8;
  static constexpr int kValues = kFragments * kOutputs * 4;  // of the output, of a thread
  static constexpr int kPitch = kHeadDim * 2;                // bytes
  using QTile = Tile<Shape::kRows, kHeadDim>;
  using KvTile = Tile<Shape::kKeys, kHeadDim>;
  using Fragment = u32[4];
  using Queries = Fragment[kFragments][Shape::kQInRegisters ? kSteps : 1];
  using Scores = float[kFragments][kColumns][4];
  using Weights = u32[kFragments][kColumns / 2][4];
  using Output = float[kFragments][kOutputs][4];

  u32 lane_q, lane_k, lane_v;  // what ldmatrix takes from a lane, in tiles at address 0
  Queries q;
  Output o;

  __device__ __forceinline__ Products() {
    const int lane = threadIdx.x % 32, row = Shape::thread() / 32 * Shape::kWarpRows;
    lane_q = QTile::address(0, row + (lane & 15), lane >> 4);
    lane_k = KvTile::address(0, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
    lane_v = KvTile::address(0, lane & 15, lane >> 4);
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < kOutputs; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[f][j][e] = 0.f;
  }

  // Takes Q from shared memory to registers.
  __device__ __forceinline__ void keep_q(u32 smem_q) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
        ptx::ldmatrix_x4(q[f][step], QTile::further(smem_q + lane_q, 2 * step) + f * 16 * kPitch);
  }

  // S = Q K^T.
  __device__ __forceinline__ void multiply(Scores& s, u32 smem_q, u32 smem_k) {
    const u32 at_q = smem_q + lane_q, at_k = smem_k + lane_k;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[f][j][e] = 0.f;
#pragma unroll(Shape::kQInRegisters ? kSteps : kHeadDim > 128 ? 1 : 2)
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (!Shape::kQInRegisters) {
#pragma unroll
        for (int f = 0; f < kFragments; ++f)
          ptx::ldmatrix_x4(q[f][0], QTile::further(at_q, 2 * step) + f * 16 * kPitch);
      }
#pragma unroll
      for (int j = 0; j < kColumns / 2; ++j) {
        Fragment b;  // {k-low, k-high} of columns 16j..16j+7, then of 16j+8..16j+15
        ptx::ldmatrix_x4(b, KvTile::further(at_k, 2 * step) + j * 16 * kPitch);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          const Fragment& a = q[f][Shape::kQInRegisters ? step : 0];
          ptx::mma_m16n8k16<T>(s[f][2 * j], a, b[0], b[1]);
          ptx::mma_m16n8k16<T>(s[f][2 * j + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // The accumulators of S, packed in order, are P's operand fragments.
  __device__ static __forceinline__ void pack(Weights& a, const Scores& s) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float (&from)[4] = s[f][2 * i + e / 2];
          a[f][i][e] = ptx::pack<T>(from[e % 2 * 2], from[e % 2 * 2 + 1]);
        }
  }

  // O += P V.
  __device__ __forceinline__ void accumulate(const Weights& a, u32 smem_v) {
    const u32 at = smem_v + lane_v;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i)
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        Fragment b;
        ptx::ldmatrix_x4_trans(b, KvTile::further(at, 2 * j) + i * 16 * kPitch);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          ptx::mma_m16n8k16<T>(o[f][2 * j], a[f][i], b[0], b[1]);
          ptx::mma_m16n8k16<T>(o[f][2 * j + 1], a[f][i], b[2], b[3]);
        }
      }
  }

  // Whether all of a thread's outputs are finite.
  __device__ __forceinline__ bool finite() const {
    float zero[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < kOutputs; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) zero[e] = fmaf(o[f][j][e], 0.f, zero[e]);
    return zero[0] + zero[1] + zero[2] + zero[3] == 0.f;
  }
};

}  // namespace stof::attention
