// A mask expression as the host hands it to a kernel: its leaves, in the order in which an
// accumulator takes them. stof_cupy/masks/device/nodes.py mirrors these structs, and
// tests/masks/test_device_leaves.py holds the two together.
#pragma once

#include "types.cuh"

namespace stof::mask {

enum Kind : int {
  kPush,  // set the accumulator aside
  kPop,   // join the one set aside last with it
  kBand,
  kIntervals,
  kSegments,
  kColumns,
  kDiagonals,
  kBlocks,
  kScores,
  kStored,
  kNeighborhood,
  kDense,
  kFormula,
};

enum Join : int { kReplace, kAnd, kOr, kXor };

enum Invert : int { kLeaf = 1, kResult = 2 };  // what of a node is complemented: flags

// Query q of [query_start, query_stop) sees the chunks of `size` keys from `before` chunks back to
// `after` chunks ahead; see stof_cupy/masks/band.py.
struct Band {
  int offset, size, before, after, causal;
  int key_start, key_stop, query_start, query_stop;
};

struct Intervals {
  const int* start;
  const int* stop;
  i64 lead[2];
};

// Queries before query_stop[n], and not before that of segment n - 1, see keys [key_start[n],
// key_stop[n]), and of a causal mask none after their own number + reach[n].
struct Segments {
  const int* query_stop;
  const int* key_start;
  const int* key_stop;
  const int* reach;  // or null
  int count;
};

struct Columns {
  const u64* words;  // bit k: whether key k is seen
};

struct Diagonals {
  const u64* words;
  int zero;  // bit of the difference k - q = 0
  int words_count;
};

struct Blocks {
  const i64* listed;  // row * across + column of each block, ascending
  i64 count;
  int height, width, across;
};

enum ScoreType : int { kF32, kF16, kBF16, kBool };

// What a row of scores keeps: those above `value`, and equal ones up to `last_col`.
struct Cut {
  float value;
  int last_col;
};

struct Scores {
  const void* scores;
  const Cut* cuts;          // (lead, block rows) contiguous, or null
  const float* thresholds;  // or null: `threshold` for all
  i64 row, col, lead[2];    // strides in elements
  i64 threshold_row, threshold_lead[2];
  int height, width, type;
  float threshold;
};

// Tiles of 64x64 as a schedule lists them (stof_cupy/masks/schedule.py).
struct Stored {
  const int* row_ptr;
  const int* full_ptr;
  const int* cols;
  const int* bitmap_id;
  const u64* bitmaps;
  const int* mask_of;
  const int* overflow;  // not 0: these lists are cut off; or null
  int lead[2];          // strides of mask_of
};

// Axes of the lattice, the fastest last; missing ones have size, window and step 1.
struct Neighborhood {
  int size[3], window[3], step[3], causal[3];
};

struct Dense {
  const u8* data;
  i64 row, col, lead[2];
};

struct FormulaOf {
  int which;  // of the formulas that the kernel was compiled with
  int first;  // of its arrays among all
};

struct Node {
  int kind, join, invert;
  int q, k;        // element (0, 0) of the mask is this element of the leaf
  int rows, cols;  // size of the leaf; what lies beyond may have any value
  int unused;
  union {
    Band band;
    Intervals intervals;
    Segments segments;
    Columns columns;
    Diagonals diagonals;
    Blocks blocks;
    Scores scores;
    Stored stored;
    Neighborhood neighborhood;
    Dense dense;
    FormulaOf formula;
  };
};

// An array or a scalar that a formula names.
struct Array {
  u64 data;    // address, of something even if there are no elements; or the bits of a scalar
  i64 size;    // elements
  int stride;  // bytes
  u32 reach;   // elements that an int can index
};

// The element of the leading axes (batch, heads) that is being built.
struct Lead {
  int outer, inner;
  __device__ i64 at(const i64 (&stride)[2]) const { return outer * stride[0] + inner * stride[1]; }
};

}  // namespace stof::mask
