// The loading warp of the sm_90a attention: queries, keys with their bitmaps, and values.
//
// Keys travel one tile ahead of values, because they are needed one softmax earlier.
#pragma once

#include "attention/sm90_shape.cuh"
#include "pipeline.cuh"
#include "ptx/shared.cuh"
#include "ptx/sync.cuh"

namespace stof::attention::sm90 {

template <class K>
struct Producer {
  using Params = typename K::Params;

  const Params& p;
  const u32 smem;
  const int lane;
  const bool leader;  // the lane that starts copies
  const Waiter<K::kBounded> wait;
  RingPosition<K::kRows> rows;
  RingPosition<K::kQueries> queries;
  RingPosition<K::kStages> keys, values;
  u32 landings = 0;

  __device__ __forceinline__ Producer(const Params& params, u32 shared)
      : p(params),
        smem(shared),
        lane(threadIdx.x % 32),
        leader(ptx::elect_one()),
        wait(params.report) {}

  __device__ __forceinline__ void run() {
    while (true) {
      const u32 buffer = rows.buffer();
      wait(K::full(smem, K::kRowBarriers, buffer), rows.full(), kRowFull);
      const Row row = read(buffer);
      if (row.tiles < 0) break;
      __syncwarp();  // all lanes have read it
      if (leader) ptx::mbarrier_arrive(K::empty(smem, K::kRowBarriers, buffer));
      rows.advance();
      load(row);
    }
    // A hang of the consumers between themselves shows here if nowhere else.
    if constexpr (K::kBounded) {
      if (queries.count > 0) {
        --queries.count;
        wait(K::empty(smem, K::kQBarriers, queries.buffer()), queries.full(), kQEmpty);
      }
    }
  }

  __device__ __forceinline__ Row read(u32 buffer) const {
    const u32 at = smem + K::kRowInfo + buffer * sizeof(Row);
    const uint4 a = ptx::load_shared_16(at);
    const uint4 b = ptx::load_shared_16(at + 16);
    const uint4 c = ptx::load_shared_16(at + 32);
    Row row;
    row.q_tile = a.x, row.head = a.y, row.batch = a.z;
    row.tiles = b.x, row.masked = b.y, row.parts = b.z, row.limit = b.w;
    row.first = c.x, row.last = c.y, row.clear = c.z;
    return row;
  }

  // A row without keys takes a query buffer too: its output goes out through it.
  __device__ __forceinline__ void load(const Row& row) {
    if (row.tiles == 0) {
      load_q(row);
      return;
    }
    const int kv_head = row.head / p.heads_per_kv;
    int col, id;  // of the tile 32 * batch + lane
    list(row, 0, col, id);
    // With one buffer for queries, it is free later than the first key buffer.
    if constexpr (K::kQueries == 1) {
      load_k(row, kv_head, 0, col, id);
      load_q(row);
    } else {
      load_q(row);
      load_k(row, kv_head, 0, col, id);
    }
    int before = __shfl_sync(0xffffffff, col, 0);
    for (int i = 1; i < row.tiles; ++i) {
      if (i % 32 == 0) list(row, i, col, id);
      load_k(row, kv_head, i, col, id);
      load_v(row, kv_head, i - 1, before);
      before = __shfl_sync(0xffffffff, col, i % 32);
    }
    load_v(row, kv_head, row.tiles - 1, before);
  }

  // Reads the list from tile i on, one tile a lane, so that the loop waits for memory once in 32
  // tiles.
  __device__ __forceinline__ void list(const Row& row, int i, int& col, int& id) const {
    const int mine = i + lane;
    const int entry = row.entry(mine);
    col = id = 0;
    if (mine < row.tiles) col = p.cols ? p.cols[entry] : entry;
    if (mine < row.parts) id = p.bitmap_id[entry];
  }

  __device__ __forceinline__ void load_q(const Row& row) {
    const u32 buffer = queries.buffer();
    const u32 full = K::full(smem, K::kQBarriers, buffer);
    wait(K::empty(smem, K::kQBarriers, buffer), queries.empty(), kQEmpty);
    if (leader) {
      ptx::mbarrier_arrive_expect(full, K::kBytesQ);
#pragma unroll
      for (int slab = 0; slab < K::kSlabsQk; ++slab)
        ptx::tma_load(smem + K::kQ + buffer * K::kBufferQ + slab * K::kSlabBytesQ, p.map_q, full,
                      64 * slab, row.q_tile * K::kM, row.head, row.batch, ptx::L2::kOnce);
    }
    queries.advance();
  }

  __device__ __forceinline__ void load_k(const Row& row, int kv_head, int i, int col, int id) {
    const u32 buffer = keys.buffer();
    const u32 full = K::full(smem, K::kKBarriers, buffer);
    col = __shfl_sync(0xffffffff, col, i % 32);
    id = __shfl_sync(0xffffffff, id, i % 32);
    wait(K::empty(smem, K::kKBarriers, buffer), keys.empty(), kKEmpty);
    if (leader) {
      const bool part = i < row.parts;
      ptx::mbarrier_arrive_expect(full, K::kBytesK + (part ? K::kBitmapBytes : 0));
      if (part)
        ptx::bulk_load(smem + K::kBitmaps + buffer * K::kBitmapBytes,
                       p.bitmaps + static_cast<i64>(id) * (K::kBitmapBytes / 4), K::kBitmapBytes,
                       full);
      load_slabs<K::kSlabsQk>(K::kK + buffer * K::kBytesK, p.map_k, full, row, kv_head, col);
    }
    keys.advance();
  }

  __device__ __forceinline__ void load_v(const Row& row, int kv_head, int i, int col) {
    const u32 buffer = values.buffer();
    const u32 full = K::full(smem, K::kVBarriers, buffer);
    const u32 landing = smem + K::kBarriers + 8 * K::kLandingBarrier;
    const bool clear = row.clear && i == row.masked - 1;
    wait(K::empty(smem, K::kVBarriers, buffer), values.empty(), kVEmpty);
    if (leader) {
      ptx::mbarrier_arrive_expect(clear ? landing : full, K::kBytesV);
      load_slabs<K::kSlabsV>(K::kV + buffer * K::kBytesV, p.map_v, clear ? landing : full, row,
                             kv_head, col);
    }
    __syncwarp();
    if (clear) {
      wait(landing, landings++ & 1, kLanding);
      clear_values(K::kV + buffer * K::kBytesV, row.limit);
      if (leader) ptx::mbarrier_arrive(full);
    }
    values.advance();
  }

  template <int kSlabs>
  __device__ __forceinline__ void load_slabs(u32 to, const ptx::TensorMap& map, u32 barrier,
                                             const Row& row, int kv_head, int col) const {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab)
      ptx::tma_load(smem + to + slab * K::kSlabBytesKv, map, barrier, 64 * slab, col * K::kN,
                    kv_head, row.batch, ptx::L2::kAgain);
  }

  // Values beyond the length may be anything, NaN too, and even a weight of 0 would bring that into
  // the sum. Behind the end of the tensor the copy itself writes zeros.
  __device__ __forceinline__ void clear_values(u32 at, int limit) const {
    for (int slab = 0; slab < K::kSlabsV; ++slab)
      for (int byte = limit * 128 + 16 * lane; byte < K::kSlabBytesKv; byte += 16 * 32)
        ptx::store_shared_16(smem + at + slab * K::kSlabBytesKv + byte, make_uint4(0, 0, 0, 0));
    ptx::fence_async_proxy();
    __syncwarp();
  }
};

}  // namespace stof::attention::sm90
