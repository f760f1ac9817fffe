// Block-wise sparse attention for sm_90a (Hopper): TMA, wgmma and specialised warps, after
// FlashAttention-3 (arXiv 2407.08608), over the lists and bitmaps of STOF (arXiv 2506.06095).
//
// A CTA has warpgroups that multiply (Consumer), each 64 rows of a query tile, and one whose first
// warp loads (Producer), whose second looks up what comes next (Scheduler) and whose third sends
// outputs away (Sender). It stays for many rows, so that loads of the next run under the end of
// this one.
#pragma once

#include "attention/sm90_consumer.cuh"
#include "attention/sm90_producer.cuh"
#include "attention/sm90_scheduler.cuh"
#include "attention/sm90_sender.cuh"
#include "attention/sm90_shape.cuh"
#include "ptx/grid.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/sync.cuh"

namespace stof::attention {

template <typename T, int kDimQk, int kDimV, int kN, int kWarpgroups, int kStages, int kQueries,
          int kBlocks, bool kPacked, bool kBounded, bool kHalves, class Scores>
struct Sm90 : sm90::Shape<T, kDimQk, kDimV, kN, kWarpgroups, kStages, kQueries, kBlocks, kPacked,
                          kBounded, kHalves, Scores> {
  using Shape = sm90::Shape<T, kDimQk, kDimV, kN, kWarpgroups, kStages, kQueries, kBlocks, kPacked,
                            kBounded, kHalves, Scores>;
  using typename Shape::Params;

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    const u32 smem = ptx::shared_address(memory);
    if (threadIdx.x == 0) init_barriers(smem);
    if (threadIdx.x == 32) {
      ptx::prefetch(p.map_q);
      ptx::prefetch(p.map_k);
      ptx::prefetch(p.map_v);
      ptx::prefetch(p.map_out);
    }
    ptx::after_earlier_kernels();
    __syncthreads();
    // Shuffled, the compiler knows that all of a warp take the same branch.
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (warp < 4) {
      ptx::give_registers<Shape::kRegistersOfLoader>();
      if (warp == 0) sm90::Producer<Shape>(p, smem).run();
      if (warp == 1) sm90::Scheduler<Shape>(p, smem).run();
      if (warp == 2 && ptx::elect_one()) sm90::Sender<Shape>(p, smem).run();
    } else {
      ptx::take_registers<Shape::kRegisters>();
      sm90::Consumer<Shape>(p, smem, warp / 4 - 1).run();
    }
  }

  __device__ static __forceinline__ void init_barriers(u32 smem) {
    const auto ring = [&](int first, int buffers, int fills, int drains) {
      for (int i = 0; i < buffers; ++i) {
        ptx::mbarrier_init(Shape::full(smem, first, i), fills);
        ptx::mbarrier_init(Shape::empty(smem, first, i), drains);
      }
    };
    ring(Shape::kQBarriers, kQueries, 1, 1);
    ring(Shape::kKBarriers, kStages, 1, 4 * kWarpgroups);  // each warp has read its bits
    ring(Shape::kVBarriers, kStages, 1, kWarpgroups);
    ring(Shape::kRowBarriers, Shape::kRows, 1, 2);  // producer and sender
    ptx::mbarrier_init(smem + Shape::kBarriers + 8 * Shape::kLandingBarrier, 1);
    ptx::mbarrier_init(Shape::asked(smem), 1);
    for (int i = 0; i < kQueries * kWarpgroups; ++i)
      ptx::mbarrier_init(Shape::staged(smem, i / kWarpgroups, i % kWarpgroups), 4);  // its warps
    ptx::mbarrier_init_fence();
  }
};

}  // namespace stof::attention
