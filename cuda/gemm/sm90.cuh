// C = epilogue(A B) for sm_90a (Hopper): TMA, wgmma and specialised warps.
//
// A CTA has two warpgroups that multiply (Consumer) and store (Output), and one thread that loads
// (Producer). It stays for many tiles, so that loads of the next run under the end of this one.
#pragma once

#include "epilogue/stages.cuh"
#include "gemm/sm90_consumer.cuh"
#include "gemm/sm90_producer.cuh"
#include "gemm/sm90_shape.cuh"
#include "ptx/cluster.cuh"
#include "ptx/grid.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/sync.cuh"

namespace stof::gemm {

template <typename T, int kM, int kN, int kStages, bool kPingPong, int kCluster, bool kTransposedA,
          bool kTransposedB, class Epilogue, bool kSwapped = false, bool kSplit = false,
          int kAcross = 0, bool kBounded = false, int kJoined = 1>
struct Sm90 : sm90::Shape<T, kM, kN, kStages, kPingPong, kCluster, kTransposedA, kTransposedB,
                          Epilogue, kSwapped, kSplit, kAcross, kBounded, kJoined> {
  using Shape = sm90::Shape<T, kM, kN, kStages, kPingPong, kCluster, kTransposedA, kTransposedB,
                            Epilogue, kSwapped, kSplit, kAcross, kBounded, kJoined>;
  using typename Shape::Params;

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    const u32 smem = ptx::shared_address(memory);
    const int rank = Shape::kCtas > 1 ? ptx::cluster_rank() : 0;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(Shape::full(smem, i), 1);
        ptx::mbarrier_init(Shape::empty(smem, i), kCluster * Shape::kSharers);
      }
      if constexpr (Shape::kReadsAhead)
        for (int i = 0; i < 2 * Shape::kBuffers; ++i)
          ptx::mbarrier_init(Shape::ahead(smem, 0, i), 1);
      if constexpr (kAcross > 0)
        for (int i = 0; i < 4; ++i) ptx::mbarrier_init(Shape::told(smem, i / 2, i % 2), 1);
      ptx::mbarrier_init_fence();
    }
    if (threadIdx.x == 32) {
      ptx::prefetch(p.map_a);
      ptx::prefetch(p.map_b);
      if (p.mapped_c) ptx::prefetch(p.map_c);
      // Where rows are normalised it was not measured.
      if constexpr (kAcross == 0) sm90::Producer<Shape>(p, smem, rank).ask();
    }
    ptx::after_earlier_kernels();
    sync();
    // Shuffled, the compiler knows that all of a warp take the same branch.
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (warp < 4) {
      ptx::give_registers<Shape::kRegistersOfLoader>();
      if (warp == 0 && ptx::elect_one()) sm90::Producer<Shape>(p, smem, rank).run();
      __syncwarp();
      if constexpr (kJoined > 1) {  // see Pieces::join
        sync();
        sync();
      }
    } else {
      ptx::take_registers<Shape::kRegisters>();
      sm90::Consumer<Shape>(p, smem, rank, warp / 4 - 1).run();
    }
    // The others' copies and arrivals come here as long as they run.
    if (Shape::kCtas > 1) {
      __syncwarp();
      sync();
    }
  }

  __device__ static __forceinline__ void sync() {
    if constexpr (Shape::kCtas > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
  }
};

}  // namespace stof::gemm
