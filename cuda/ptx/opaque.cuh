// Values that the compiler takes for new ones, so that what follows from them is computed where it
// stands, and not once and for all in registers that are needed elsewhere.
#pragma once

#include "types.cuh"

namespace stof::ptx {

__device__ __forceinline__ u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ i64 opaque(i64 x) {
  asm volatile("" : "+l"(x));
  return x;
}

template <typename T>
__device__ __forceinline__ T* opaque(T* x) {
  asm volatile("" : "+l"(x));
  return x;
}

}  // namespace stof::ptx
