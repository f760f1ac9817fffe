// x + residual[row, col]
#pragma once

#include "epilogue/operands.cuh"

namespace stof::epilogue {

struct Residual {
  static constexpr bool kReadsResidual = true;

  template <typename T>
  static __device__ __forceinline__ void apply(float (&x)[2], const Operands& operands, i64 row,
                                               int col) {
    if (operands.has_residual) return add_packed<T>(x, operands.residual_pair);
    const T* from = static_cast<const T*>(operands.residual) + row * operands.residual_row + col;
    if (row < operands.rows) add_pair(x, from, operands.cols - col, operands.pairs != 0);
  }
};

}  // namespace stof::epilogue
