// Online softmax over wgmma accumulators, in base 2, with the scale inside the exponent's FMA.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/math.cuh"
#include "warp.cuh"

namespace stof::attention::sm90 {

// State of the two rows (g and g + 8 of the warp's sixteen) that a lane shares with its quad.
//
// The origin, to which weights are relative, begins at the lowest finite number instead of -inf, so
// that it can be subtracted from -inf: rows that have seen no key yet need no special case.
struct OnlineSoftmax {
  static constexpr float kLowest = -3.402823466e38f;
  // The highest score may lie above the origin by this much (a factor of 256): the output is rarely
  // rescaled then (FlashAttention-4).
  static constexpr float kLag = 8.f;
  // What a lane's weights of a tile may come to where nobody has looked at the scores: nothing is
  // lost in a 16-bit float.
  static constexpr float kMost = 16384.f;

  float origin[2] = {kLowest, kLowest};  // in units of log2
  float sum[2] = {0.f, 0.f};             // of this lane's columns, until finish()

  // Whether one of the warp's rows has no origin yet, or one that is far.
  __device__ __forceinline__ bool unsettled() const {
    return __any_sync(0xffffffff, fabsf(origin[0]) > kFar || fabsf(origin[1]) > kFar);
  }

  // Moves origins up to the scores' level, and returns the factors for earlier weights; `scale` is
  // positive. Here and in weigh(), scores are what `s` has times it, plus a row's `shift` if there
  // is one.
  template <int kCount, typename... Shift>
  __device__ __forceinline__ void raise(const float (&s)[kCount], float scale, float (&rescale)[2],
                                        const Shift&... shift) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reached = fmaxf(origin[r], score(warp_max<4>(highest(s, r)), scale, shift[r]...));
      const float to = reached - origin[r] <= kLag ? origin[r] : reached;
      rescale[r] = ptx::exp2(origin[r] - to);
      origin[r] = to;
      sum[r] *= rescale[r];
    }
  }

  // Turns scores into weights, and adds up those of each row's even and odd columns.
  template <int kCount, typename... Shift>
  __device__ __forceinline__ void weigh(float (&s)[kCount], float scale, float (&added)[4],
                                        const Shift&... shift) const {
    const float from[2] = {(shift[0] + ... + -origin[0]), (shift[1] + ... + -origin[1])};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = ptx::exp2(fmaf(s[i], scale, from[i / 2 % 2]));
      added[i % 4] = i < 4 ? s[i] : added[i % 4] + s[i];
    }
  }

  // After raise(): weigh(), unless origins are far. Then it is to be done with a scale of 1 and
  // without a shift, and that is what this makes of the scores and of these.
  template <int kCount, typename... Shift>
  __device__ __forceinline__ void scale_if_far(float (&s)[kCount], float& scale,
                                               Shift&... shift) const {
    if (!unsettled()) return;  // of rows without an origin it does no harm
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = score(s[i], scale, shift[i / 2 % 2]...);
    scale = 1.f;
    ((shift[0] = shift[1] = 0.f), ...);
  }

  __device__ __forceinline__ void add(const float (&added)[4]) {
    sum[0] += added[0] + added[1];
    sum[1] += added[2] + added[3];
  }

  // Of what weigh() gave: whether none of the warp's weights is too large.
  __device__ __forceinline__ static bool fit(const float (&added)[4], float most = kMost) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) all = all && added[i] <= most;  // false of NaN
    return __all_sync(0xffffffff, all);
  }
  // Whether lower() can mend them.
  __device__ __forceinline__ static bool finite(const float (&added)[4]) {
    return fit(added, 8.507059e37f);  // 2^126, whose reciprocal is a normal number
  }

  // Moves the origins up after all, where weights are too large: by powers of 2, so that nothing is
  // rounded.
  template <int kCount>
  __device__ __forceinline__ void lower(float (&s)[kCount], float (&added)[4],
                                        float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 exponent = __builtin_bit_cast(u32, fmaxf(1.f, warp_max<4>(highest(s, r)))) >> 23;
      rescale[r] = __builtin_bit_cast(float, (254 - exponent) << 23);
      origin[r] += static_cast<int>(exponent) - 127;
      sum[r] *= rescale[r];
      added[2 * r] *= rescale[r];
      added[2 * r + 1] *= rescale[r];
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) {
        s[i] *= rescale[r];
        s[i + 1] *= rescale[r];
      }
    }
  }

  __device__ __forceinline__ void finish() {
    sum[0] = warp_sum<4>(sum[0]);
    sum[1] = warp_sum<4>(sum[1]);
  }

  // One more score in each row, in base 2, whose value is 0. Returns by what earlier weights have
  // to be multiplied then.
  __device__ __forceinline__ float admit(int r, float score) {
    const float to = fmaxf(origin[r], score);
    const float share = ptx::exp2(origin[r] - to);
    sum[r] = sum[r] * share + ptx::exp2(score - to);
    origin[r] = to;
    return share;
  }

  __device__ __forceinline__ float inverse_sum(int r) const {
    return sum[r] == 0.f ? 0.f : ptx::reciprocal(sum[r]);
  }

  // Logarithm to base 2 of the sum of exp(score).
  __device__ __forceinline__ float log2_sum_exp(int r) const {
    return sum[r] == 0.f ? kNegativeInfinity : origin[r] + ptx::log2(sum[r]);
  }

  __device__ __forceinline__ static float score(float x, float scale) {
    return ptx::multiply(x, scale);
  }
  __device__ __forceinline__ static float score(float x, float scale, float shift) {
    return fmaf(x, scale, shift);
  }

  // Of a row's scores in this lane.
  template <int kCount>
  __device__ __forceinline__ static float highest(const float (&s)[kCount], int r) {
    float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int i = 2 * r + 4; i < kCount; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    return top;
  }
};

}  // namespace stof::attention::sm90
