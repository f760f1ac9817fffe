// What the epilogue of a GEMM may read besides the accumulator; a stage uses the fields it names.
#pragma once

#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof::epilogue {

struct Operands {
  const void* bias;      // one of the output's type for each column of B, 4-byte aligned
  const void* residual;  // (rows, cols) of the output's type, unit column stride
  i64 residual_row;      // elements
  float scale;
  int rows, cols;  // of the output
  int cols_b;      // columns of B: twice those of the output if the chain folds
  int pairs;       // rows of the residual are 4-byte aligned
};

// x[0] += from[0] and x[1] += from[1], of which the first `valid` may be read; in one load if
// `pairs`.
template <typename T>
__device__ __forceinline__ void add_pair(float (&x)[2], const T* from, int valid, bool pairs) {
  if (pairs && valid >= 2) {
    const u32 both = *reinterpret_cast<const u32*>(from);
    x[0] += ptx::to_float(T{static_cast<u16>(both & 0xffff)});
    x[1] += ptx::to_float(T{static_cast<u16>(both >> 16)});
  } else {
    if (valid >= 1) x[0] += ptx::to_float(from[0]);
    if (valid >= 2) x[1] += ptx::to_float(from[1]);
  }
}

}  // namespace stof::epilogue
