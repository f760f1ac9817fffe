// Comparisons of block scores. Plain C++, as mask/leaves.cuh.
//
// As integers in the order of the numbers: comparisons of floats would take subnormal ones for
// zero, because all kernels are compiled with -ftz=true.
#pragma once

#include "mask/bits.cuh"
#include "mask/node.cuh"
#include "types.cuh"

namespace stof::mask {

constexpr u32 kNanKey = 0;                 // of all NaN, below all others
constexpr u32 kForbiddenKey = 0x007fffff;  // of -inf
constexpr u32 kZeroKey = 0x80000000;       // of both zeros

__device__ inline u32 score_key(float score) {
  union {
    float from;
    u32 to;
  } same = {score};
  const u32 magnitude = same.to & 0x7fffffff;
  if (magnitude > 0x7f800000) return kNanKey;
  if (magnitude == 0) return kZeroKey;
  return same.to >> 31 ? ~same.to : same.to | kZeroKey;
}

__device__ inline float score_of_key(u32 key) {
  return float_of_bits(key >> 31 ? key & 0x7fffffff : ~key);
}

// Whether a cut keeps the score of a column; never NaN or -inf.
__device__ inline bool keeps(const Cut& cut, float score, int col) {
  const u32 key = score_key(score), least = score_key(cut.value);
  return key > kForbiddenKey && (key > least || (key == least && col <= cut.last_col));
}

// score >= threshold; never if one of them is NaN.
__device__ inline bool reaches(float score, float threshold) {
  const u32 key = score_key(score), least = score_key(threshold);
  return key != kNanKey && least != kNanKey && key >= least;
}

}  // namespace stof::mask
