// A row's result from those of slices of its keys, added up in an order that depends on nothing but
// their number.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/math.cuh"
#include "types.cuh"
#include "warp.cuh"

namespace stof::attention {

// kDim outputs of a row, kStride floats from one slice's partial result to the next. kWarps share
// a row: one where there are many rows and what counts are instructions, more where there are many
// slices and what counts is that all of them are on their way at once.
template <int kDim, int kStride, int kWarps>
struct Slices {
  static constexpr int kColumns = kDim / 32;  // of a lane: lane, lane + 32, ...
  static constexpr int kAtOnce = 8;           // slices of a warp in a round
  static constexpr int kRound = kAtOnce * kWarps;
  static_assert(kDim % 32 == 0 && kRound <= 32, "whole columns of lanes, a lane for each slice");
  float top = kLowest, sum = 0.f;
  float o[kColumns];

  // `stats` are the row's highest score and sum of weights in the first slice, `outputs` its
  // weighted values. Every warp gets all of `top` and `sum`, and its share of the outputs.
  __device__ __forceinline__ Slices(const float* outputs, const float* stats, int slices) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] = 0.f;
    outputs += threadIdx.x % 32;
    if constexpr (kWarps == 1)
      in_turn(outputs, stats, slices);
    else
      in_rounds(outputs, stats, slices);
  }

  // Adds the other warps' outputs to those of the first, through `memory`, kDim floats of each.
  __device__ __forceinline__ void join(float* memory) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) memory[warp * kDim + lane + 32 * i] = o[i];
    __syncthreads();
#pragma unroll
    for (int other = 1; other < kWarps; ++other)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) o[i] += memory[other * kDim + lane + 32 * i];
  }

 private:
  __device__ static __forceinline__ float2 stats_of(const float* stats, int slice) {
    return *reinterpret_cast<const float2*>(stats + static_cast<i64>(slice) * kStride);
  }

  __device__ __forceinline__ void in_turn(const float* outputs, const float* stats, int slices) {
    for (int slice = 0; slice < slices; ++slice) top = fmaxf(top, stats_of(stats, slice).x);
#pragma unroll 4
    for (int slice = 0; slice < slices; ++slice, outputs += kStride) {
      const float2 each = stats_of(stats, slice);
      if (each.y == 0.f) continue;  // no key was allowed in: outputs may not have been written
      const float share = ptx::exp2(each.x - top);
      sum = fmaf(each.y, share, sum);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) o[i] = fmaf(outputs[32 * i], share, o[i]);
    }
  }

  __device__ __forceinline__ void in_rounds(const float* outputs, const float* stats, int slices) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x[kAtOnce][kColumns];
    const auto load = [&](int first) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u)
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          const int slice = first + u * kWarps;
          x[u][i] = slice < slices ? outputs[static_cast<i64>(slice) * kStride + 32 * i] : 0.f;
        }
    };
    load(warp);  // that need not wait for the highest score
    for (int slice = lane; slice < slices; slice += 32) top = fmaxf(top, stats_of(stats, slice).x);
    top = warp_max(top);
#pragma unroll 1
    for (int base = 0; base < slices; base += kRound) {
      float share = -1.f;  // no key was allowed in
      if (lane < kRound && base + lane < slices) {
        const float2 each = stats_of(stats, base + lane);
        if (each.y != 0.f) {
          share = ptx::exp2(each.x - top);
          sum = fmaf(each.y, share, sum);
        }
      }
      if (base > 0) load(base + warp);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const float weight = __shfl_sync(0xffffffffu, share, warp + u * kWarps);
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
          if (weight >= 0.f) o[i] = fmaf(x[u][i], weight, o[i]);
      }
    }
    sum = warp_sum(sum);
  }
};

}  // namespace stof::attention
