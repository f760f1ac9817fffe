// What stages read of a pair of columns or of a row, read by the kernel before it is needed: loads
// that wait neither for each other nor for a branch, and one for all rows of the columns.
#pragma once

#include "epilogue/operands.cuh"
#include "types.cuh"

namespace stof::epilogue {

// Elements at(i), even, and at(i) + 1 of `from`, which is 4-byte aligned and has `count`; if
// `whole` all of them are there. Others are 0.
template <typename T, int kPairs, class At>
__device__ __forceinline__ void load_pairs(u32 (&x)[kPairs], const T* from, int count, bool whole,
                                           const At& at) {
  if (whole) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = *reinterpret_cast<const u32*>(from + at(i));
  } else {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = load_pair(from + at(i), count - at(i), at(i) % 2 == 0);
  }
}

// Of kPairs pairs of columns of the output, and the same of B's second half if the chain folds.
template <class Chain, typename T, int kPairs>
struct Columns {
  static constexpr int kHalves = Chain::kHalves;

  u32 bias[kHalves][kPairs] = {};
  float sums[kHalves][kPairs][2] = {};

  // Pair i are columns at(i), even, and at(i) + 1. If `whole` all of them are in the output.
  template <class At>
  __device__ __forceinline__ void load(const Operands& x, bool whole, const At& at) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int first = half * x.cols;
      const bool plainly = whole && first % 2 == 0;
      const auto here = [&](int i) { return first + at(i); };
      if constexpr (Chain::kBias)
        load_pairs(bias[half], static_cast<const T*>(x.bias), x.cols_b, plainly, here);
      if constexpr (Chain::kNormed) load_sums(sums[half], x, plainly, here);
    }
  }

  template <class At>
  __device__ __forceinline__ void load_sums(float (&to)[kPairs][2], const Operands& x, bool whole,
                                            const At& at) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        to[i][e] = whole || at(i) + e < x.cols_b ? x.column_sums[at(i) + e] : 0.f;
  }

  // Operands of pair i.
  __device__ __forceinline__ void give(Operands& x, int i) const {
    x.has_columns = true;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      x.pair[half] = {bias[half][i], {sums[half][i][0], sums[half][i][1]}};
  }
};

// What a row adds of the residual to columns first + 8 i, even, and the next ones. If `whole` all
// of them are in the output.
template <typename T, int kPairs>
__device__ __forceinline__ void load_residual(u32 (&x)[kPairs], const Operands& operands, i64 row,
                                              int first, bool whole) {
  if (row >= operands.rows) return;
  const T* const from =
      static_cast<const T*>(operands.residual) + row * operands.residual_row + first;
  if (whole && operands.pairs) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) x[i] = *reinterpret_cast<const u32*>(from + 8 * i);
  } else {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      x[i] = load_pair(from + 8 * i, operands.cols - first - 8 * i, operands.pairs != 0);
  }
}

// Of kRows rows, mean and 1 / deviation; of those beyond the last that of another.
template <class Chain, int kRows>
struct Rows {
  float mean[kRows], scale[kRows];

  template <class At>
  __device__ __forceinline__ void load(const Operands& x, const At& at) {
    if constexpr (Chain::kNormed) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float* const from = x.row_statistics + 2 * min(at(i), static_cast<i64>(x.rows) - 1);
        mean[i] = from[0];
        scale[i] = from[1];
      }
    }
  }

  __device__ __forceinline__ void give(Operands& x, int i) const {
    if constexpr (Chain::kNormed) {
      x.has_row = true;
      x.mean = mean[i];
      x.deviation = scale[i];
    }
  }
};

}  // namespace stof::epilogue
