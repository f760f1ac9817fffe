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

}  // namespace stof::ptx
