// x + bias[col]
#pragma once

#include "epilogue/operands.cuh"
#include "ptx/convert.cuh"

namespace stof::epilogue {

struct Bias {
  template <typename T>
  static __device__ __forceinline__ float apply(float x, const Operands& operands, int, int col) {
    return x + ptx::to_float(static_cast<const T*>(operands.bias)[col]);
  }
};

}  // namespace stof::epilogue
