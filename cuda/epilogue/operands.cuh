// What the epilogue of a GEMM may read besides the accumulator; a stage uses the fields it names.
#pragma once

#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof::epilogue {

// What belongs to two neighbouring columns of B, the first even in the output.
struct Pair {
  u32 bias = 0;
  float sums[2] = {0.f, 0.f};
};

struct Operands {
  const void* bias;      // one of the output's type for each column of B, 4-byte aligned
  const void* residual;  // (rows, cols) of the output's type, unit column stride
  i64 residual_row;      // elements
  float scale;
  int rows, cols;  // of the output
  int cols_b;      // columns of B: twice those of the output if the chain folds
  int pairs;       // rows of the residual are 4-byte aligned
  const float* row_statistics = nullptr;  // (rows, 2): mean, and 1 / deviation; if Normed
  const float* column_sums = nullptr;     // (cols_b,)
  const int* positions = nullptr;         // (rows,); if the leading `turned` columns are turned
  const float* frequency = nullptr;       // (half,)
  float magnitude = 0.f;
  int turned = 0, half = 0, head_dim = 1;
  bool has_residual = false;  // the kernel has read the two values of it already
  u32 residual_pair = 0;
  bool has_columns = false;  // and of the columns, for both halves of B: see ahead.cuh
  Pair pair[2];
  int half_of_b = 0;
  bool has_row = false;               // and of the row
  float mean = 0.f, deviation = 1.f;  // 1 over it
};

// Of the parameters of a kernel, which have all the fields by these names, for kHalves of B.
template <int kHalves, class Params>
__device__ __forceinline__ Operands operands_of(const Params& p) {
  Operands x = {p.bias, p.residual, p.residual_row, p.scale,
                p.m,    p.n,        p.n * kHalves,  p.pairs_residual};
  x.row_statistics = p.row_statistics;
  x.column_sums = p.column_sums;
  x.positions = p.positions;
  x.frequency = p.frequency;
  x.magnitude = p.magnitude;
  x.turned = p.turned;
  x.half = p.half;
  x.head_dim = p.head_dim;
  return x;
}

// Adds two packed values.
template <typename T>
__device__ __forceinline__ void add_packed(float (&x)[2], u32 both) {
  x[0] += ptx::to_float(T{static_cast<u16>(both & 0xffff)});
  x[1] += ptx::to_float(T{static_cast<u16>(both >> 16)});
}

// from[0] and from[1] packed, of which the first `valid` may be read; in one load if `pairs`.
template <typename T>
__device__ __forceinline__ u32 load_pair(const T* from, int valid, bool pairs) {
  if (pairs && valid >= 2) return *reinterpret_cast<const u32*>(from);
  const u32 first = valid >= 1 ? from[0].bits : 0;
  return first | (valid >= 2 ? static_cast<u32>(from[1].bits) << 16 : 0);
}

template <typename T>
__device__ __forceinline__ void add_pair(float (&x)[2], const T* from, int valid, bool pairs) {
  add_packed<T>(x, load_pair(from, valid, pairs));
}

}  // namespace stof::epilogue
