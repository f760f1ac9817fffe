// Block-wise sparse attention on mma.sync, for sm_80 and everything newer (STOF, arXiv 2506.06095,
// Algorithm 1).
//
// A CTA computes a tile of query rows of one head, or of a few that share their keys; each of its
// warps owns 16 or 32 rows. It walks the key tiles that its row of the mask lists, see pass.cuh.
//
// A masked value still counts in a product, as 0 * NaN. Whether that has happened shows in the
// result, so nothing is looked for on the way: a query tile whose result is not finite is computed
// again, carefully. So is one with scores so far from 0 that they have to be rounded first.
#pragma once

#include "attention/params.cuh"
#include "attention/pass.cuh"
#include "attention/scores.cuh"
#include "attention/shape.cuh"
#include "attention/store.cuh"
#include "attention/tiles.cuh"
#include "attention/work.cuh"
#include "ptx/grid.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kHeadDim, class Shape, class Scores = attention::Scores<>,
          bool kPacked = false>
struct Sm80 {
  static constexpr int kThreads = Shape::kThreads * Shape::kGroups;
  static constexpr int kMinBlocks = Shape::kMinBlocks;
  static constexpr int kTileBytes = Shape::kGroups * Shape::group_bytes(kHeadDim);
  static constexpr int kSmemBytes = kTileBytes + 64;  // and the Work
  using Params = attention::Params<T>;
  using Work = attention::Work<Params, Shape, kPacked>;
  static_assert(sizeof(Work) <= 64);
  // Both ways in one kernel would take more registers than there are.
  static constexpr bool kCarefulOnly = kHeadDim > 128 && !Scores::kPlain;

  template <class Shape_, bool kCareful>
  using Pass = attention::Pass<T, kHeadDim, Shape_, Scores, kPacked, Work, kCareful>;

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    Work& shared = *reinterpret_cast<Work*>(memory + kTileBytes);
    const u32 smem = ptx::shared_address(memory);
    {
      if (!p.early) ptx::after_earlier_kernels();
      const Work work = Work::of(p, blockIdx.x);
      const bool none = work.none(p), cut_off = p.overflow != nullptr && *p.overflow != 0;
      FirstTiles first = {};
      if (!none && !cut_off) first = Pass<Shape, kCarefulOnly>::first(p, work);
      if (p.early) ptx::after_earlier_kernels();
      if (none) return;
      if (cut_off) {
        if (work.split == 0) Store<T, kHeadDim, Shape, kPacked, Work>::nan(p, work);
        return;
      }
      if constexpr (kCarefulOnly) {
        Pass<Shape, true> pass(p, work, shared, smem);
        pass.attend(work, first);
        return;
      }
      Pass<Shape, false> pass(p, work, shared, smem);
      if (pass.attend(work, first)) return;
    }
    if constexpr (!kCarefulOnly) {
      // A fragment of each warp at a time: there are registers for that.
      using Narrow = typename Shape::Narrow;
#pragma unroll 1
      for (int first = 0; first < Shape::kRows; first += Narrow::kRows) {
        __syncthreads();
        Work work = shared;
        if (first > 0) work.row0 += Narrow::kRows;
        __syncthreads();
        Pass<Narrow, true> pass(p, work, shared, ptx::opaque(smem));
        pass.attend(work, pass.first(p, work));
      }
    }
  }
};

}  // namespace stof::attention
