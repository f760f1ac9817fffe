// Conversions between float and the 16-bit floats, one instruction each.
#pragma once

#include "types.cuh"

namespace stof::ptx {

__device__ __forceinline__ float to_float(f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}

__device__ __forceinline__ float to_float(bf16 x) {
  return __uint_as_float(static_cast<u32>(x.bits) << 16);
}

template <typename T>
__device__ __forceinline__ T from_float(float x);

template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}

template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}

// Two floats rounded into one register: `lo` in bits 0-15, `hi` in bits 16-31.
template <typename T>
__device__ __forceinline__ u32 pack(float lo, float hi);

template <>
__device__ __forceinline__ u32 pack<f16>(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

template <>
__device__ __forceinline__ u32 pack<bf16>(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

}  // namespace stof::ptx
