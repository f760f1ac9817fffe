// Online softmax over score tiles held as mma accumulators, in base 2.
//
// Weights are 2^(score - origin) where the origin of a row is near its highest score so far. As
// long as no weight exceeds kMost, which loses nothing in a 16-bit float, the origin stays, nothing
// needs to be rescaled, and the lanes that share a row have nothing to tell each other. So weights
// are computed without a look at the scores; only if one is too large, the origin is raised first
// and the tile computed again.
//
// Empty rows: a row that no key was allowed in keeps its first origin and sum = 0; its output is 0
// and its log-sum-exp -inf.
#pragma once

#include "ptx/math.cuh"
#include "types.cuh"
#include "warp.cuh"

namespace stof::attention {

constexpr float kNegativeInfinity = __builtin_bit_cast(float, 0xff800000u);
constexpr float kLowest = -3.402823466e38f;  // an origin before there is any
constexpr float kHighest = -kLowest;
constexpr float kSmallest = 1.17549435e-38f;  // positive and normal
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kLog2e = 1.4426950408889634f;

// Of an origin beyond, a score has to be rounded before it is subtracted: the product inside an FMA
// is not, and exceeds an origin that was rounded by so much that weights are infinite, or all zero.
constexpr float kFar = 16777216.f;  // 2^24, where half a step is 1
__device__ __forceinline__ bool is_far(float origin) {
  return fabsf(origin) > kFar && origin != kLowest;
}

// A sink in base 2. It is finite if it was.
__device__ __forceinline__ float sink_log2(float sink) {
  const float x = sink * kLog2e;
  return x > kHighest && sink <= kHighest ? kHighest : x;
}

// For softcaps. 1 - 2 / (e^2x + 1) loses a small x beside the 1.
__device__ __forceinline__ float tanh(float x) {
  const float y = x * x;
  const float near = x * (1.f - y * (1.f / 3 - y * (2.f / 15 - y * (17.f / 315))));
  const float far = 1.f - 2.f / (ptx::exp2(2.f * kLog2e * x) + 1.f);
  return y < 0.01f ? near : far;
}

// State of the rows g and g + 8 of each of kFragments fragments, which a thread shares with its
// quad.
template <int kFragments>
struct OnlineSoftmax {
  static constexpr float kMost = 16384;
  static constexpr float kSlack = 8;  // in base 2; how far below the highest score an origin stays
  float origin[kFragments][2];
  float sum[kFragments][2];  // of this thread's columns only, until finish()

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        origin[f][r] = kLowest;
        sum[f][r] = 0.f;
      }
  }

  // Looks at scores times `factor`, and moves the origins of a warp's rows if one has to. Whether
  // all of the rows have an origin now; where some have moved that is known only if all begin here.
  // `kSpecial`: outputs that are not finite stay so. `kFused`: scores have not been rounded, so
  // that what a far origin has weighed is wrong. It is lifted above all scores, where far() still
  // sees it when the highest is near.
  template <bool kSpecial, bool kFused, int kN, int kD>
  __device__ __forceinline__ bool raise(const float (&s)[kFragments][kN][4], float factor,
                                        float (&o)[kFragments][kD][4]) {
    float to[kFragments][2];
    bool moved = false, first = true;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float m = fmaxf(s[f][0][2 * r], s[f][0][2 * r + 1]);
#pragma unroll
        for (int j = 1; j < kN; ++j) m = fmaxf(m, fmaxf(s[f][j][2 * r], s[f][j][2 * r + 1]));
        to[f][r] = ptx::multiply(m, factor);
        moved = moved || to[f][r] - origin[f][r] > kSlack;  // the sum might be rounded
      }
    if (!__any_sync(0xffffffffu, moved)) return begun();
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        to[f][r] = fmaxf(origin[f][r], warp_max<4>(to[f][r]));
        if (kFused && is_far(origin[f][r])) to[f][r] = kHighest;
        first = first && origin[f][r] == kLowest && to[f][r] != kLowest;
      }
    first = __all_sync(0xffffffffu, first);
    if (!first) rescale<kSpecial>(to, o);
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) origin[f][r] = to[f][r];
    return first;
  }

  // Turns scores into weights in place and adds these up; false, and nothing is added, if that
  // `may_fail` and a weight of the warp's rows is too large.
  template <int kN>
  __device__ __forceinline__ bool weigh(float (&s)[kFragments][kN][4], float factor,
                                        bool may_fail) {
    float added[kFragments][4];  // a chain of additions for each, which do not wait for each other
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[f][j][e] = ptx::exp2(fmaf(s[f][j][e], factor, -origin[f][e / 2]));
          added[f][e] = j == 0 ? s[f][j][e] : added[f][e] + s[f][j][e];
        }
    bool fits = true;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int e = 0; e < 4; ++e) fits = fits && added[f][e] <= kMost;  // false of NaN
    if (may_fail && __any_sync(0xffffffffu, !fits)) return false;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[f][r] += added[f][2 * r] + added[f][2 * r + 1];
    return true;
  }

  // Fits sums and outputs to other origins.
  template <bool kSpecial, int kD>
  __device__ __forceinline__ void rescale(const float (&to)[kFragments][2],
                                          float (&o)[kFragments][kD][4]) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float share = ptx::exp2(origin[f][r] - to[f][r]);
        sum[f][r] *= share;
        if (kSpecial) share = fmaxf(share, kSmallest);  // 0 * inf would be NaN
#pragma unroll
        for (int j = 0; j < kD; ++j)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) o[f][j][e] *= share;
      }
  }

  // Whether all of the warp's rows have an origin, as they do once they have kept a key.
  __device__ __forceinline__ bool begun() const {
    bool all = true;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) all = all && origin[f][r] != kLowest;
    return __all_sync(0xffffffffu, all);
  }

  // Whether an origin of this thread's rows is far, so that weights are wrong unless scores were
  // rounded.
  __device__ __forceinline__ bool far() const {
    bool any = false;
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) any = any || is_far(origin[f][r]);
    return any;
  }

  // Multiplies scores, each product rounded: then weigh() with a factor of 1 is right for far
  // origins too.
  template <int kN>
  __device__ static __forceinline__ void round(float (&s)[kFragments][kN][4], float factor) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[f][j][e] = ptx::multiply(s[f][j][e], factor);
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[f][r] = warp_sum<4>(sum[f][r]);
  }
};

// What becomes of a row in the end: the factor of its weighted values, and its log-sum-exp.
struct RowResult {
  float factor, lse;

  // `sink`, in base e, is one more score, whose value is 0; -inf: there is none.
  __device__ __forceinline__ RowResult(float origin, float sum, float sink) {
    const float last = sink_log2(sink), top = fmaxf(origin, last);
    const float share = ptx::exp2(origin - top);
    const float total = sum * share + ptx::exp2(last - top);
    factor = total == 0.f ? 0.f : share / total;
    lse = total == 0.f ? kNegativeInfinity : (top + ptx::log2(total)) * kLn2;
    lse = lse < sink ? sink : lse;  // in base 2 it may not be within range
  }
};

}  // namespace stof::attention
