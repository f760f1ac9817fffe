// What the GEMM kernels share about where results go, and what is told of them.
#pragma once

#include "epilogue/operands.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"
#include "warp.cuh"

namespace stof::gemm {

// The element of C at (row, col), which if kHeads lies as (batch, heads, seq, head_dim).
template <bool kHeads, class Params>
__device__ __forceinline__ i64 place_of(const Params& p, i64 row, int col) {
  if constexpr (!kHeads) return row * p.c_row + col;
  const int r = static_cast<int>(row);
  return r / p.seq * p.c_batch + col / p.head_dim * p.c_head + r % p.seq * p.c_row +
         col % p.head_dim;
}

// Takes `mine`, columns `col` and col + 1, through the epilogue up to where they are coupled with
// `other`, which are Epilogue::kApart away: a power of two.
template <class Epilogue, typename T>
__device__ __forceinline__ void couple(float (&mine)[2], const uint2& other,
                                       const epilogue::Operands& operands, i64 row, int col) {
  const bool first = (col & Epilogue::kApart) == 0;
  const float theirs[2] = {__builtin_bit_cast(float, other.x), __builtin_bit_cast(float, other.y)};
  float low[2] = {first ? mine[0] : theirs[0], first ? mine[1] : theirs[1]};
  float high[2] = {first ? theirs[0] : mine[0], first ? theirs[1] : mine[1]};
  Epilogue::template couple<T>(low, high, operands, row, col & ~Epilogue::kApart);
#pragma unroll
  for (int e = 0; e < 2; ++e) mine[e] = first ? low[e] : high[e];
}

// Stores columns `col`, even, and col + 1 of a row, as far as they are in C.
template <bool kHeads, typename T, class Params>
__device__ __forceinline__ void store_pair(const Params& p, i64 row, int col, u32 x) {
  if (row >= p.m || col >= p.n) return;
  T* const to = p.c + place_of<kHeads>(p, row, col);
  if (p.pairs_c && col + 1 < p.n) {
    *reinterpret_cast<u32*>(to) = x;
  } else {
    to[0] = T{static_cast<u16>(x & 0xffff)};
    if (col + 1 < p.n) to[1] = T{static_cast<u16>(x >> 16)};
  }
}

// Tells mean and squared distances of 64 columns of a row, from `col` on, as far as they are in C:
// rounded as they are stored. Of kLanes lanes each has kEach pairs, from 8 columns in turn.
template <typename T, int kLanes, int kEach, class Params>
__device__ __forceinline__ void tell_statistics(const Params& p, const u32 (&pairs)[kEach], i64 row,
                                                int col, int lane) {
  float* const to = p.statistics + (row * ceil_div(p.n, 64) + col / 64) * 2;
  const int count = min(64, p.n - col);
  const bool first = lane == 0, inside = row < p.m && col < p.n;
  float sum = 0.f, squares = 0.f;
  const auto each = [&](const auto& take) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * i + 2 * lane + e < count)
          take(ptx::to_float(T{static_cast<u16>(pairs[i] >> (16 * e) & 0xffff)}));
  };
  each([&](float x) { sum += x; });
  const float mean = warp_sum<kLanes>(sum) / max(count, 1);
  each([&](float x) { squares += (x - mean) * (x - mean); });
  squares = warp_sum<kLanes>(squares);
  if (first && inside) {
    to[0] = mean;
    to[1] = squares;
  }
}

}  // namespace stof::gemm
