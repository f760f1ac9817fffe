// An 8x8 matrix of 16-bit elements in the registers of a warp, two elements of row lane / 4 a lane.
#pragma once

#include "types.cuh"

namespace stof::ptx {

__device__ __forceinline__ u32 transposed(u32 x) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

}  // namespace stof::ptx
