// Builds the work lists of masks from an expression: what stof_cupy/masks/schedule.py does on the
// host, for tiles of multiples of 64, without waiting for the host and in one pass.
//
// One CTA takes one row of tiles. Its threads settle a tile each by interval arithmetic; tiles that
// leaves open are settled by their elements, a warp each. The states stay in shared memory, two
// bits a tile, until the rows before this one have said how much they list (decoupled look-back,
// Merrill and Garland 2016); then the lists are written, and the bits of part tiles with them. Each
// part tile has a bitmap of its own.
//
// Nothing is written beyond the stated capacity; `totals` says what there would have been, and
// `overflow` whether it was more than that.
#pragma once

#include "mask/accumulator.cuh"
#include "mask/arrays.cuh"
#include "mask/bitmap.cuh"
#include "mask/program.cuh"
#include "types.cuh"

namespace stof::mask {

// Why lists are not to be used.
enum Wrong : int { kFits, kTooMany, kOperand };

template <int kRows, int kCols, bool kAccumulator, typename Formulas = NoFormulas>
struct Build {
  static_assert(kRows % 64 == 0 && kCols % 64 == 0);
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = Formulas::kMinBlocks;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kWords = kCols / 64;  // 64-bit words of a row of a tile
  static constexpr int kTileWords = kRows * kWords;
  static constexpr int kMaxColumns = 1 << 16;  // tiles of a row
  static constexpr u32 kAll = 0xffffffffu;

  struct Smem {
    u32 part[kMaxColumns / 32];
    u32 full[kMaxColumns / 32];
    u64 aside[kMaxDepth][kThreads];
    u64 rows[kWarps][kTileWords];
    Facts facts[kMaxNodes];
    int open[kThreads];  // tiles of a chunk that interval arithmetic leaves open
    int open_count;
    int row;        // of tiles, of all masks
    int before[2];  // tiles and bitmaps that earlier rows list
    int warp_counts[2][kWarps];
  };
  static constexpr int kSmemBytes = sizeof(Smem);

  struct Params {
    Program program;
    u64* progress;  // zeros: one of each row of tiles, and the ticket
    int* row_ptr;   // (masks, row tiles + 1), and so on as in a schedule
    int* full_ptr;
    int* cols;
    int* bitmap_id;
    u64* bitmaps;
    int* totals;  // tiles, bitmaps, and what is wrong with the lists (Wrong)
    // Two words for 32 tiles of a row, part and full ones, or null: what a first pass, of no
    // capacity, finds out, and a second one need not find out again.
    u32* found;
    const u32* known;
    int node_count;
    int masks, lead_inner;
    int queries, keys;
    int tile_capacity, bitmap_capacity;
  };

  struct Row {
    Lead lead;
    int mask, tile;  // of which mask; which row of its tiles
    int q0, q1;
  };

  // Look-back: how far a row is, and its tiles and bitmaps, in one word that is stored at once.
  static constexpr u64 kOwn = u64{1} << 62;    // those of the row itself
  static constexpr u64 kAllOf = u64{2} << 62;  // of the rows before it as well
  static constexpr u64 kCountMask = (u64{1} << 31) - 1;

  __device__ static __forceinline__ int saturated(i64 count) {
    return static_cast<int>(smaller(count, static_cast<i64>(kCountMask)));
  }

  __device__ static __forceinline__ u64 packed(u64 flag, int tiles, int bitmaps) {
    return flag | static_cast<u64>(tiles) << 31 | static_cast<u64>(bitmaps);
  }

  __device__ static __forceinline__ void look_back(Smem& s, volatile u64* progress, int lane,
                                                   int tiles, int bitmaps) {
    if (lane == 0 && s.row > 0) progress[s.row] = packed(kOwn, tiles, bitmaps);
    i64 tiles_before = 0, bitmaps_before = 0;
    for (int first = s.row - 1; first >= 0; first -= 32) {
      const int at = first - lane;
      u64 word = kAllOf;  // before the first row there is nothing
      if (at >= 0) do
          word = progress[at];
        while (word == 0);
      // Up to the nearest row that knows all before it, each counts.
      const u32 known = __ballot_sync(kAll, word >= kAllOf);
      const int last = known ? __ffs(known) - 1 : 31;
      i64 t = lane <= last ? word >> 31 & kCountMask : 0;
      i64 b = lane <= last ? word & kCountMask : 0;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        t += __shfl_xor_sync(kAll, t, step);
        b += __shfl_xor_sync(kAll, b, step);
      }
      tiles_before += t;
      bitmaps_before += b;
      if (known) break;
    }
    if (lane == 0) {
      s.before[0] = saturated(tiles_before);
      s.before[1] = saturated(bitmaps_before);
      progress[s.row] =
          packed(kAllOf, saturated(tiles_before + tiles), saturated(bitmaps_before + bitmaps));
    }
  }

  // What the rows of a tile have in common, for each leaf that sees intervals; a warp a leaf.
  __device__ static __forceinline__ void gather_facts(const Params& p, Smem& s, const Row& row,
                                                      int warp, int lane) {
    for (int n = warp; n < p.node_count; n += kWarps) {
      const Node& node = p.program.nodes[n];
      if (!has_bounds(node)) continue;
      Facts all = kNoFacts;
      for (int q = row.q0 + lane; q < row.q1; q += 32)
        all = joined(all, row_facts(node, row.lead, q));
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        const Facts other = {__shfl_xor_sync(kAll, all.hull_start, step),
                             __shfl_xor_sync(kAll, all.hull_stop, step),
                             __shfl_xor_sync(kAll, all.common_start, step),
                             __shfl_xor_sync(kAll, all.common_stop, step)};
        all = joined(all, other);
      }
      if (lane == 0) s.facts[n] = all;
    }
  }

  // 64 elements of row `r` of the tile row, for all lanes of a warp at once.
  __device__ static __forceinline__ u64 word(const Params& p, Smem& s, const Row& row, int r,
                                             int k) {
    if (k >= p.keys) return 0;
    const u64 bits = row_word<Formulas>(p.program, p.node_count, row.lead, p.lead_inner, row.q0 + r,
                                        k, p.keys, &s.aside[0][threadIdx.x], kThreads);
    return row.q0 + r < row.q1 ? bits : 0;
  }

  // The state of one tile by its elements; every lane of the warp gets it.
  __device__ static __forceinline__ State settle(const Params& p, Smem& s, const Row& row, int col,
                                                 int lane) {
    bool some = false, all = true;
#pragma unroll 1
    for (int i = lane; i < kTileWords; i += 32) {
      const int r = i % kRows, k = col * kCols + i / kRows * 64;
      const u64 bits = word(p, s, row, r, k);
      some = some || bits != 0;
      all = all && bits == (row.q0 + r < row.q1 ? low_bits(p.keys - k) : 0);
      // What keeps one element and drops another needs no further look.
      if (__any_sync(kAll, some) && __any_sync(kAll, !all)) break;
    }
    some = __any_sync(kAll, some);
    all = __all_sync(kAll, all);
    return all ? kFull : some ? kPart : kEmpty;
  }

  __device__ static __forceinline__ void classify(const Params& p, Smem& s, const Row& row,
                                                  int columns, int warp, int lane) {
    for (int first = 0; first < columns; first += kThreads) {
      const int col = first + threadIdx.x;
      State state = kEmpty;
      if (col < columns) {
        const Box box = {row.q0, row.q1, col * kCols, smaller((col + 1) * kCols, p.keys)};
        state = box_state<Formulas>(p.program, p.node_count, s.facts, row.lead, p.lead_inner, box,
                                    &s.aside[0][threadIdx.x], kThreads);
      }
      const u32 full = __ballot_sync(kAll, state == kFull);
      const u32 open = __ballot_sync(kAll, state == kPart);
      int at = 0;
      if (lane == 0) {
        s.full[first / 32 + warp] = full;
        s.part[first / 32 + warp] = 0;
        if (open) at = atomicAdd(&s.open_count, __popc(open));
      }
      at = __shfl_sync(kAll, at, 0) + __popc(open & ((1u << lane) - 1));
      if (state == kPart) s.open[at] = col;
      __syncthreads();
      for (int i = warp; i < s.open_count; i += kWarps) {
        const int which = s.open[i];
        const State settled = settle(p, s, row, which, lane);
        if (lane == 0 && settled != kEmpty)
          atomicOr((settled == kFull ? s.full : s.part) + which / 32, 1u << which % 32);
      }
      __syncthreads();
      if (threadIdx.x == 0) s.open_count = 0;
      __syncthreads();
    }
  }

  // Whether one of the masks that this one is made of did not fit its own lists.
  __device__ static __forceinline__ bool operands_overflow(const Params& p) {
    bool any = false;
    for (int n = 0; n < p.node_count; ++n) {
      const Node& node = p.program.nodes[n];
      if (is<Formulas>(node, kStored) && node.stored.overflow != nullptr)
        any = any || *node.stored.overflow != 0;
    }
    return any;
  }

  // Exclusive sums over the CTA of two counts a thread; every thread gets the totals as well.
  __device__ static __forceinline__ void scan(Smem& s, int (&mine)[2], int (&total)[2], int warp,
                                              int lane) {
    int inclusive[2] = {mine[0], mine[1]};
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int other = __shfl_up_sync(kAll, inclusive[i], step);
        if (lane >= step) inclusive[i] += other;
      }
    __syncthreads();
    if (lane == 31)
#pragma unroll
      for (int i = 0; i < 2; ++i) s.warp_counts[i][warp] = inclusive[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int before = 0;
      total[i] = 0;
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += s.warp_counts[i][w];
        total[i] += s.warp_counts[i][w];
      }
      mine[i] = before + inclusive[i] - mine[i];
    }
  }

  // Lists the set bits of a word as columns from `base` on, part tiles with their bitmaps' numbers.
  __device__ static __forceinline__ void list(const Params& p, u32 bits, int word, i64 base,
                                              i64 bitmap, bool part) {
    while (bits) {
      const int col = 32 * word + __ffs(bits) - 1;
      bits &= bits - 1;
      if (base < p.tile_capacity) {
        p.cols[base] = col;
        p.bitmap_id[base] =
            part ? static_cast<int>(smaller(bitmap, i64{p.bitmap_capacity} - 1)) : -1;
      }
      ++base;
      ++bitmap;
    }
  }

  __device__ static __forceinline__ void write_bitmap(const Params& p, const u64* rows, i64 bitmap,
                                                      int lane) {
    u64* to = p.bitmaps + bitmap * kTileWords;
    if constexpr (kAccumulator) {
      u32* words = reinterpret_cast<u32*>(to);
      for (int i = lane; i < kTileWords * 2; i += 32) {
        const int own = i % kWords, quad = i / kWords % 4, g = i / kWords / 4 % 8;
        const int group = i / kWords / 32;
        u32 both = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int piece = 2 * own + half;  // sixteen bits each: r * kWords + 64 columns
          const int r = 16 * group + 8 * (piece / kWords) + g;
          both |= accumulator_pairs(rows[piece % kWords * kRows + r], quad) << 16 * half;
        }
        words[i] = both;
      }
    } else {
      for (int i = lane; i < kTileWords; i += 32) {
        const int down = i % (kRows / 8), across = i / (kRows / 8);
        u64 word = 0;
#pragma unroll
        for (int r = 0; r < 8; ++r)
          word |= (rows[across / 8 * kRows + 8 * down + r] >> 8 * (across % 8) & 0xff) << 8 * r;
        to[i] = word;
      }
    }
  }

  __device__ static __forceinline__ void emit(const Params& p, Smem& s, const Row& row, int columns,
                                              int parts, int warp, int lane) {
    const i64 tiles_before = s.before[0], bitmaps_before = s.before[1];
    const int words = ceil_div(columns, 32);
    i64 part_base = tiles_before, full_base = tiles_before + parts, bitmap_base = bitmaps_before;
    for (int first = 0; first < words; first += kThreads) {
      const int w = first + threadIdx.x;
      const u32 part = w < words ? s.part[w] : 0, full = w < words ? s.full[w] : 0;
      int at[2] = {__popc(part), __popc(full)}, total[2];
      scan(s, at, total, warp, lane);
      list(p, part, w, part_base + at[0], bitmap_base + at[0], true);
      list(p, full, w, full_base + at[1], 0, false);
      part_base += total[0];
      bitmap_base += total[0];
      full_base += total[1];
    }
    __syncthreads();  // the columns of this row are there for all its warps
    for (int i = warp; i < parts; i += kWarps) {
      if (tiles_before + i >= p.tile_capacity || bitmaps_before + i >= p.bitmap_capacity) break;
      const int col = p.cols[tiles_before + i];
      for (int at = lane; at < kTileWords; at += 32)
        s.rows[warp][at] = word(p, s, row, at % kRows, col * kCols + at / kRows * 64);
      __syncwarp();
      write_bitmap(p, s.rows[warp], bitmaps_before + i, lane);
      __syncwarp();
    }
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    Smem& s = *reinterpret_cast<Smem*>(smem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row_tiles = ceil_div(p.queries, kRows), columns = ceil_div(p.keys, kCols);
    const int all_rows = p.masks * row_tiles;
    if (threadIdx.x == 0) {
      // In order of arrival, so that every row that this one waits for is running.
      s.row = static_cast<int>(atomicAdd(p.progress + all_rows, u64{1}));
      s.open_count = 0;
    }
    __syncthreads();
    Row row;
    row.mask = s.row / row_tiles;
    row.tile = s.row % row_tiles;
    row.lead = {row.mask / p.lead_inner, row.mask % p.lead_inner};
    row.q0 = row.tile * kRows;
    row.q1 = smaller(row.q0 + kRows, p.queries);

    const int words = ceil_div(columns, 32);
    const i64 first_word = i64{s.row} * words;
    if (p.known == nullptr) {
      gather_facts(p, s, row, warp, lane);
      __syncthreads();
      classify(p, s, row, columns, warp, lane);
    }
    int counts[2] = {0, 0}, total[2];
    for (int w = threadIdx.x; w < words; w += kThreads) {
      if (p.known != nullptr) {
        s.part[w] = p.known[2 * (first_word + w)];
        s.full[w] = p.known[2 * (first_word + w) + 1];
      }
      if (p.found != nullptr) {
        p.found[2 * (first_word + w)] = s.part[w];
        p.found[2 * (first_word + w) + 1] = s.full[w];
      }
      counts[0] += __popc(s.part[w]);
      counts[1] += __popc(s.full[w]);
    }
    scan(s, counts, total, warp, lane);
    const int parts = total[0], tiles = total[0] + total[1];
    if (warp == 0) look_back(s, p.progress, lane, tiles, parts);
    __syncthreads();

    if (threadIdx.x == 0) {
      const i64 first = s.before[0], last = first + tiles, bitmaps = i64{s.before[1]} + parts;
      const i64 capacity = p.tile_capacity;
      int* row_ptr = p.row_ptr + i64{row.mask} * (row_tiles + 1) + row.tile;
      row_ptr[0] = static_cast<int>(smaller(first, capacity));
      p.full_ptr[s.row] = static_cast<int>(smaller(first + parts, capacity));
      if (row.tile == row_tiles - 1) row_ptr[1] = static_cast<int>(smaller(last, capacity));
      if (s.row == all_rows - 1) {
        p.totals[0] = saturated(last);
        p.totals[1] = saturated(bitmaps);
        p.totals[2] = last > capacity || bitmaps > p.bitmap_capacity ? kTooMany
                      : operands_overflow(p)                         ? kOperand
                                                                     : kFits;
      }
    }
    emit(p, s, row, columns, parts, warp, lane);
  }
};

// Ranks the rows of tiles of each mask, those that list most first and equal ones as they stand,
// and puts down in that order which they are and where their lists are.
struct Order {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = kThreads * sizeof(int);

  struct Params {
    const int* row_ptr;
    const int* full_ptr;
    int* order;
    uint4* work;  // row, and where its list begins, its full tiles begin, and both end
    int rows;
  };

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    int* lengths = reinterpret_cast<int*>(smem);
    const int blocks = ceil_div(p.rows, kThreads);
    const int mask = blockIdx.x / blocks;
    const int row = blockIdx.x % blocks * kThreads + threadIdx.x;
    const int* row_ptr = p.row_ptr + i64{mask} * (p.rows + 1);
    const int own = row < p.rows ? row_ptr[row + 1] - row_ptr[row] : 0;
    int rank = 0;
    for (int first = 0; first < p.rows; first += kThreads) {
      const int other = first + threadIdx.x;
      __syncthreads();
      lengths[threadIdx.x] = other < p.rows ? row_ptr[other + 1] - row_ptr[other] : -1;
      __syncthreads();
      for (int i = 0; i < kThreads; ++i)
        rank += lengths[i] > own || (lengths[i] == own && first + i < row);
    }
    if (row >= p.rows) return;
    const i64 first = i64{mask} * p.rows, at = first + rank;
    p.order[at] = row;
    p.work[at] = make_uint4(row, row_ptr[row], p.full_ptr[first + row], row_ptr[row + 1]);
  }
};

}  // namespace stof::mask
