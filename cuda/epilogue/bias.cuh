// x + bias[col]
#pragma once

#include "epilogue/operands.cuh"

namespace stof::epilogue {

struct Bias {
  static constexpr bool kReadsBias = true;

  template <typename T>
  static __device__ __forceinline__ void apply(float (&x)[2], const Operands& operands, i64,
                                               int col) {
    if (operands.has_columns) return add_packed<T>(x, operands.pair[operands.half_of_b].bias);
    // A fold may have columns that are not even.
    const bool pairs = col % 2 == 0;
    add_pair(x, static_cast<const T*>(operands.bias) + col, operands.cols_b - col, pairs);
  }
};

}  // namespace stof::epilogue
