// Online softmax over score tiles held as mma accumulators, in base 2.
//
// Empty rows: a row that no key was allowed in keeps max = -inf and sum = 0; its output is 0 and
// its log-sum-exp -inf.
#pragma once

#include "ptx/math.cuh"
#include "warp.cuh"

namespace stof::attention {

constexpr float kNegativeInfinity = __builtin_bit_cast(float, 0xff800000u);

// State of the two rows (g and g + 8 of the warp's sixteen) that a thread shares with its quad.
struct OnlineSoftmax {
  float max[2] = {kNegativeInfinity, kNegativeInfinity};
  float sum[2] = {0.f, 0.f};  // of this thread's columns only, until finish()

  // Takes scores in units of log2; turns them into weights 2^(s - max) in place and returns the
  // factors for earlier weights.
  template <int kN>
  __device__ __forceinline__ void update(float (&s)[kN][4], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = max[r];
#pragma unroll
      for (int j = 0; j < kN; ++j) m = fmaxf(m, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      m = warp_max<4>(m);
      const float origin = m == kNegativeInfinity ? 0.f : m;  // keeps -inf - -inf away
      rescale[r] = ptx::exp2(max[r] - origin);
      max[r] = m;
      sum[r] *= rescale[r];
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[j][2 * r + e] = ptx::exp2(s[j][2 * r + e] - origin);
          sum[r] += s[j][2 * r + e];
        }
      }
    }
  }

  __device__ __forceinline__ void finish() {
    sum[0] = warp_sum<4>(sum[0]);
    sum[1] = warp_sum<4>(sum[1]);
  }

  __device__ __forceinline__ float inverse_sum(int r) const {
    return sum[r] == 0.f ? 0.f : 1.f / sum[r];
  }

  // Natural logarithm of the sum of exp(score).
  __device__ __forceinline__ float log_sum_exp(int r) const {
    constexpr float kLn2 = 0.6931471805599453f;
    return sum[r] == 0.f ? kNegativeInfinity : (max[r] + ptx::log2(sum[r])) * kLn2;
  }
};

}  // namespace stof::attention
