// Rings of buffers between warps that fill them and warps that empty them (sm_90).
//
// Every buffer has a barrier "full" and one "empty". Who fills it waits for empty and signals full;
// who empties it waits for full and signals empty.
#pragma once

#include "ptx/mbarrier.cuh"
#include "ptx/sync.cuh"
#include "types.cuh"

namespace stof {

// How many buffers of a ring one side has gone through.
template <int kBuffers>
struct RingPosition {
  u32 count = 0;

  __device__ __forceinline__ u32 buffer() const { return count % kBuffers; }
  // What to wait for before emptying the buffer.
  __device__ __forceinline__ u32 full() const { return count / kBuffers & 1; }
  // What to wait for before filling it; the first time round there is nothing to wait for.
  __device__ __forceinline__ u32 empty() const { return full() ^ 1; }
  __device__ __forceinline__ void advance() { ++count; }
};

// Waits for barriers. The bounded kind reports a wait of about a second and then faults: a kernel
// that hangs would take its machine with it and say nothing.
template <bool kBounded>
struct Waiter;

template <>
struct Waiter<false> {
  __device__ __forceinline__ explicit Waiter(u32*) {}

  __device__ __forceinline__ void operator()(u32 barrier, u32 parity, int) const {
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
    }
  }
};

template <>
struct Waiter<true> {
  u32* report;  // four words of the host's memory, which outlives the fault

  __device__ __forceinline__ explicit Waiter(u32* to) : report(to) {}

  __device__ __forceinline__ void operator()(u32 barrier, u32 parity, int what) const {
    if (ptx::mbarrier_try_wait(barrier, parity)) return;
    const i64 start = clock64();
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
      if (clock64() - start < 1'500'000'000) continue;
      report[1] = blockIdx.x;
      report[2] = threadIdx.x;
      report[3] = parity;
      report[0] = what;
      __threadfence_system();
      ptx::fault();
    }
  }
};

}  // namespace stof
