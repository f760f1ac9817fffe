// What the epilogue of a GEMM may read besides the accumulator; a stage uses the fields it names.
#pragma once

#include "types.cuh"

namespace stof::epilogue {

struct Operands {
  const void* bias;      // (N,) elements of the output type
  const void* residual;  // (M, N) elements of the output type, unit column stride
  i64 residual_row;      // elements
};

}  // namespace stof::epilogue
