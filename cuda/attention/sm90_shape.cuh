// Sizes, parameters and shared memory of the sm_90a attention kernel.
#pragma once

#include "attention/element_scores.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "types.cuh"

namespace stof::attention::sm90 {

// What a CTA is told of one query tile, or of a slice of its list.
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
  int clear;    // beyond the limit lie values, which are not to be used
  int partial;  // of a slice, the number of its result (Params::partial); else -1

  __device__ __forceinline__ int entry(int i) const {
    return i < parts ? first + i : last - (i - parts);
  }

  static constexpr int kBytes = 48;
  static constexpr int kListed = 32;  // entries whose column and bitmap come with a row

  __device__ static __forceinline__ Row load(u32 address) {
    const uint4 a = ptx::load_shared_16(address);
    const uint4 b = ptx::load_shared_16(address + 16);
    const uint4 c = ptx::load_shared_16(address + 32);
    Row row;
    row.q_tile = a.x, row.head = a.y, row.batch = a.z, row.poison = a.w;
    row.tiles = b.x, row.masked = b.y, row.parts = b.z, row.limit = b.w;
    row.first = c.x, row.last = c.y, row.clear = c.z, row.partial = c.w;
    return row;
  }

  __device__ __forceinline__ void store(u32 address) const {
    ptx::store_shared_16(address, make_uint4(q_tile, head, batch, poison));
    ptx::store_shared_16(address + 16, make_uint4(tiles, masked, parts, limit));
    ptx::store_shared_16(address + 32, make_uint4(first, last, clear, partial));
  }
};

// An entry of `cols`: its key tile and, if kHalves, above it bit 2 * g + h where the queries of
// warpgroup g keep no key of half h.
template <bool kHalves>
struct Listed {
  int col;
  u32 without;

  __device__ __forceinline__ explicit Listed(int entry)
      : col(kHalves ? entry & 0xffffff : entry), without(kHalves ? entry >> 24 : 0) {}
};

// What a wait that took too long was for (Waiter).
enum Wait {
  kRowFull = 1,
  kRowEmpty,
  kQFull,
  kQEmpty,
  kKFull,
  kKEmpty,
  kVFull,
  kVEmpty,
  kLanding,
  kAsked,
  kStaged
};

template <typename T>
struct Params {
  ptx::TensorMap map_q, map_k, map_v, map_out;  // (head dim, seq, heads, batch)
  ptx::TensorMap map_k_group, map_v_group;      // for boxes of 8 rows; if kPacked
  const T* q;                                   // beside the maps, for what the copies do not do
  const T* k;
  const T* v;
  T* out;
  float* lse;  // (batch, heads, seq_q) contiguous, or null
  // Of slice s of slot i of head h (of all batches), number (i * heads of all batches + h) * splits
  // + s: kM x kDimV sums of weighted values, and after them of each row the origin and the sum of
  // weights. Combine adds them up.
  float* partial;
  // The masks' lists (stof_cupy/masks/schedule.py), those of the distinct masks one after
  // another.
  // Longest first: query tile, where its list begins, the tiles without a bitmap begin, and both
  // end. Null: every key tile, unmasked.
  const uint4* work;
  const int* cols;  // key tile of each listed tile, see Listed; a row of `groups` of a packed one
  const int* bitmap_id;   // its bitmap; -1 for a packed tile that is kept whole
  const int* groups;      // (packed tiles, kN / 8), -1 where there is none
  const u32* bitmaps;     // in accumulator order
  const int* mask_of;     // the number of a batch and head's mask; null: number 0
  const int* kv_lengths;  // (batch,), or null: keys at and after it are masked
  const int* overflow;    // not null and not 0: the lists are cut off, and the answer is NaN
  // Score modifications, see element_scores.cuh.
  const void* bias;
  const float* alibi;
  const float* relative;
  const float* sinks;  // (heads,): one more score in every row, whose value is 0; or null
  const int* query_at;
  const int* key_at;
  int* counter;  // 0; and 0 again after the kernel
  u32* report;   // see Waiter
  i64 q_batch, q_head, q_row;
  i64 k_batch, k_head, k_row;
  i64 v_batch, v_head, v_row;
  i64 out_batch, out_head, out_row;
  i64 bias_batch, bias_head, bias_row, bias_key;
  int mask_batch, mask_head;  // strides of mask_of
  int batch, heads, heads_per_kv;
  int section;     // heads (of all batches) that are worked on at a time
  int long_slots;  // query tiles of each head, the first of `work`, that come before,
  int splits;      // each in so many slices
  int seq_q, seq_k;
  int dim_qk, dim_v;
  int reach;
  int alike;     // distances from here on have one bias; the table goes on for a tile and a warp
  float factor;  // softmax scale * log2(e); positive where it is all that makes scores of products
  float cap, bias_masking;
};

// `kBlocks` CTAs of `kWarpgroups` x 64 query rows share an SM; key tiles have kN columns. There are
// kStages buffers for key and value tiles, and kQueries for query tiles. If kPacked, tiles before a
// row's full ones are made of groups of 8 keys from anywhere. `Scores` says what scores are beside
// products times a factor (element_scores.cuh). If kHalves, a warpgroup does without the halves of
// tiles that its queries do not see.
template <typename T_, int kDimQk_, int kDimV_, int kN_, int kWarpgroups_, int kStages_,
          int kQueries_, int kBlocks, bool kPacked_, bool kBounded_, bool kHalves_, class Scores_>
struct Shape {
  using T = T_;
  using Params = sm90::Params<T>;
  using Scores = Scores_;
  static constexpr int kDimQk = kDimQk_;
  static constexpr int kDimV = kDimV_;
  static constexpr int kN = kN_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kM = 64 * kWarpgroups;
  static constexpr int kStages = kStages_;
  static constexpr int kQueries = kQueries_;
  static constexpr bool kPacked = kPacked_;
  static constexpr bool kBounded = kBounded_;
  static constexpr bool kHalves = kHalves_;
  static constexpr bool kTerms = Scores::kCount > 0;
  // Not where it spills: a relative bias of packed keys of head dim 256.
  static constexpr bool kByDistance = kIsByDistance<Scores> && !(kPacked && kDimQk == 256);
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kMinBlocks = kBlocks;
  static_assert(kN % 16 == 0 && kDimQk % 16 == 0 && kDimV % 16 == 0, "k16 and whole swizzle atoms");

  // Registers that threads get: the launch gives all the same number, which the loading warpgroup
  // hands to the others.
  static constexpr int kRegistersAtLaunch = 65536 / (kThreads * kBlocks) / 8 * 8;
  // Scores, weights, and output.
  static constexpr int kRegistersOfTiles = kN / 2 + kN / 4 + kDimV / 2;
  // Who makes scores of more than a factor has places to load, too.
  static constexpr bool kRoomForLoader = kTerms && kWarpgroups == 1;
  static constexpr int kRegistersOfLoader = kRoomForLoader                                ? 56
                                            : kPacked                                     ? 48
                                            : kWarpgroups == 3 && kRegistersOfTiles > 120 ? 32
                                                                                          : 40;
  static constexpr int kRegistersSpare = kRegistersAtLaunch - kRegistersOfLoader;
  static constexpr int kRegistersWanted = kRegistersAtLaunch + kRegistersSpare / kWarpgroups;
  static constexpr int kRegisters = kRegistersWanted > 240 ? 240 : kRegistersWanted / 8 * 8;

  // Whether the two products of a step run together, so that the weights of one tile are kept while
  // the scores of the next arise.
  static constexpr bool kOverlap = kRegistersOfTiles + 32 <= kRegisters;
  static_assert(!kHalves || (kOverlap && kN == 128 && !kPacked && !kTerms), "where it is written");
  static_assert(kOverlap || kN / 2 + kDimV / 2 + 32 <= kRegisters, "32 for the rest");

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

  static constexpr int kGroups = kN / 8;  // of 8 keys, the height of a swizzle atom
  static_assert(!kPacked || kGroups <= 32, "a lane each");

  // A lane's bits of a tile, in the order of its scores (mask/accumulator.cuh).
  static constexpr int kMaskWords = (kN / 2 + 31) / 32;
  static constexpr int kBitmapBytes = kM / 16 * 32 * kMaskWords * 4;

  // The first key of each 8 columns of a tile, where scores depend on it; or which halves count.
  static constexpr int kPlaceBytes = kTerms ? 4 * kGroups : kHalves ? 8 : 0;

  static constexpr int kRows = 3;   // one that ends, one in work, one ahead
  static constexpr int kEarly = 4;  // tiles of a row that are not loaded yet when the next is taken
  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kQueries * kBufferQ;
  static constexpr int kV = kK + kStages * kBytesK;
  static constexpr int kBitmaps = kV + kStages * kBytesV;
  static constexpr int kRowInfo = kBitmaps + kStages * kBitmapBytes;  // 16-byte aligned
  static constexpr int kLists = kRowInfo + kRows * Row::kBytes;
  static constexpr int kListBytes = 4 * Row::kListed;  // twice a row: columns, then bitmaps
  static constexpr int kPlaces = kLists + kRows * 2 * kListBytes;
  static constexpr int kBarriers = kPlaces + kStages * kPlaceBytes;
  static constexpr int kQBarriers = 0;  // pairs of full and empty
  static constexpr int kKBarriers = kQBarriers + 2 * kQueries;
  static constexpr int kVBarriers = kKBarriers + 2 * kStages;
  static constexpr int kRowBarriers = kVBarriers + 2 * kStages;
  static constexpr int kLandingBarrier = kRowBarriers + 2 * kRows;
  static constexpr int kAskedBarrier = kLandingBarrier + 1;
  static constexpr int kStagedBarriers = kAskedBarrier + 1;
  static constexpr int kBarrierCount = kStagedBarriers + kQueries * kWarpgroups;
  static constexpr int kSmemBytes = kBarriers + 8 * kBarrierCount;

  __device__ static __forceinline__ u32 row_info(u32 smem, u32 index) {
    return smem + kRowInfo + index * Row::kBytes;
  }
  __device__ static __forceinline__ u32 list(u32 smem, u32 index) {
    return smem + kLists + index * (2 * kListBytes);
  }
  __device__ static __forceinline__ u32 places(u32 smem, u32 buffer) {
    return smem + kPlaces + buffer * kPlaceBytes;
  }
  // Where the loading warp says that the next row is to be looked up.
  __device__ static __forceinline__ u32 asked(u32 smem) {
    return smem + kBarriers + 8 * kAskedBarrier;
  }
  // Where the warps of a warpgroup say that its output is in the buffer, and that they are done
  // with the row.
  __device__ static __forceinline__ u32 staged(u32 smem, u32 buffer, int group) {
    return smem + kBarriers + 8 * (kStagedBarriers + buffer * kWarpgroups + group);
  }
  // Barrier `index` of a ring whose first is `ring`.
  __device__ static __forceinline__ u32 full(u32 smem, int ring, u32 index) {
    return smem + kBarriers + 8 * (ring + 2 * index);
  }
  __device__ static __forceinline__ u32 empty(u32 smem, int ring, u32 index) {
    return full(smem, ring, index) + 8;
  }
};

}  // namespace stof::attention::sm90
