// Online softmax over wgmma accumulators, in base 2, with the scale inside the exponent's FMA.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/math.cuh"
#include "warp.cuh"

namespace stof::attention::sm90 {

// State of the two rows (g and g + 8 of the warp's sixteen) that a lane shares with its quad.
//
// The maximum begins at the lowest finite number instead of -inf, so that it can be subtracted from
// -inf: rows that have seen no key yet need no special case.
struct OnlineSoftmax {
  static constexpr float kLowest = -3.402823466e38f;
  // A row's weights are relative to a maximum that is allowed to lag behind by this much (a factor
  // of 256): the output is rarely rescaled then (FlashAttention-4).
  static constexpr float kLag = 8.f;

  float max[2] = {kLowest, kLowest};  // in units of log2
  float sum[2] = {0.f, 0.f};          // of this lane's columns, until finish()

  // Turns scores into weights and returns the factors for earlier weights; `scale` is positive.
  template <int kCount>
  __device__ __forceinline__ void update(float (&s)[kCount], float scale, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int i = 2 * r + 4; i < kCount; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
      const float reached = fmaxf(max[r], warp_max<4>(top) * scale);
      const float origin = reached - max[r] <= kLag ? max[r] : reached;
      rescale[r] = ptx::exp2(max[r] - origin);
      max[r] = origin;
      float weight = 0.f;
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[i + e] = ptx::exp2(fmaf(s[i + e], scale, -origin));
          weight += s[i + e];
        }
      }
      sum[r] = sum[r] * rescale[r] + weight;
    }
  }

  __device__ __forceinline__ void finish() {
    sum[0] = warp_sum<4>(sum[0]);
    sum[1] = warp_sum<4>(sum[1]);
  }

  __device__ __forceinline__ float inverse_sum(int r) const {
    return sum[r] == 0.f ? 0.f : ptx::reciprocal(sum[r]);
  }

  // Logarithm to base 2 of the sum of exp(score).
  __device__ __forceinline__ float log2_sum_exp(int r) const {
    return sum[r] == 0.f ? kNegativeInfinity : max[r] + ptx::log2(sum[r]);
  }
};

}  // namespace stof::attention::sm90
