// Sizes, parameters and shared memory of the sm_90a attention kernel.
#pragma once

#include "ptx/tma.cuh"
#include "types.cuh"

namespace stof::attention::sm90 {

// What a CTA is told of one query tile.
struct Row {
  int q_tile, head, batch;
  int poison;  // the answer is NaN
  // Key tiles: those with a bitmap, then the one that the length cuts through if it has none, then
  // full ones. So `masked`, those whose scores may be masked, is `parts` or one more.
  int tiles;  // -1: there are no more rows
  int masked, parts;
  int limit;  // keys of the last masked tile
  // Where the lists are: tile i is entry first + i if it has a bitmap, entry last - (i - parts) if
  // not.
  int first, last;
  int clear;  // beyond the limit lie values, which are not to be used
  int unused;

  __device__ __forceinline__ int entry(int i) const {
    return i < parts ? first + i : last - (i - parts);
  }
};
static_assert(sizeof(Row) == 48, "three 16-byte accesses");

// What a wait that took too long was for (Waiter).
enum Wait { kRowFull = 1, kRowEmpty, kQFull, kQEmpty, kKFull, kKEmpty, kVFull, kVEmpty, kLanding };

// `kBlocks` CTAs of `kWarpgroups` x 64 query rows share an SM; key tiles have kN columns. There are
// kStages buffers for key and value tiles, and kQueries for query tiles.
template <typename T_, int kDimQk_, int kDimV_, int kN_, int kWarpgroups_, int kStages_,
          int kQueries_, int kBlocks, bool kBounded_>
struct Shape {
  using T = T_;
  static constexpr int kDimQk = kDimQk_;
  static constexpr int kDimV = kDimV_;
  static constexpr int kN = kN_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kM = 64 * kWarpgroups;
  static constexpr int kStages = kStages_;
  static constexpr int kQueries = kQueries_;
  static constexpr bool kBounded = kBounded_;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kMinBlocks = kBlocks;
  static_assert(kN % 16 == 0 && kDimQk % 16 == 0 && kDimV % 16 == 0, "k16 and whole swizzle atoms");

  // Registers that threads get: the launch gives all the same number, which the loading warpgroup
  // hands to the others.
  static constexpr int kRegistersAtLaunch = 65536 / (kThreads * kBlocks) / 8 * 8;
  static constexpr int kRegistersOfLoader = kWarpgroups < 3 && kBlocks == 1 ? 40 : 32;
  static constexpr int kRegistersSpare = kRegistersAtLaunch - kRegistersOfLoader;
  static constexpr int kRegistersWanted = kRegistersAtLaunch + kRegistersSpare / kWarpgroups;
  static constexpr int kRegisters = kRegistersWanted > 240 ? 240 : kRegistersWanted / 8 * 8;

  static_assert(kN / 2 + kN / 4 + kDimV / 2 + 32 <= kRegisters, "scores, weights, output and rest");

  // Tiles lie as slabs of 64 columns, which is the 128 bytes that a swizzled box is wide. Of head
  // dim 96 the second slab is half used.
  static constexpr int kSlabBytesQ = kM * 128;
  static constexpr int kSlabBytesKv = kN * 128;
  static constexpr int kSlabsQk = (kDimQk + 63) / 64;
  static constexpr int kSlabsV = (kDimV + 63) / 64;
  static constexpr int kBytesQ = kSlabsQk * kSlabBytesQ;
  static constexpr int kBytesK = kSlabsQk * kSlabBytesKv;
  static constexpr int kBytesV = kSlabsV * kSlabBytesKv;
  // The output goes out through the query tile's buffer.
  static constexpr int kBufferQ = kSlabsQk > kSlabsV ? kBytesQ : kSlabsV * kSlabBytesQ;

  // A lane's bits of a tile, in the order of its scores (mask/accumulator.cuh).
  static constexpr int kMaskWords = (kN / 2 + 31) / 32;
  static constexpr int kBitmapBytes = kM / 16 * 32 * kMaskWords * 4;

  static constexpr int kRows = 2;  // one in work, one ahead
  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kQueries * kBufferQ;
  static constexpr int kV = kK + kStages * kBytesK;
  static constexpr int kBitmaps = kV + kStages * kBytesV;
  static constexpr int kRowInfo = kBitmaps + kStages * kBitmapBytes;
  static constexpr int kBarriers = kRowInfo + kRows * static_cast<int>(sizeof(Row));
  static constexpr int kQBarriers = 0;  // pairs of full and empty
  static constexpr int kKBarriers = kQBarriers + 2 * kQueries;
  static constexpr int kVBarriers = kKBarriers + 2 * kStages;
  static constexpr int kRowBarriers = kVBarriers + 2 * kStages;
  static constexpr int kLandingBarrier = kRowBarriers + 2 * kRows;
  static constexpr int kBarrierCount = kLandingBarrier + 1;
  static constexpr int kSmemBytes = kBarriers + 8 * kBarrierCount;

  // Barrier `index` of a ring whose first is `ring`.
  __device__ static __forceinline__ u32 full(u32 smem, int ring, u32 index) {
    return smem + kBarriers + 8 * (ring + 2 * index);
  }
  __device__ static __forceinline__ u32 empty(u32 smem, int ring, u32 index) {
    return full(smem, ring, index) + 8;
  }

  struct Params {
    ptx::TensorMap map_q, map_k, map_v, map_out;  // (head dim, seq, heads, batch)
    const T* q;  // beside the maps, for rows that are computed again (Repair)
    const T* k;
    const T* v;
    float* lse;  // (batch, heads, seq_q) contiguous, or null
    // The masks' lists (stof_cupy/masks/schedule.py), those of the distinct masks one after
    // another.
    const int* row_ptr;     // null: every key tile, unmasked
    const int* full_ptr;    // where the tiles without a bitmap begin
    const int* cols;        // key tile of each listed tile
    const int* bitmap_id;   // its bitmap
    const u32* bitmaps;     // in accumulator order
    const int* order;       // query tiles, longest first
    const int* mask_of;     // the number of a batch and head's mask; null: number 0
    const int* kv_lengths;  // (batch,), or null: keys at and after it are masked
    const int* overflow;    // not null and not 0: the lists are cut off, and the answer is NaN
    int* counter;           // 0; and 0 again after the kernel
    u32* report;            // see Waiter
    i64 q_batch, q_head, q_row;
    i64 k_batch, k_head, k_row;
    i64 v_batch, v_head, v_row;
    int mask_batch, mask_head;  // strides of mask_of
    int batch, heads, heads_per_kv;
    int section;  // heads (of all batches) that are worked on at a time
    int seq_q, seq_k;
    int dim_qk, dim_v;
    float scale_log2;  // softmax scale * log2(e), positive
  };
};

}  // namespace stof::attention::sm90
