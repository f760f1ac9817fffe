// LayerNorm of the rows of C in the sm_90a GEMM, or where there is no shift RMSNorm: the same, but
// the mean counts as zero. A row lies in the CTAs of a cluster, each of which has kN columns of it:
// they tell each other mean and squares of theirs (Chan, Golub and LeVeque).
#pragma once

#include "gemm/sm90_shape.cuh"
#include "pipeline.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "warp.cuh"

namespace stof::gemm::sm90 {

// Of a warpgroup, for its 64 rows.
template <class K>
struct RowStatistics {
  using Params = typename K::Params;

  const Params& p;
  const u32 smem;
  const int rank, group, thread;
  const Waiter<K::kBounded> wait;
  u32 count = 0;  // exchanges

  // Of rows g and g + 8 of a warp's sixteen: of the CTA's columns, then of all.
  struct Rows {
    float mean[2], squares[2], scale[2];
  };

  // From a thread's values of its two rows, as an accumulator has them; `cols` of the CTA's columns
  // are in the output.
  __device__ __forceinline__ void compute(Rows& rows, const float (&x)[K::kN / 2], int cols) const {
    float sum[2] = {0.f, 0.f}, squares[2] = {0.f, 0.f};
    each(x, cols, [&](int r, float value) { sum[r] += value; });
    for (int r = 0; r < 2; ++r) rows.mean[r] = p.norm_bias ? warp_sum<4>(sum[r]) / cols : 0.f;
    each(x, cols, [&](int r, float value) {
      const float away = value - rows.mean[r];
      squares[r] += away * away;
    });
    for (int r = 0; r < 2; ++r) {
      rows.squares[r] = warp_sum<4>(squares[r]);
      rows.scale[r] = rsqrtf(rows.squares[r] / p.n + p.eps);  // if nobody else has columns
    }
  }

  template <class Take>
  __device__ __forceinline__ void each(const float (&x)[K::kN / 2], int cols, Take take) const {
    if (cols == K::kN) {
#pragma unroll
      for (int i = 0; i < K::kN / 2; ++i) take(i / 2 % 2, x[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < K::kN / 2; ++i) {
      const int col = i / 4 * 8 + thread % 4 * 2 + i % 2;
      if (col < cols) take(i / 2 % 2, x[i]);
    }
  }

  // The hardware orders what comes: a CTA that is ahead by an exchange waits for this one's, so two
  // places are enough.
  __device__ __forceinline__ u32 place(int from, int row) const {
    return K::statistics(smem, count & 1, group, from) + 8 * row;
  }
  __device__ __forceinline__ u32 barrier() const { return K::told(smem, count & 1, group); }
  __device__ __forceinline__ int own_row(int r) const {
    return thread / 32 * 16 + thread % 32 / 4 + 8 * r;
  }

  // What one CTA alone need not do, nor may a launch without clusters (store_async).
  __device__ __forceinline__ void tell(const Rows& rows) const {
    if constexpr (K::kAcross == 1) return;
    if (thread == 0) ptx::mbarrier_arrive_expect(barrier(), K::kAcross * 64 * 8);
    if (thread % 4 != 0) return;
#pragma unroll
    for (int cta = 0; cta < K::kAcross; ++cta)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::store_async(place(rank, own_row(r)), barrier(), cta, rows.mean[r], rows.squares[r]);
  }

  // Of what was told last. Nothing more is told before: there are two places, and a CTA that is
  // ahead tells again when it has heard all.
  __device__ __forceinline__ void combine(Rows& rows) {
    if constexpr (K::kAcross == 1) return;
    wait(barrier(), count >> 1 & 1, kStatistics);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = 0.f, squares = 0.f;
#pragma unroll
      for (int cta = 0; cta < K::kAcross; ++cta) total += load(cta, r).mean * columns(cta);
      const float mean = total / p.n;
#pragma unroll
      for (int cta = 0; cta < K::kAcross; ++cta) {
        const Told told = load(cta, r);
        const float away = told.mean - mean;
        squares += told.squares + away * away * columns(cta);
      }
      rows.mean[r] = mean;
      rows.scale[r] = rsqrtf(squares / p.n + p.eps);
    }
    __syncwarp();  // all lanes of a row have read, before the next is told
    ++count;
  }

  struct Told {
    float mean, squares;
  };

  __device__ __forceinline__ Told load(int cta, int r) const {
    const uint2 both = ptx::load_shared_8(place(cta, own_row(r)));
    return {__builtin_bit_cast(float, both.x), __builtin_bit_cast(float, both.y)};
  }

  __device__ __forceinline__ int columns(int cta) const { return min(K::kN, p.n - cta * K::kN); }
};

}  // namespace stof::gemm::sm90
