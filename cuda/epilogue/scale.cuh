// scale * x
#pragma once

#include "epilogue/operands.cuh"

namespace stof::epilogue {

struct Scale {
  template <typename T>
  static __device__ __forceinline__ void apply(float (&x)[2], const Operands& operands, i64, int) {
    x[0] *= operands.scale;
    x[1] *= operands.scale;
  }
};

}  // namespace stof::epilogue
