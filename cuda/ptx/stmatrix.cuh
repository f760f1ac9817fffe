// Four 8x8 matrices of 16-bit elements to shared memory; lane 8*i + r gives the address of row r of
// matrix i (sm_90).
#pragma once

#include "types.cuh"

namespace stof::ptx {

__device__ __forceinline__ void stmatrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace stof::ptx
