// The warp of the sm_90a attention that sends outputs away, so that who multiplies goes on with the
// next row as soon as its output is staged.
//
// It also gives back what a row took: its place among the rows, and the queries' buffer, which the
// output leaves from.
#pragma once

#include "attention/sm90_shape.cuh"
#include "pipeline.cuh"
#include "ptx/tma.cuh"

namespace stof::attention::sm90 {

template <class K>
struct Sender {
  using Params = typename K::Params;

  const Params& p;
  const u32 smem;
  const Waiter<K::kBounded> wait;
  RingPosition<K::kRows> rows;

  __device__ __forceinline__ Sender(const Params& params, u32 shared)
      : p(params), smem(shared), wait(params.report) {}

  // Of one thread: stores are waited for by who made them.
  __device__ __forceinline__ void run() {
    while (true) {
      wait(K::full(smem, K::kRowBarriers, rows.buffer()), rows.full(), kRowFull);
      const Row row = Row::load(K::row_info(smem, rows.buffer()));
      if (row.tiles < 0) break;
#pragma unroll 1
      for (int group = 0; group < K::kWarpgroups; ++group) {
        wait(K::staged(smem, queries().buffer(), group), queries().full(), kStaged);
        if (row.partial < 0) send(row, group);
      }
      ptx::mbarrier_arrive(K::empty(smem, K::kRowBarriers, rows.buffer()));
      ptx::bulk_commit();
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(K::empty(smem, K::kQBarriers, queries().buffer()));
      rows.advance();
    }
  }

  // Each row has a buffer for queries.
  __device__ __forceinline__ RingPosition<K::kQueries> queries() const { return {rows.count}; }

  // The 64 rows of a warpgroup.
  __device__ __forceinline__ void send(const Row& row, int group) const {
    const u32 from = smem + K::kQ + queries().buffer() * K::kBufferQ + group * 64 * 128;
#pragma unroll
    for (int slab = 0; slab < K::kSlabsV; ++slab)
      ptx::tma_store(p.map_out, from + slab * K::kSlabBytesQ, 64 * slab,
                     row.q_tile * K::kM + group * 64, row.head, row.batch);
  }
};

}  // namespace stof::attention::sm90
