// What the kernels do with a result besides storing its rows; these change no value.
#pragma once

#include "epilogue/operands.cuh"

namespace stof::epilogue {

// The columns are heads, which are stored as (batch, heads, seq, head_dim).
struct Heads {
  static constexpr bool kHeads = true;

  template <typename T>
  static __device__ __forceinline__ void apply(float (&)[2], const Operands&, i64, int) {}
};

// The mean of each 64 columns of a row, and the sum of squared distances from it.
struct Statistics {
  static constexpr bool kStatistics = true;

  template <typename T>
  static __device__ __forceinline__ void apply(float (&)[2], const Operands&, i64, int) {}
};

}  // namespace stof::epilogue
