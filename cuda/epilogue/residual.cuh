// x + residual[row, col]
#pragma once

#include "epilogue/operands.cuh"
#include "ptx/convert.cuh"

namespace stof::epilogue {

struct Residual {
  template <typename T>
  static __device__ __forceinline__ float apply(float x, const Operands& operands, int row,
                                                int col) {
    return x + ptx::to_float(
                   static_cast<const T*>(operands.residual)[row * operands.residual_row + col]);
  }
};

}  // namespace stof::epilogue
