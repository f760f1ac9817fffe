// The loading warp of the sm_90a attention: queries, keys with their bitmaps, and values.
//
// Keys travel one tile ahead of values, because they are needed one softmax earlier; across rows
// too.
#pragma once

#include "attention/sm90_shape.cuh"
#include "pipeline.cuh"
#include "ptx/shared.cuh"
#include "ptx/sync.cuh"

namespace stof::attention::sm90 {

template <class K>
struct Producer {
  using Params = typename K::Params;

  // A tile of a row's list.
  struct Tile {
    int col;
    int group;  // of a packed tile, the group of 8 keys that this lane knows
    int batch, kv_head;
    bool part;
    int clear;    // the first key whose value the length cuts off, or kN
    u32 without;  // see Listed
  };

  const Params& p;
  const u32 smem;
  const int lane;
  const bool leader;  // the lane that starts copies
  const Waiter<K::kBounded> wait;
  RingPosition<K::kRows> rows;
  RingPosition<K::kQueries> queries;
  RingPosition<K::kStages> keys, values;
  u32 landings = 0;
  Tile tile;
  bool open = false;  // whether the values of `tile` are still to be loaded

  __device__ __forceinline__ Producer(const Params& params, u32 shared)
      : p(params),
        smem(shared),
        lane(threadIdx.x % 32),
        leader(ptx::elect_one()),
        wait(params.report) {}

  __device__ __forceinline__ void run() {
    while (true) {
      const u32 full = K::full(smem, K::kRowBarriers, rows.buffer());
      // The values of a row's last tile come after the first keys of the next row, if it is known.
      if (open && !__all_sync(0xffffffff, ptx::mbarrier_test(full, rows.full()))) load_v();
      wait(full, rows.full(), kRowFull);
      const int tiles = current().tiles;
      if (open && tiles <= 0) load_v();
      if (tiles < 0) break;
      load(tiles);
      __syncwarp();  // all lanes have read what they need of the row
      if (leader) ptx::mbarrier_arrive(K::empty(smem, K::kRowBarriers, rows.buffer()));
      rows.advance();
    }
    // A hang of the consumers between themselves shows here if nowhere else.
    if constexpr (K::kBounded) {
      const RingPosition<K::kQueries> last{queries.count - 1};
      if (queries.count > 0)
        wait(K::empty(smem, K::kQBarriers, last.buffer()), last.full(), kQEmpty);
    }
  }

  // The row in work: read each time, to spare registers.
  __device__ __forceinline__ Row current() const {
    return Row::load(K::row_info(smem, rows.buffer()));
  }

  // A row without keys takes a query buffer too: its output goes out through it.
  __device__ __forceinline__ void load(int tiles) {
    // With one buffer for queries, it is free later than the first key buffer.
    constexpr bool kQueriesFirst = K::kQueries > 1;
    if (tiles <= K::kEarly) ask_for_next();
    if (kQueriesFirst || tiles == 0) load_q();
    for (int i = 0; i < tiles; ++i) {
      if (i > 0 && i == tiles - K::kEarly) ask_for_next();
      const Tile before = tile;
      tile = pick(i);
      load_k(i);
      if (open) load_v(before);
      open = true;
      if (!kQueriesFirst && i == 0) load_q();
    }
  }

  __device__ __forceinline__ void ask_for_next() const {
    if (leader) ptx::mbarrier_arrive(K::asked(smem));
  }

  // The scheduler has read the first 32 tiles of the list; further ones take their place.
  __device__ __forceinline__ Tile pick(int i) {
    const Row row = current();
    const u32 list = K::list(smem, rows.buffer());
    if (i > 0 && i % Row::kListed == 0) {
      const int mine = i + lane;
      const int entry = row.entry(mine);
      __syncwarp();
      if (mine < row.tiles)
        ptx::store_shared_4(list + 4 * lane, static_cast<u32>(p.cols ? p.cols[entry] : entry));
      if (mine < row.parts)
        ptx::store_shared_4(list + K::kListBytes + 4 * lane, static_cast<u32>(p.bitmap_id[entry]));
      __syncwarp();
    }
    const u32 at = list + i % Row::kListed * 4;
    Tile found;
    const Listed<K::kHalves> listed(ptx::load_shared_4(at));
    found.col = listed.col;
    found.without = listed.without;
    found.batch = row.batch;
    found.kv_head = row.head / p.heads_per_kv;
    found.part = i < row.parts;
    found.clear = row.clear && i == row.masked - 1 ? row.limit : K::kN;
    found.group = -1;
    if (K::kPacked && found.part && lane < K::kGroups)
      found.group = p.groups[static_cast<i64>(found.col) * K::kGroups + lane];
    return found;
  }

  __device__ __forceinline__ void load_q() {
    const u32 buffer = queries.buffer();
    const u32 full = K::full(smem, K::kQBarriers, buffer);
    wait(K::empty(smem, K::kQBarriers, buffer), queries.empty(), kQEmpty);
    const Row row = current();
    if (leader) {
      ptx::mbarrier_arrive_expect(full, K::kBytesQ);
#pragma unroll
      for (int slab = 0; slab < K::kSlabsQk; ++slab)
        ptx::tma_load(smem + K::kQ + buffer * K::kBufferQ + slab * K::kSlabBytesQ, p.map_q, full,
                      64 * slab, row.q_tile * K::kM, row.head, row.batch, ptx::L2::kOnce);
    }
    queries.advance();
  }

  __device__ __forceinline__ void load_k(int i) {
    const u32 buffer = keys.buffer();
    const u32 full = K::full(smem, K::kKBarriers, buffer);
    const u32 bitmap = smem + K::kBitmaps + buffer * K::kBitmapBytes;
    wait(K::empty(smem, K::kKBarriers, buffer), keys.empty(), kKEmpty);
    const u32 list = K::list(smem, rows.buffer()) + K::kListBytes;
    const int id = ptx::load_shared_4(list + i % Row::kListed * 4);
    const bool whole = K::kPacked && tile.part && id < 0;
    if (whole) fill_bitmap(bitmap);
    if (K::kTerms) {
      store_places(buffer);
      __syncwarp();
    }
    if (K::kHalves && leader) ptx::store_shared_4(K::places(smem, buffer), tile.without);
    if (leader) {
      const bool copied = tile.part && !whole;
      ptx::mbarrier_arrive_expect(full, K::kBytesK + (copied ? K::kBitmapBytes : 0));
      if (copied)
        ptx::bulk_load(bitmap, p.bitmaps + static_cast<i64>(id) * (K::kBitmapBytes / 4),
                       K::kBitmapBytes, full);
    }
    copy<K::kSlabsQk>(K::kK + buffer * K::kBytesK, p.map_k, p.map_k_group, full, tile);
    keys.advance();
  }

  // Which keys stand in the tile; those of no group are behind the end.
  __device__ __forceinline__ void store_places(u32 buffer) const {
    if (lane >= K::kGroups) return;
    int key = tile.col * K::kN + 8 * lane;
    if (K::kPacked && tile.part) key = tile.group < 0 ? p.seq_k : 8 * tile.group;
    ptx::store_shared_4(K::places(smem, buffer) + 4 * lane, static_cast<u32>(key));
  }

  __device__ __forceinline__ void load_v() {
    load_v(tile);
    open = false;
  }

  __device__ __forceinline__ void load_v(const Tile& of) {
    const u32 buffer = values.buffer();
    const u32 full = K::full(smem, K::kVBarriers, buffer);
    const u32 landing = smem + K::kBarriers + 8 * K::kLandingBarrier;
    const bool clear = of.clear < K::kN;
    const u32 barrier = clear ? landing : full;
    wait(K::empty(smem, K::kVBarriers, buffer), values.empty(), kVEmpty);
    if (leader) ptx::mbarrier_arrive_expect(barrier, K::kBytesV);
    copy<K::kSlabsV>(K::kV + buffer * K::kBytesV, p.map_v, p.map_v_group, barrier, of);
    if (clear) {
      wait(landing, landings++ & 1, kLanding);
      clear_values(K::kV + buffer * K::kBytesV, of.clear);
      if (leader) ptx::mbarrier_arrive(full);
    }
    values.advance();
  }

  template <int kSlabs>
  __device__ __forceinline__ void copy(u32 to, const ptx::TensorMap& map,
                                       const ptx::TensorMap& map_group, u32 barrier,
                                       const Tile& of) const {
    __syncwarp();  // the bytes are announced, and lanes that wrote to the buffers are done
    if (K::kPacked && of.part) {
      // A copy's operands are the same for all lanes, so lanes could not start theirs at once. Each
      // in a branch of its own, with what leads to it, takes 200 clocks (keys and values 420).
      constexpr int kAtOnce = kSlabs <= 2 && K::kGroups % 4 == 0 ? 4 : 2;
#pragma unroll 1
      for (int from = 0; from < K::kGroups; from += kAtOnce) {
        int first_row[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int group = __shfl_sync(0xffffffff, of.group, from + i);
          first_row[i] = group < 0 ? p.seq_k : 8 * group;  // behind the end are zeros
        }
        if (!leader) continue;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int slab = 0; slab < kSlabs; ++slab)
            ptx::tma_load(smem + to + slab * K::kSlabBytesKv + (from + i) * (8 * 128), map_group,
                          barrier, 64 * slab, first_row[i], of.kv_head, of.batch, ptx::L2::kAgain);
      }
    } else if (leader) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab)
        ptx::tma_load(smem + to + slab * K::kSlabBytesKv, map, barrier, 64 * slab, of.col * K::kN,
                      of.kv_head, of.batch, ptx::L2::kAgain);
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
