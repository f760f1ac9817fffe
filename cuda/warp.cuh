// Reductions over the lanes of a warp.
#pragma once

namespace stof {

// Sum over aligned groups of `kLanes` lanes; every lane of a group gets it.
template <int kLanes = 32>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <int kLanes = 32>
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Sum, or maximum, over the lanes that differ in the bits `kBits` of their number alone.
template <int kBits>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    if (kBits & step) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <int kBits>
__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    if (kBits & step) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Sums kN values over kParts lanes, those that differ in lane / kFirst % kParts, and leaves in lane
// number i of them the i-th kN / kParts of the sums, in x[0..]: kN exchanges, not kN *
// log2(kParts).
template <int kN, int kParts, int kFirst>
__device__ __forceinline__ void scatter_sum(float (&x)[kN], int lane) {
#pragma unroll
  for (int parts = kParts / 2; parts > 0; parts /= 2) {
    const int half = kN / kParts * parts;
    const bool upper = lane & (parts * kFirst);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      if (i >= half) continue;
      const float mine = upper ? x[half + i] : x[i];
      const float other = upper ? x[i] : x[half + i];
      x[i] = mine + __shfl_xor_sync(0xffffffffu, other, parts * kFirst);
    }
  }
}

}  // namespace stof
