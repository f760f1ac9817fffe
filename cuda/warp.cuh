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

}  // namespace stof
