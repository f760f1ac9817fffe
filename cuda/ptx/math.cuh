// Single-instruction approximations of the special function unit, and what has to be rounded.
#pragma once

namespace stof::ptx {

// x * y, rounded: nvcc may not make it part of an FMA.
__device__ __forceinline__ float multiply(float x, float y) {
  float r;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}

// 2^x; -inf gives 0. Relative error about 2^-22.
__device__ __forceinline__ float exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// log2(x); 0 gives -inf.
__device__ __forceinline__ float log2(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 1 / x. Relative error about 2^-23.
__device__ __forceinline__ float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// x, or 0 if that is more; NaN stays.
__device__ __forceinline__ float or_zero(float x) {
  float r;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(r) : "f"(x));
  return r;
}

// sin(x) and cos(x) of x in [-pi, pi]. Absolute error about 2^-20.
__device__ __forceinline__ float sine(float x) {
  float r;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ float cosine(float x) {
  float r;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace stof::ptx
