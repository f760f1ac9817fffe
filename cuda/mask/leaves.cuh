// What each leaf of a mask expression says of a box of elements and of 64 keys of a row. Plain C++:
// the tests run it on the CPU.
//
// Positions are the leaf's own. A box is never empty and lies inside of the leaf; a word may reach
// beyond it, where its bits mean nothing but nothing is read.
#pragma once

#include "mask/bitmap.cuh"
#include "mask/bits.cuh"
#include "mask/node.cuh"
#include "mask/score.cuh"
#include "types.cuh"

namespace stof::mask {

struct Box {
  int q0, q1, k0, k1;
};

// What the rows of a box have in common, for leaves in which a row sees one interval of keys.
struct Facts {
  int hull_start, hull_stop;      // of the rows' intervals
  int common_start, common_stop;  // in all of them
};

struct Range {
  int start, stop;
};

// Interval leaves ---------------------------------------------------------------------------------

__device__ inline Range bounds(const Band& band, int q) {
  if (q < band.query_start || q >= band.query_stop) return {0, 0};
  const int p = q + band.offset;
  const int chunk = band.size == 1 ? p : floor_div(p, band.size);
  const int stop = smaller((chunk + 1 + band.after) * band.size, band.key_stop);
  return {larger((chunk - band.before) * band.size, band.key_start),
          band.causal ? smaller(stop, p + 1) : stop};
}

__device__ inline Range bounds(const Intervals& leaf, Lead lead, int q) {
  const i64 at = lead.at(leaf.lead) + q;
  return {leaf.start[at], leaf.stop[at]};
}

__device__ inline Range bounds(const Segments& leaf, int q) {
  int low = 0, high = leaf.count - 1;  // the first segment that stops after q
  while (low < high) {
    const int middle = (low + high) / 2;
    if (leaf.query_stop[middle] <= q)
      low = middle + 1;
    else
      high = middle;
  }
  const int stop = leaf.key_stop[low];
  return {leaf.key_start[low], leaf.reach ? smaller(stop, q + leaf.reach[low] + 1) : stop};
}

__device__ inline bool has_bounds(const Node& node) {
  return node.kind == kBand || node.kind == kIntervals || node.kind == kSegments;
}

__device__ inline Range bounds(const Node& node, Lead lead, int q) {
  if (node.kind == kBand) return bounds(node.band, q);
  return node.kind == kSegments ? bounds(node.segments, q) : bounds(node.intervals, lead, q);
}

constexpr Facts kNoFacts = {0x7fffffff, 0, 0, 0x7fffffff};  // of no row

__device__ inline Facts joined(const Facts& a, const Facts& b) {
  return {smaller(a.hull_start, b.hull_start), larger(a.hull_stop, b.hull_stop),
          larger(a.common_start, b.common_start), smaller(a.common_stop, b.common_stop)};
}

__device__ inline Facts facts(Range row) {
  if (row.start >= row.stop) return {0x7fffffff, 0, 0x7fffffff, 0};
  return {row.start, row.stop, row.start, row.stop};
}

__device__ inline State interval_state(const Facts& rows, const Box& box) {
  if (rows.hull_stop <= box.k0 || rows.hull_start >= box.k1) return kEmpty;
  return rows.common_start <= box.k0 && rows.common_stop >= box.k1 ? kFull : kPart;
}

__device__ inline u64 interval_word(Range row, int k) {
  return span_bits(static_cast<i64>(row.start) - k, static_cast<i64>(row.stop) - k);
}

// Blocks and scores -------------------------------------------------------------------------------

__device__ inline bool kept(const Blocks& leaf, Lead, int row, int col) {
  const i64 key = static_cast<i64>(row) * leaf.across + col;
  i64 low = 0, high = leaf.count;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (leaf.listed[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low < leaf.count && leaf.listed[low] == key;
}

__device__ inline float score(const Scores& leaf, i64 at) {
  if (leaf.type == kF32) return static_cast<const float*>(leaf.scores)[at];
  if (leaf.type == kBool) return static_cast<const u8*>(leaf.scores)[at] ? 1.f : 0.f;
  const u16 bits = static_cast<const u16*>(leaf.scores)[at];
  return leaf.type == kF16 ? half_value(bits) : float_of_bits(static_cast<u32>(bits) << 16);
}

__device__ inline bool kept(const Scores& leaf, Lead lead, int row, int col, int rows,
                            int lead_inner) {
  const float x = score(leaf, lead.at(leaf.lead) + row * leaf.row + col * leaf.col);
  if (leaf.cuts) {
    const i64 number = static_cast<i64>(lead.outer) * lead_inner + lead.inner;
    return keeps(leaf.cuts[number * rows + row], x, col);
  }
  return reaches(x, leaf.thresholds
                        ? leaf.thresholds[lead.at(leaf.threshold_lead) + row * leaf.threshold_row]
                        : leaf.threshold);
}

// The state of a box of blocks of which `is_kept(row, col)` tells whether one is kept.
template <typename IsKept>
__device__ inline State block_state(const Box& box, int height, int width, IsKept is_kept) {
  constexpr int kMost = 16;  // blocks that are looked at; a box of more is left to its words
  const int r0 = box.q0 / height, r1 = (box.q1 - 1) / height;
  const int c0 = box.k0 / width, c1 = (box.k1 - 1) / width;
  if (static_cast<i64>(r1 - r0 + 1) * (c1 - c0 + 1) > kMost) return kPart;
  bool some = false, all = true;
  for (int r = r0; r <= r1; ++r)
    for (int c = c0; c <= c1; ++c) {
      const bool here = is_kept(r, c);
      some = some || here;
      all = all && here;
    }
  return all ? kFull : some ? kPart : kEmpty;
}

template <typename IsKept>
__device__ inline u64 block_word(int q, int k, int cols, int width, int row, IsKept is_kept) {
  u64 word = 0;
  const int last = static_cast<int>(smaller(static_cast<i64>(k) + 64, static_cast<i64>(cols))) - 1;
  if (last < 0) return 0;
  for (int c = larger(k, 0) / width; c <= last / width; ++c)
    if (is_kept(row, c)) {
      const i64 start = static_cast<i64>(c) * width - k;
      word |= span_bits(start, start + width);
    }
  return word;
}

// Stored tiles ------------------------------------------------------------------------------------

constexpr int kNoTile = -2;

__device__ inline int find(const int* cols, int low, int high, int col) {
  const int end = high;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (cols[middle] < col)
      low = middle + 1;
    else
      high = middle;
  }
  return low < end && cols[low] == col ? low : -1;
}

// The bitmap of a tile, -1 if it is full, kNoTile if it is not listed.
__device__ inline int tile_bitmap(const Stored& leaf, Lead lead, int tile_rows, int row, int col) {
  const i64 mask = leaf.mask_of[lead.outer * leaf.lead[0] + lead.inner * leaf.lead[1]];
  const int* row_ptr = leaf.row_ptr + mask * (tile_rows + 1) + row;
  const int full = leaf.full_ptr[mask * tile_rows + row];
  const int part_at = find(leaf.cols, row_ptr[0], full, col);
  if (part_at >= 0) return leaf.bitmap_id[part_at];
  return find(leaf.cols, full, row_ptr[1], col) >= 0 ? -1 : kNoTile;
}

__device__ inline State stored_state(const Stored& leaf, Lead lead, int rows, const Box& box) {
  bool some = false, all = true;
  for (int r = box.q0 / kBitmapTile; r <= (box.q1 - 1) / kBitmapTile; ++r)
    for (int c = box.k0 / kBitmapTile; c <= (box.k1 - 1) / kBitmapTile; ++c) {
      const int bitmap = tile_bitmap(leaf, lead, ceil_div(rows, kBitmapTile), r, c);
      some = some || bitmap != kNoTile;
      all = all && bitmap == -1;
    }
  return all ? kFull : some ? kPart : kEmpty;
}

__device__ inline u64 stored_row(const Stored& leaf, Lead lead, const Node& node, int q, int col) {
  if (col < 0 || col >= ceil_div(node.cols, kBitmapTile)) return 0;
  const int bitmap =
      tile_bitmap(leaf, lead, ceil_div(node.rows, kBitmapTile), q / kBitmapTile, col);
  if (bitmap < 0) return bitmap == kNoTile ? 0 : ~u64{0};
  const u64* words = leaf.bitmaps + static_cast<i64>(bitmap) * kBitmapWords;
  const int row = q % kBitmapTile;
  u64 bits = 0;
  for (int j = 0; j < 8; ++j)
    bits |= (words[bitmap_word(row, 8 * j)] >> bitmap_bit(row, 0) & 0xff) << 8 * j;
  return bits;
}

__device__ inline u64 stored_word(const Stored& leaf, Lead lead, const Node& node, int q, int k) {
  const int col = floor_div(k, kBitmapTile), shift = k - col * kBitmapTile;
  const u64 low = stored_row(leaf, lead, node, q, col) >> shift;
  return shift ? low | stored_row(leaf, lead, node, q, col + 1) << (64 - shift) : low;
}

// Neighbourhoods ----------------------------------------------------------------------------------

// What coordinate `at` of an axis sees: every `step`-th one of [start, stop).
__device__ inline Range seen(const Neighborhood& leaf, int axis, int at) {
  const int size = leaf.size[axis], window = leaf.window[axis], step = leaf.step[axis];
  const int place = at / step, phase = at % step;
  int start, count = window;
  if (leaf.causal[axis]) {
    start = larger(place - window + 1, 0);
    count = place + 1 - start;
  } else {
    const int there = (size - phase + step - 1) / step;
    start = smaller(larger(place - window / 2, 0), there - window);
  }
  return {start * step + phase, (start + count - 1) * step + phase + 1};
}

__device__ inline State neighborhood_state(const Neighborhood& leaf, const Box& box) {
  int queries[2] = {box.q0, box.q1 - 1}, keys[2] = {box.k0, box.k1 - 1};
  int below = leaf.size[1] * leaf.size[2];
  bool one_query = true, one_key = true;  // in all coordinates so far
  for (int axis = 0; axis < 3; ++axis) {
    const int size = leaf.size[axis];
    int q[2], k[2];
    for (int end = 0; end < 2; ++end) {
      q[end] = one_query ? queries[end] / below % size : end * (size - 1);
      k[end] = one_key ? keys[end] / below % size : end * (size - 1);
    }
    // With a dilation the ends zigzag by less than a step.
    const int slack = leaf.step[axis] - 1;
    if (k[1] < seen(leaf, axis, q[0]).start - slack || k[0] >= seen(leaf, axis, q[1]).stop + slack)
      return kEmpty;
    one_query = one_query && q[0] == q[1];
    one_key = one_key && k[0] == k[1];
    if (axis < 2) below /= leaf.size[axis + 1];
  }
  return kPart;
}

__device__ inline bool sees(const Neighborhood& leaf, int axis, int at, int other) {
  const Range range = seen(leaf, axis, at);
  return other >= range.start && other < range.stop && (other - range.start) % leaf.step[axis] == 0;
}

__device__ inline u64 neighborhood_word(const Neighborhood& leaf, int q, int k) {
  const int inner = leaf.size[2], outer_rows = leaf.size[0] * leaf.size[1];
  const int query_row = q / inner;
  const Range range = seen(leaf, 2, q % inner);
  u64 word = 0;
  // The lattice rows that these keys are of.
  for (int row = larger(k, 0) / inner; row < outer_rows; ++row) {
    const i64 first = static_cast<i64>(row) * inner - k;
    if (first >= 64) break;
    if (!sees(leaf, 1, query_row % leaf.size[1], row % leaf.size[1]) ||
        !sees(leaf, 0, query_row / leaf.size[1], row / leaf.size[1]))
      continue;
    if (leaf.step[2] == 1) {
      word |= span_bits(first + range.start, first + range.stop);
    } else {
      for (i64 at = first + range.start; at < first + range.stop; at += leaf.step[2])
        if (at >= 0 && at < 64) word |= u64{1} << at;
    }
  }
  return word;
}

// Dense arrays ------------------------------------------------------------------------------------

__device__ inline u64 dense_word(const Dense& leaf, Lead lead, int cols, int q, int k) {
  const u8* row = leaf.data + lead.at(leaf.lead) + q * leaf.row;
  u64 word = 0;
  if (leaf.col == 1 && k >= 0 && k <= cols - 64 && reinterpret_cast<u64>(row + k) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= static_cast<u64>(nonzero_bytes(row + k + 16 * i)) << 16 * i;
    return word;
  }
  for (int b = 0; b < 64; ++b)
    if (k + b >= 0 && k + b < cols && row[(k + b) * leaf.col] != 0) word |= u64{1} << b;
  return word;
}

// All leaves --------------------------------------------------------------------------------------

// Whether a node is of a kind, for kinds that `Kinds` (NoFormulas in mask/program.cuh, or what is
// generated) says there are: of the others there is no code, and a kernel with a user's formula,
// who waits for it, is compiled the sooner.
template <typename Kinds>
__device__ inline bool is(const Node& node, Kind kind) {
  return (Kinds::kKinds >> kind & 1) != 0 && node.kind == kind;
}

// The state of a box.
template <typename Formulas>
__device__ inline State leaf_state(const Node& node, const Facts& rows, Lead lead, int lead_inner,
                                   const Array* arrays, const Box& box) {
  if (has_bounds(node)) return interval_state(rows, box);
  if (is<Formulas>(node, kColumns))
    return bits_state(node.columns.words, ceil_div(node.cols, 64), box.k0, box.k1);
  if (is<Formulas>(node, kDiagonals))
    return bits_state(node.diagonals.words, node.diagonals.words_count,
                      static_cast<i64>(box.k0) - (box.q1 - 1) + node.diagonals.zero,
                      static_cast<i64>(box.k1) - box.q0 + node.diagonals.zero);
  if (is<Formulas>(node, kBlocks))
    return block_state(box, node.blocks.height, node.blocks.width,
                       [&](int r, int c) { return kept(node.blocks, lead, r, c); });
  if (is<Formulas>(node, kScores))
    return block_state(box, node.scores.height, node.scores.width, [&](int r, int c) {
      return kept(node.scores, lead, r, c, ceil_div(node.rows, node.scores.height), lead_inner);
    });
  if (is<Formulas>(node, kStored)) return stored_state(node.stored, lead, node.rows, box);
  if (is<Formulas>(node, kNeighborhood)) return neighborhood_state(node.neighborhood, box);
  if (is<Formulas>(node, kDense) && node.dense.row == 0)
    return words_state(box.k0, box.k1,
                       [&](int k) { return dense_word(node.dense, lead, node.cols, box.q0, k); });
  if (is<Formulas>(node, kFormula))
    return static_cast<State>(Formulas::box_state(node.formula.which, box.q0, box.q1 - 1, box.k0,
                                                  box.k1 - 1, arrays + node.formula.first));
  return kPart;
}

// Bits of keys k .. k + 63 of row q of a leaf that is no formula.
template <typename Kinds>
__device__ inline u64 leaf_word(const Node& node, Lead lead, int lead_inner, int q, int k) {
  if (has_bounds(node)) return interval_word(bounds(node, lead, q), k);
  if (is<Kinds>(node, kColumns)) return bits_at(node.columns.words, ceil_div(node.cols, 64), k);
  if (is<Kinds>(node, kDiagonals))
    return bits_at(node.diagonals.words, node.diagonals.words_count,
                   static_cast<i64>(k) - q + node.diagonals.zero);
  if (is<Kinds>(node, kBlocks)) {
    const auto is_kept = [&](int r, int c) { return kept(node.blocks, lead, r, c); };
    return block_word(q, k, node.cols, node.blocks.width, q / node.blocks.height, is_kept);
  }
  if (is<Kinds>(node, kScores)) {
    const int rows = ceil_div(node.rows, node.scores.height);
    const auto is_kept = [&](int r, int c) {
      return kept(node.scores, lead, r, c, rows, lead_inner);
    };
    return block_word(q, k, node.cols, node.scores.width, q / node.scores.height, is_kept);
  }
  if (is<Kinds>(node, kStored)) return stored_word(node.stored, lead, node, q, k);
  if (is<Kinds>(node, kNeighborhood)) return neighborhood_word(node.neighborhood, q, k);
  if (is<Kinds>(node, kDense)) return dense_word(node.dense, lead, node.cols, q, k);
  return 0;
}

}  // namespace stof::mask
