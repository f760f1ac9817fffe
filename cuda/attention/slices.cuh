// A row's result from those of slices of its keys, added up in an order that depends on nothing but
// their number.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/math.cuh"
#include "types.cuh"
#include "warp.cuh"

namespace stof::attention {

// kDim outputs of a row, kStride floats from one slice's partial result to the next.
template <int kDim, int kStride>
struct Slices {
  static constexpr int kColumns = kDim / 32;  // of a lane: lane, lane + 32, ...
  static constexpr int kAtOnce = 8;           // slices whose outputs are on their way together
  static_assert(kDim % 32 == 0, "whole columns of lanes");
  float top = kLowest, sum = 0.f;
  float o[kColumns];

  // A warp's part: all slices for `top` and `sum`, numbers first, first + step, ... for outputs.
  // `stats` are the row's highest score and sum of weights in the first slice, `outputs` its
  // weighted values. `step` is at most 4.
  __device__ __forceinline__ Slices(const float* outputs, const float* stats, int slices, int first,
                                    int step) {
    const int lane = threadIdx.x % 32, round = kAtOnce * step;
    const auto stats_of = [&](int slice) {
      return *reinterpret_cast<const float2*>(stats + static_cast<i64>(slice) * kStride);
    };
    outputs += lane;
    load(outputs, first, step, slices);  // they need not wait for the highest score
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] = 0.f;
    for (int slice = lane; slice < slices; slice += 32) top = fmaxf(top, stats_of(slice).x);
    top = warp_max(top);
#pragma unroll 1
    for (int base = 0; base < slices; base += round) {
      float share = -1.f;  // no key was allowed in: outputs may not have been written
      if (lane < round && base + lane < slices) {
        const float2 each = stats_of(base + lane);
        if (each.y != 0.f) {
          share = ptx::exp2(each.x - top);
          sum = fmaf(each.y, share, sum);
        }
      }
      if (base > 0) load(outputs, base + first, step, slices);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const float weight = __shfl_sync(0xffffffffu, share, first + u * step);
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
          if (weight >= 0.f) o[i] = fmaf(x[u][i], weight, o[i]);
      }
    }
    sum = warp_sum(sum);
  }

  // Adds the other warps' outputs to those of the first, through `memory`, kDim floats of each.
  __device__ __forceinline__ void join(float* memory, int warp, int warps) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) memory[warp * kDim + lane + 32 * i] = o[i];
    __syncthreads();
#pragma unroll 1
    for (int other = 1; other < warps; ++other)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) o[i] += memory[other * kDim + lane + 32 * i];
  }

 private:
  float x[kAtOnce][kColumns];

  __device__ __forceinline__ void load(const float* outputs, int first, int step, int slices) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int slice = first + u * step;
        x[u][i] = slice < slices ? outputs[static_cast<i64>(slice) * kStride + 32 * i] : 0.f;
      }
  }
};

}  // namespace stof::attention
