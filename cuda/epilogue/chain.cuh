// An epilogue is a list of stages, applied in order to every accumulated value before it is rounded
// and stored.
//
// A stage is a struct with
//   template <typename T> static __device__ float apply(float x, const Operands& operands, int row,
//   int col);
// where T is the output type and (row, col) lies inside the output.
#pragma once

#include "epilogue/operands.cuh"

namespace stof::epilogue {

template <typename... Stages>
struct Chain {
  template <typename T>
  static __device__ __forceinline__ float apply(float x, const Operands& operands, int row,
                                                int col) {
    ((x = Stages::template apply<T>(x, operands, row, col)), ...);
    return x;
  }
};

}  // namespace stof::epilogue
