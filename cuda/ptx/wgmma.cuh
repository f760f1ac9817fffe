// Matrix products of a warpgroup, m64nNk16 with fp32 accumulators (sm_90a).
//
// Thread 32 * w + 4 * g + q of the warpgroup holds, of the 64xN accumulator, d[4j] and d[4j + 1] =
// row 16w + g, columns 8j + 2q and 8j + 2q + 1, and d[4j + 2], d[4j + 3] = row 16w + g + 8, same
// columns.
//
// The instructions run asynchronously and in order. Registers they read or write must not be
// touched between wgmma_fence() and the wgmma_wait() that covers them: ptxas then serialises all of
// them, and only says so (C7514).
#pragma once

#include "types.cuh"

namespace stof::ptx {

// The product for one N, as static functions (A is 64x16, B is 16xN):
//   product<kTransposedA, kTransposedB>(d, a, b)
//                           d += A B; both in shared memory, consecutive along the 16 or, if
//                           transposed, along the 64 and N
//   first<kTransposedA, kTransposedB>(d, a, b)
//                           d = A B, the same
//   qk(d, a, b, accumulate)  d = A B or d += A B; both in shared memory, consecutive along the 16
//   pv(d, a, b)              d += A B; A in registers, B in shared memory, consecutive along N
// Specialised by stof_cupy/jit/wgmma.py for the sizes that a kernel needs, because an instruction
// names each of its registers.
template <typename T, int kN>
struct Wgmma;

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kPending` of the most recent groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to accumulators over this point.
template <int kN>
__device__ __forceinline__ void pin(float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace stof::ptx
