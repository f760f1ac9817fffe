// Global memory as it is in L2: what kernels before have written there, whatever an SM's L1 cache
// still has of it. And arrivals of CTAs.
#pragma once

#include "types.cuh"

namespace stof::ptx {

__device__ __forceinline__ int load_l2_4(const void* from) {
  int r;
  asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(r) : "l"(from) : "memory");
  return r;
}

__device__ __forceinline__ uint2 load_l2_8(const void* from) {
  uint2 r;
  asm volatile("ld.global.cg.v2.b32 {%0,%1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(from) : "memory");
  return r;
}

__device__ __forceinline__ uint4 load_l2_16(const void* from) {
  uint4 r;
  asm volatile("ld.global.cg.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(from)
               : "memory");
  return r;
}

// Counts one CTA more and returns how many came before. By one thread, after a barrier of the CTA:
// what its threads wrote before is seen by those of a CTA that comes later, after a barrier there.
__device__ __forceinline__ int arrive(int* counter) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

}  // namespace stof::ptx
