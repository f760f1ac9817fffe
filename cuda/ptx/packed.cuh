// Arithmetic on two 16-bit floats in one register.
#pragma once

#include "types.cuh"

namespace stof::ptx {

// x * 0 + y: NaN, in a half where x is not finite.
template <typename T>
__device__ __forceinline__ u32 add_zero_times(u32 x, u32 y);

template <>
__device__ __forceinline__ u32 add_zero_times<f16>(u32 x, u32 y) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(0), "r"(y));
  return r;
}

template <>
__device__ __forceinline__ u32 add_zero_times<bf16>(u32 x, u32 y) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(0), "r"(y));
  return r;
}

}  // namespace stof::ptx
