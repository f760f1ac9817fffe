// Bulk asynchronous copies between global and shared memory (sm_90), one thread each.
//
// Addresses in shared memory are multiples of 128 bytes for tensor copies (1024 where a box is
// swizzled over 128 bytes), of 16 for plain ones. Boxes are clipped at the edges of a tensor: what
// lies outside is read as zero, though its bytes count, and not written.
#pragma once

#include "types.cuh"

namespace stof::ptx {

// What stof_cupy/jit/tensormap.py encodes. It has to lie in a kernel's parameters, and the
// reference that a copy is given has to lead there.
struct alignas(64) TensorMap {
  u8 opaque[128];
};

// What the L2 cache is told of a copy's lines; the constants are those of CUTLASS.
enum class L2 : u64 {
  kNormal = 0x1000000000000000,
  kOnce = 0x12f0000000000000,
  kAgain = 0x14f0000000000000
};

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box at element coordinates (c0, c1, c2, c3), fastest axis first.
__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, u32 barrier, int c0, int c1,
                                         int c2, int c3, L2 use) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(use)
      : "memory");
}

// As tma_load, into the shared memory of each CTA of the cluster that has a bit in `ctas`, at the
// same place, and each one's barrier at the same place is told.
__device__ __forceinline__ void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier,
                                                   int c0, int c1, int c2, int c3, L2 use,
                                                   u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(ctas), "l"(use)
      : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, u32 from, int c0, int c1, int c2,
                                          int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
          "l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Copies consecutive bytes, a multiple of 16.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until the memory that this thread's committed stores read may be overwritten, but for the
// `kPending` most recent groups.
template <int kPending = 0>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace stof::ptx
