// The thread that loads for the sm_90a GEMM.
#pragma once

#include "gemm/sm90_shape.cuh"
#include "pipeline.cuh"
#include "ptx/prefetch.cuh"

namespace stof::gemm::sm90 {

template <class K>
struct Producer {
  using Params = typename K::Params;
  using T = typename K::T;

  const Params& p;
  const u32 smem;
  const int rank;  // of the CTA in its cluster
  const Waiter<K::kBounded> wait;
  RingPosition<K::kStages> position;

  __device__ __forceinline__ Producer(const Params& params, u32 shared, int cta)
      : p(params), smem(shared), rank(cta), wait(params.report) {}

  __device__ __forceinline__ void run() {
    Work work = K::work(p);
    Unit unit;
#pragma unroll 1
    while (K::next(p, work, rank, unit)) {
#pragma unroll 1
      for (int k = unit.first; k < unit.first + unit.steps; ++k) load(unit, k * K::kK);
    }
    // Until nobody needs what has been loaded, nor tells this CTA so.
#pragma unroll 1
    for (int i = 0; i < K::kStages; ++i, position.advance()) wait_empty();
  }

  // Asks for the first of the columns' operand, weights as a rule, and for their bias while earlier
  // kernels end: of few rows it is all that takes time. If they still write it, what reads it after
  // them reads that.
  __device__ __forceinline__ void ask() const {
    Work work = K::work(p);
    Unit unit;
    if (!K::next(p, work, rank, unit)) return;
    const auto& map = K::kSwapped ? p.map_a : p.map_b;
    const auto box = [&](u32, int c0, int c1, int c3) { ptx::prefetch_l2(map, c0, c1, 0, c3); };
#pragma unroll 1
    for (int k = unit.first; k < unit.first + min(unit.steps, K::kStages / 2); ++k) {
      if constexpr (K::kSwapped)
        boxes<K::kTransposedA, K::kFoldedA, K::kM, 1>(k * K::kK, unit.tile_a * K::kM, box);
      else
        boxes<K::kTransposedB, K::kFoldedB, K::kN, K::kCluster>(k * K::kK, unit.tile_b * K::kN,
                                                                box);
    }
    if constexpr (K::Epilogue::kBias) {
      constexpr int kTile = K::kSwapped ? K::kM / K::kHalves : K::kColumns;
      const int first = (K::kSwapped ? unit.tile_a : unit.tile_b) * kTile;
#pragma unroll 1
      for (int col = first; col < min(first + kTile, p.n); col += 64)
        for (int half = 0; half < K::kHalves; ++half)
          ptx::prefetch_l2(static_cast<const T*>(p.bias) + half * static_cast<i64>(p.n) + col);
    }
  }

  __device__ __forceinline__ void wait_empty() {
    wait(K::empty(smem, position.buffer()), position.empty(), kEmpty);
  }

  __device__ __forceinline__ void load(const Unit& unit, int k) {
    const u32 stage = position.buffer();
    const u32 full = K::full(smem, stage);
    wait_empty();
    ptx::mbarrier_arrive_expect(full, K::kBytesA + K::kBytesB);
    copy<K::kTransposedA, K::kFoldedA, K::kM, 1>(smem + K::kA + stage * K::kBytesA, p.map_a, full,
                                                 k, unit.tile_a * K::kM);
    copy<K::kTransposedB, K::kFoldedB, K::kN, K::kCluster>(smem + K::kB + stage * K::kBytesB,
                                                           p.map_b, full, k, unit.tile_b * K::kN);
    position.advance();
  }

  // Copies kRows x 64 of an operand, or this CTA's part of it to all of the cluster.
  template <bool kTransposed, bool kFolded, int kRows, int kParts>
  __device__ __forceinline__ void copy(u32 to, const ptx::TensorMap& map, u32 full, int k,
                                       int row) const {
    boxes<kTransposed, kFolded, kRows, kParts>(k, row, [&](u32 offset, int c0, int c1, int c3) {
      if constexpr (kParts > 1)
        ptx::tma_load_multicast(to + offset, map, full, c0, c1, 0, c3, ptx::L2::kNormal,
                                (1 << kParts) - 1);
      else
        ptx::tma_load(to + offset, map, full, c0, c1, 0, c3, ptx::L2::kNormal);
    });
  }

  // Calls `box` with the place in shared memory and the coordinates of each of those boxes.
  template <bool kTransposed, bool kFolded, int kRows, int kParts, class Box>
  __device__ __forceinline__ void boxes(int k, int row, const Box& box) const {
    const int part = kParts > 1 ? rank : 0;
    if constexpr (kTransposed) {
      constexpr int kDepth = K::kK / kParts;
#pragma unroll
      for (int slab = 0; slab < kRows / 64; ++slab)
        box(slab * K::kBlockBytes + part * (kDepth * 128), row + 64 * slab, k + part * kDepth, 0);
    } else {
      constexpr int kEach = kRows / kParts;
      const int first = row + part * kEach;
      box(part * (kEach * 128), k, kFolded ? 0 : first, kFolded ? first / 16 : 0);
    }
  }
};

}  // namespace stof::gemm::sm90
