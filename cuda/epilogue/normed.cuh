// The product of rows that were to be normalised before, and weights that were multiplied with the
// norm's: (x - mean[row] * sum of a column's weights) / deviation[row].
#pragma once

#include "epilogue/operands.cuh"

namespace stof::epilogue {

struct Normed {
  static constexpr bool kReadsNormed = true;

  template <typename T>
  static __device__ __forceinline__ void apply(float (&x)[2], const Operands& operands, i64 row,
                                               int col) {
    if (operands.has_columns && operands.has_row) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        x[e] =
            (x[e] - operands.mean * operands.pair[operands.half_of_b].sums[e]) * operands.deviation;
      return;
    }
    if (row >= operands.rows) return;
    const float mean = operands.row_statistics[2 * row];
    const float scale = operands.row_statistics[2 * row + 1];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (col + e >= operands.cols_b) return;
      x[e] = (x[e] - mean * operands.column_sums[col + e]) * scale;
    }
  }
};

}  // namespace stof::epilogue
