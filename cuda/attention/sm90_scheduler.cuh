// Which rows (query tiles of a head) a CTA computes: the scheduling warp of the sm_90a attention.
//
// CTAs stay for many rows. Each takes the next one off a counter when it has only a few tiles of
// the one before left to load: so early that nobody waits for the look-ups, and not earlier,
// because what is taken waits for this CTA while others may be idle. Rows come longest first: those
// that are long beside a CTA's share of the work first of all heads, then the others of a section
// of heads, whose keys and values fit into L2, before those of the next.
#pragma once

#include "attention/sm90_shape.cuh"
#include "pipeline.cuh"

namespace stof::attention::sm90 {

// The number of the mask of a batch and head.
template <class Params>
__device__ __forceinline__ i64 mask_number(const Params& p, int batch, int head) {
  return p.mask_of ? p.mask_of[static_cast<i64>(batch) * p.mask_batch + head * p.mask_head] : 0;
}

// The query tile at a slot, and where its list is (Params::work).
template <class Params>
__device__ __forceinline__ uint4 work_at(const Params& p, i64 mask, int slot, int q_tiles) {
  return p.work ? p.work[mask * q_tiles + slot] : make_uint4(slot, 0, 0, 0);
}

template <class K>
struct Scheduler {
  using Params = typename K::Params;

  const Params& p;
  const u32 smem;
  const int lane;
  const Waiter<K::kBounded> wait;
  RingPosition<K::kRows> position;

  __device__ __forceinline__ Scheduler(const Params& params, u32 shared)
      : p(params), smem(shared), lane(threadIdx.x % 32), wait(params.report) {}

  __device__ __forceinline__ void run() {
    const int q_tiles = ceil_div(p.seq_q, K::kM);
    const int total = (q_tiles + p.long_slots * (p.splits - 1)) * p.heads * p.batch;
    int ticket = blockIdx.x;
    while (true) {
      const u32 buffer = position.buffer();
      const bool more = ticket < total;
      const Row row = more ? find(ticket, q_tiles) : Row{0, 0, 0, 0, -1};
      const bool listed = lane < row.tiles;
      const int entry = row.entry(lane);
      const int tile = listed ? tile_at(entry) : 0;
      const int id = listed && lane < row.parts ? p.bitmap_id[entry] : 0;
      wait(K::empty(smem, K::kRowBarriers, buffer), position.empty(), kRowEmpty);
      ptx::store_shared_4(K::list(smem, buffer) + 4 * lane, static_cast<u32>(tile));
      ptx::store_shared_4(K::list(smem, buffer) + K::kListBytes + 4 * lane, static_cast<u32>(id));
      if (lane == 0) row.store(K::row_info(smem, buffer));
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(K::full(smem, K::kRowBarriers, buffer));
      if (!more) break;
      wait(K::asked(smem), position.count & 1, kAsked);
      position.advance();
      if (lane == 0) ticket = next(total);
      ticket = __shfl_sync(0xffffffff, ticket, 0);
    }
  }

  // Takes a number after those that the CTAs began with. Each CTA asks until it has one beyond the
  // last row, so it is known who asks last: it leaves the counter as the next launch needs it.
  __device__ __forceinline__ int next(int total) {
    const int taken = atomicAdd(p.counter, 1);
    if (taken == total - 1) *p.counter = 0;
    return gridDim.x + taken;
  }

  __device__ __forceinline__ Row find(int ticket, int q_tiles) {
    const int all_heads = p.batch * p.heads;
    const int rest = ticket - p.long_slots * all_heads * p.splits;
    const int per_section = p.section * (q_tiles - p.long_slots);
    int slot = ticket / p.splits / all_heads;
    int of_all = ticket / p.splits % all_heads;
    if (rest >= 0) {
      const int first_head = rest / per_section * p.section;
      const int heads_here = min(p.section, all_heads - first_head);
      slot = p.long_slots + rest % per_section / heads_here;
      of_all = first_head + rest % per_section % heads_here;
    }

    Row row;
    row.batch = of_all / p.heads;
    row.head = of_all % p.heads;
    row.poison = p.overflow != nullptr && *p.overflow != 0;
    const i64 mask = mask_number(p, row.batch, row.head);
    const uint4 work = work_at(p, mask, slot, q_tiles);
    row.q_tile = work.x;
    row.partial = rest < 0 && p.splits > 1 ? ticket : -1;

    row.limit = K::kN;
    row.tiles = row.masked = row.parts = row.first = row.last = row.clear = 0;
    if (row.poison) return row;  // the lists may name what is not there

    const int length = p.kv_lengths ? max(0, min(p.seq_k, p.kv_lengths[row.batch])) : p.seq_k;
    const int reached = ceil_div(length, K::kN);  // key tiles
    int fulls = reached;
    row.last = reached - 1;
    if (p.work != nullptr) {
      row.first = work.y;
      row.parts = within_reach(work.y, work.z, reached);
      fulls = within_reach(work.z, work.w, reached);
      row.last = static_cast<int>(work.z) + fulls - 1;
    }
    row.tiles = row.parts + fulls;
    row.masked = row.parts;
    if (length % K::kN != 0) {
      // Keys ascend in both lists, so the tile that is cut is the last of one of them.
      const bool full = fulls > 0 && column(row.last) == reached - 1;
      const bool part =
          !K::kPacked && row.parts > 0 && column(row.first + row.parts - 1) == reached - 1;
      row.masked += full;
      if (full || part) {
        row.limit = length % K::kN;
        row.clear = length < p.seq_k;
      }
    }
    if (row.partial >= 0) take_slice(row, ticket % p.splits);
    return row;
  }

  // Leaves of a row's list the tiles of one slice.
  __device__ __forceinline__ void take_slice(Row& row, int slice) const {
    const int begin = static_cast<int>(static_cast<i64>(row.tiles) * slice / p.splits);
    const int end = static_cast<int>(static_cast<i64>(row.tiles) * (slice + 1) / p.splits);
    const int cut = row.masked - 1;  // the tile that the length may cut through
    if (cut < begin || cut >= end) {
      row.limit = K::kN;
      row.clear = 0;
    }
    row.first += begin;
    row.last -= max(0, begin - row.parts);
    row.tiles = end - begin;
    row.masked = max(0, min(row.masked, end) - begin);
    row.parts = max(0, min(row.parts, end) - begin);
  }

  __device__ __forceinline__ int tile_at(int entry) const { return p.cols ? p.cols[entry] : entry; }
  __device__ __forceinline__ int column(int entry) const {
    return Listed<K::kHalves>(tile_at(entry)).col;
  }

  // How many entries of an ascending list have keys below the length.
  __device__ __forceinline__ int within_reach(int begin, int end, int reached) const {
    if (p.kv_lengths == nullptr) return end - begin;
    int count = 0;
    for (int i = begin; i < end; i += 32) {
      const bool within = i + lane < end && Listed<K::kHalves>(p.cols[i + lane]).col < reached;
      count += __popc(__ballot_sync(0xffffffff, within));
    }
    return count;
  }
};

}  // namespace stof::attention::sm90
