// What may be asked for before earlier kernels have ended (grid.cuh): boxes of a tensor (sm_90) and
// lines, for the L2 cache. Nothing is read that anybody sees; what is written after them is written
// in L2.
#pragma once

#include "ptx/tma.cuh"

namespace stof::ptx {

// Asks for a box, see tma_load.
__device__ __forceinline__ void prefetch_l2(const TensorMap& map, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Asks for the 128 bytes around an address.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

}  // namespace stof::ptx
