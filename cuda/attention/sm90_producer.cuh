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
  u32 row_count = 0;  // each takes a place in the rings of rows and of queries
  RingPosition<K::kStages> keys;
  u32 landings = 0;
  int col = 0, id = 0;  // of 32 tiles of the list, one a lane

  // Of the row in work, what is needed for every tile; the rest stays in shared memory.
  u32 info;
  int batch, kv_head, tiles, parts;
  int clear_at;  // the tile whose values the length cuts through, or -1

  __device__ __forceinline__ Producer(const Params& params, u32 shared)
      : p(params),
        smem(shared),
        lane(threadIdx.x % 32),
        leader(ptx::elect_one()),
        wait(params.report) {}

  __device__ __forceinline__ void run() {
    while (true) {
      const RingPosition<K::kRows> rows{row_count};
      wait(K::full(smem, K::kRowBarriers, rows.buffer()), rows.full(), kRowFull);
      if (!begin(rows.buffer())) break;
      load();
      __syncwarp();  // all lanes have read what they need of the row
      if (leader) ptx::mbarrier_arrive(K::empty(smem, K::kRowBarriers, rows.buffer()));
      ++row_count;
    }
    // A hang of the consumers between themselves shows here if nowhere else.
    if constexpr (K::kBounded) {
      const RingPosition<K::kQueries> last{row_count - 1};
      if (row_count > 0) wait(K::empty(smem, K::kQBarriers, last.buffer()), last.full(), kQEmpty);
    }
  }

  // Returns false if there are no more rows.
  __device__ __forceinline__ bool begin(u32 buffer) {
    info = K::row_info(smem, buffer);
    const Row row = Row::load(info);
    batch = row.batch;
    kv_head = row.head / p.heads_per_kv;
    tiles = row.tiles;
    parts = row.parts;
    clear_at = row.clear ? row.masked - 1 : -1;
    return tiles >= 0;
  }

  // A row without keys takes a query buffer too: its output goes out through it.
  __device__ __forceinline__ void load() {
    // With one buffer for queries, it is free later than the first key buffer.
    constexpr bool kQueriesFirst = K::kQueries > 1;
    if (kQueriesFirst || tiles == 0) load_q();
    Tile before;
    for (int i = 0; i <= tiles && tiles > 0; ++i) {
      Tile tile;
      if (i < tiles) {
        tile = pick(i);
        load_k(i, tile);
        if (!kQueriesFirst && i == 0) load_q();
      }
      if (i > 0) load_v(i - 1, before);
      before = tile;
    }
  }

  // A tile of the row's list.
  struct Tile {
    int col, id;
    int group;  // of a packed tile, the group of 8 keys that this lane knows
  };

  // The list is read 32 tiles at a time, so that the loop seldom waits for memory.
  __device__ __forceinline__ Tile pick(int i) {
    if (i % 32 == 0) {
      const int mine = i + lane;
      const int entry = Row::load(info).entry(mine);
      col = id = 0;
      if (mine < tiles) col = p.cols ? p.cols[entry] : entry;
      if (mine < parts) id = p.bitmap_id[entry];
    }
    Tile tile;
    tile.col = __shfl_sync(0xffffffff, col, i % 32);
    tile.id = __shfl_sync(0xffffffff, id, i % 32);
    tile.group = -1;
    if (K::kPacked && i < parts && lane < K::kGroups)
      tile.group = p.groups[static_cast<i64>(tile.col) * K::kGroups + lane];
    return tile;
  }

  __device__ __forceinline__ void load_q() {
    const RingPosition<K::kQueries> queries{row_count};
    const u32 buffer = queries.buffer();
    const u32 full = K::full(smem, K::kQBarriers, buffer);
    wait(K::empty(smem, K::kQBarriers, buffer), queries.empty(), kQEmpty);
    const Row row = Row::load(info);
    if (leader) {
      ptx::mbarrier_arrive_expect(full, K::kBytesQ);
#pragma unroll
      for (int slab = 0; slab < K::kSlabsQk; ++slab)
        ptx::tma_load(smem + K::kQ + buffer * K::kBufferQ + slab * K::kSlabBytesQ, p.map_q, full,
                      64 * slab, row.q_tile * K::kM, row.head, batch, ptx::L2::kOnce);
    }
  }

  __device__ __forceinline__ void load_k(int i, const Tile& tile) {
    const u32 buffer = keys.buffer();
    const u32 full = K::full(smem, K::kKBarriers, buffer);
    const u32 bitmap = smem + K::kBitmaps + buffer * K::kBitmapBytes;
    const bool part = i < parts;
    const bool whole = K::kPacked && part && tile.id < 0;
    wait(K::empty(smem, K::kKBarriers, buffer), keys.empty(), kKEmpty);
    if (whole) fill_bitmap(bitmap);
    if (leader) {
      const bool copied = part && !whole;
      ptx::mbarrier_arrive_expect(full, K::kBytesK + (copied ? K::kBitmapBytes : 0));
      if (copied)
        ptx::bulk_load(bitmap, p.bitmaps + static_cast<i64>(tile.id) * (K::kBitmapBytes / 4),
                       K::kBitmapBytes, full);
    }
    copy<K::kSlabsQk>(K::kK + buffer * K::kBytesK, p.map_k, p.map_k_group, full, part, tile);
    keys.advance();
  }

  // Keys are one tile ahead, so a tile's values go to the buffer before that of the next keys; or
  // two before, where the row's last keys have been loaded.
  __device__ __forceinline__ void load_v(int i, const Tile& tile) {
    const RingPosition<K::kStages> values{keys.count - (i + 1 < tiles ? 2 : 1)};
    const u32 buffer = values.buffer();
    const u32 full = K::full(smem, K::kVBarriers, buffer);
    const bool clear = i == clear_at;
    const u32 landing = smem + K::kBarriers + 8 * K::kLandingBarrier;
    const u32 barrier = clear ? landing : full;
    wait(K::empty(smem, K::kVBarriers, buffer), values.empty(), kVEmpty);
    if (leader) ptx::mbarrier_arrive_expect(barrier, K::kBytesV);
    copy<K::kSlabsV>(K::kV + buffer * K::kBytesV, p.map_v, p.map_v_group, barrier, i < parts, tile);
    if (clear) {
      wait(landing, landings++ & 1, kLanding);
      clear_values(K::kV + buffer * K::kBytesV, Row::load(info).limit);
      if (leader) ptx::mbarrier_arrive(full);
    }
  }

  template <int kSlabs>
  __device__ __forceinline__ void copy(u32 to, const ptx::TensorMap& map,
                                       const ptx::TensorMap& map_group, u32 barrier, bool part,
                                       const Tile& tile) const {
    __syncwarp();  // the bytes are announced, and lanes that wrote to the buffers are done
    if (K::kPacked && part) {
      // A copy's operands are the same for all lanes, so lanes could not start theirs at once.
#pragma unroll 1
      for (int i = 0; i < K::kGroups; ++i) {
        const int group = __shfl_sync(0xffffffff, tile.group, i);
        const int first_row = group < 0 ? p.seq_k : 8 * group;  // behind the end are zeros
        if (leader) {
#pragma unroll
          for (int slab = 0; slab < kSlabs; ++slab)
            ptx::tma_load(smem + to + slab * K::kSlabBytesKv + i * (8 * 128), map_group, barrier,
                          64 * slab, first_row, kv_head, batch, ptx::L2::kAgain);
        }
      }
    } else if (leader) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab)
        ptx::tma_load(smem + to + slab * K::kSlabBytesKv, map, barrier, 64 * slab, tile.col * K::kN,
                      kv_head, batch, ptx::L2::kAgain);
    }
  }

  __device__ __forceinline__ void fill_bitmap(u32 at) const {
    for (int byte = 16 * lane; byte < K::kBitmapBytes; byte += 16 * 32)
      ptx::store_shared_16(at + byte, make_uint4(~0u, ~0u, ~0u, ~0u));
    ptx::fence_async_proxy();  // a copy may overwrite it later
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
