// Who runs on, and who waits for whom, within a CTA (sm_90).
#pragma once

#include "types.cuh"

namespace stof::ptx {

// True in one lane of a converged warp.
__device__ __forceinline__ bool elect_one() {
  u32 chosen;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen));
  return chosen != 0;
}

// Named barriers, 1 to 15 (0 is __syncthreads): `threads` have to come, whether they wait or not.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Makes this thread's writes to shared memory known to wgmma and to bulk copies.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Changes how many registers a thread of this warpgroup has, a multiple of 8 from 24 to 256; all
// its warps do.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Ends the kernel with an error, by a store to address 8. Not `trap`: where it stands, ptxas gives
// no thread more registers than at the launch.
__device__ __forceinline__ void fault() {
  asm volatile("st.global.u32 [%0], 0;" ::"l"(u64{8}) : "memory");
}

}  // namespace stof::ptx
