// A multiplying warpgroup of the sm_90a GEMM.
//
// What is changed here: wgmma reads and writes registers while the code goes on. Any access to the
// accumulators that is not ordered by the waits makes ptxas serialise everything (C75xx in its log,
// an error in stof_cupy/jit/compile.py).
#pragma once

#include "gemm/sm90_output.cuh"
#include "gemm/sm90_shape.cuh"
#include "pipeline.cuh"
#include "ptx/operand.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"

namespace stof::gemm::sm90 {

template <class K>
struct Consumer {
  using Params = typename K::Params;
  using T = typename K::T;
  enum NamedBarrier { kTurn = 1 };  // plus the warpgroup's number

  const Params& p;
  const u32 smem;
  const int rank;    // of the CTA in its cluster
  const int group;   // which warpgroup
  const int thread;  // of the warpgroup
  const u64 operand_a, operand_b;
  const Waiter<K::kBounded> wait;
  RingPosition<K::kStages> position;
  Output<K> output;

  __device__ __forceinline__ Consumer(const Params& params, u32 shared, int cta, int warpgroup)
      : p(params),
        smem(shared),
        rank(cta),
        group(warpgroup),
        thread(threadIdx.x % 128),
        operand_a(operand<K::kTransposedA>(
            shared + K::kA + (K::kPingPong ? 0 : warpgroup * K::kBlocks * K::kBlockBytes))),
        operand_b(operand<K::kTransposedB>(shared + K::kB)),
        wait(params.report),
        output(params, shared, cta, warpgroup) {}

  template <bool kTransposed>
  __device__ static __forceinline__ u64 operand(u32 address) {
    return kTransposed ? ptx::operand_n_major(address, K::kBlockBytes)
                       : ptx::operand_k_major(address);
  }

  __device__ __forceinline__ void run() {
    if (K::kPingPong && group == 0) ptx::barrier_arrive(kTurn, 256);  // the first turn is its own
    Work work = K::work(p);
    int turn = 0;
    Unit unit;
#pragma unroll 1
    while (K::next(p, work, rank, unit)) {
      if (K::kPingPong && turn++ % 2 != group) {
        position.count += unit.steps;
        continue;
      }
      float sums[K::kBlocks][K::kN / 2];
      if (K::kPingPong) ptx::barrier_sync(kTurn + group, 256);
      multiply(sums, unit);
      output.take(sums, unit);
    }
    output.finish();
  }

  // Shuffled, the compiler knows that it is the same in all lanes. Where operands lie is then found
  // in registers of the warp, and not in others and moved, which is 32 instructions a step.
  template <typename X>
  __device__ static __forceinline__ X uniform(X x) {
    return __shfl_sync(0xffffffff, x, 0);
  }

  __device__ __forceinline__ void multiply(float (&sums)[K::kBlocks][K::kN / 2], const Unit& unit) {
    const int steps = uniform(unit.steps);
    position.count = uniform(position.count);
    wait(K::full(smem, position.buffer()), position.full(), kFull);
    start<true>(sums);
    position.advance();
    output.read_ahead(unit);
    position.count = uniform(position.count);
#pragma unroll 1
    for (int k = 1; k < steps; ++k, position.advance()) {
      wait(K::full(smem, position.buffer()), position.full(), kFull);
      start<false>(sums);
      ptx::wgmma_wait<1>();
      release({position.count - 1});
    }
    if (K::kPingPong) ptx::barrier_arrive(kTurn + (group ^ 1), 256);
    output.load_ahead(unit);
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < K::kBlocks; ++block) ptx::pin(sums[block]);
    release({position.count - 1});
  }

  // The products of a step, of which the first of a unit are not added to anything.
  template <bool kFirst>
  __device__ __forceinline__ void start(float (&sums)[K::kBlocks][K::kN / 2]) const {
    // From one 16 of the 64 to the next, in units of 16 bytes.
    constexpr int kStepA = K::kTransposedA ? 128 : 2, kStepB = K::kTransposedB ? 128 : 2;
    const u64 a = operand_a + position.buffer() * (K::kBytesA / 16);
    const u64 b = operand_b + position.buffer() * (K::kBytesB / 16);
    using Product = ptx::Wgmma<T, K::kN>;
    if constexpr (!kFirst) {
#pragma unroll
      for (int block = 0; block < K::kBlocks; ++block) ptx::pin(sums[block]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < K::kK / 16; ++i)
#pragma unroll
      for (int block = 0; block < K::kBlocks; ++block) {
        const u64 at_a = a + block * (K::kBlockBytes / 16) + i * kStepA, at_b = b + i * kStepB;
        if (kFirst && i == 0)
          Product::template first<K::kTransposedA, K::kTransposedB>(sums[block], at_a, at_b);
        else
          Product::template product<K::kTransposedA, K::kTransposedB>(sums[block], at_a, at_b);
      }
    ptx::wgmma_commit();
  }

  // In all CTAs that have loaded a part of the buffer.
  __device__ __forceinline__ void release(RingPosition<K::kStages> done) const {
    const u32 empty = K::empty(smem, done.buffer());
    if constexpr (K::kCluster > 1) {
      if (thread < K::kCluster) ptx::mbarrier_arrive_at(empty, thread);
    } else {
      if (thread == 0) ptx::mbarrier_arrive(empty);
    }
  }
};

}  // namespace stof::gemm::sm90
