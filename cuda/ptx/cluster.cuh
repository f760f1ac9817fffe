// CTAs of a cluster, which run at the same time and reach each other's shared memory (sm_90).
#pragma once

#include "types.cuh"

namespace stof::ptx {

// This CTA's number in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A barrier of all threads of the cluster, whose writes before are seen after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// Stores four floats at the same place in CTA `cta` of the cluster.
__device__ __forceinline__ void store_cluster(u32 to, u32 cta, const float* x) {
  asm volatile(
      "{.reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; st.shared::cluster.v4.f32 [to], {%2, "
      "%3, %4, %5};}" ::"r"(to),
      "r"(cta), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
      : "memory");
}

// Stores two floats at the same place in CTA `cta` of the cluster, in its own time, and tells the
// barrier there that 8 bytes have come.
__device__ __forceinline__ void store_async(u32 to, u32 barrier, u32 cta, float x, float y) {
  asm volatile(
      "{.reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 "
      "barrier, %1, %2; st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, "
      "%4}, [barrier];}" ::"r"(to),
      "r"(barrier), "r"(cta), "f"(x), "f"(y)
      : "memory");
}

}  // namespace stof::ptx
