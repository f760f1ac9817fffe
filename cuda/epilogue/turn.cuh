// Rotary position embedding of the leading columns: pairs of a head's columns are turned by
// position * frequency.
#pragma once

#include "epilogue/operands.cuh"
#include "rotary.cuh"

namespace stof::epilogue {

__device__ __forceinline__ Turn turn_of(const Operands& operands, i64 row, int pair) {
  const float position = static_cast<float>(operands.positions[row]);
  return Turn::by(position * operands.frequency[pair], operands.magnitude);
}

// Columns 2i and 2i + 1 of a head.
struct TurnNeighbours {
  template <typename T>
  static __device__ __forceinline__ void apply(float (&x)[2], const Operands& operands, i64 row,
                                               int col) {
    const int pair = col % operands.head_dim / 2;
    if (row >= operands.rows || col >= operands.turned || pair >= operands.half) return;
    turn_of(operands, row, pair).rotate(x[0], x[1]);
  }
};

// Columns i and i + kHeadDim / 2 of a head: x are `col`, in the first half, and col + 1.
template <int kHeadDim>
struct TurnHalves {
  static constexpr int kApart = kHeadDim / 2;

  static __device__ __forceinline__ void couple(float (&x)[2], float (&y)[2],
                                                const Operands& operands, i64 row, int col) {
    if (row >= operands.rows || col >= operands.turned) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) turn_of(operands, row, col % kHeadDim + e).rotate(x[e], y[e]);
  }
};

}  // namespace stof::epilogue
