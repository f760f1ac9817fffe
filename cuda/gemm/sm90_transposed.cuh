// How results of the sm_90a GEMM leave whose sums have rows for columns of the output: transposed
// in a warpgroup's shared memory, a row for a warp.
#pragma once

#include "epilogue/ahead.cuh"
#include "gemm/result.cuh"
#include "gemm/sm90_pieces.cuh"
#include "gemm/sm90_shape.cuh"
#include "ptx/convert.cuh"
#include "ptx/shared.cuh"

namespace stof::gemm::sm90 {

// Of a warpgroup.
template <class K>
struct Transposed {
  using T = typename K::T;

  const typename K::Params& p;
  const int group, thread;
  const u32 memory;  // kN rows of kPitch floats

  // `first` is that of a unit's rows of A that are this warpgroup's.
  __device__ __forceinline__ void store(const float (&sums)[K::kN / 2], const Unit& unit,
                                        int first) const {
    const epilogue::Operands operands = K::operands(p);
    const int warp = thread / 32, lane = thread % 32;
    constexpr int kPairs = 32 / K::kHalves;
    const int col = first / K::kHalves + 2 * lane;
    const int from = K::kHalves == 1 ? 2 * lane : lane / 4 * 16 + lane % 4 * 2;
    epilogue::Columns<typename K::Epilogue, T, 1> columns;  // the same of all rows
    columns.load(operands, col + 1 < p.n, [&](int) { return col; });
    const auto at = [&](int row, int col) { return memory + (row * K::kPitch + col) * 4; };
    sync_warpgroup(group);  // the sums before have been read
#pragma unroll
    for (int i = 0; i < K::kN / 2; ++i)
      ptx::store_shared_4(
          at(i / 4 * 8 + lane % 4 * 2 + i % 2, warp * 16 + lane / 4 + i / 2 % 2 * 8),
          __builtin_bit_cast(u32, sums[i]));
    sync_warpgroup(group);
#pragma unroll 1
    for (int i = warp; i < K::kN && lane < kPairs; i += 4) {
      const i64 row = static_cast<i64>(unit.tile_b) * K::kN + i;
      float x[K::kHalves][2];
#pragma unroll
      for (int half = 0; half < K::kHalves; ++half) {
        const uint2 both = ptx::load_shared_8(at(i, from + 8 * half));
        x[half][0] = __builtin_bit_cast(float, both.x);
        x[half][1] = __builtin_bit_cast(float, both.y);
      }
      if constexpr (K::kApart > 0)
        gemm::couple<typename K::Epilogue, T>(x[0], ptx::load_shared_8(at(i, from ^ K::kApart)),
                                              operands, row, col);
      epilogue::Operands here = operands;
      columns.give(here, 0);
      epilogue::Rows<typename K::Epilogue, 1> rows;
      rows.load(operands, [&](int) { return row; });
      rows.give(here, 0);
      K::Epilogue::template apply<T>(x, here, row, col);
      const u32 both[1] = {ptx::pack<T>(x[0][0], x[0][1])};
      if constexpr (K::Epilogue::kStatistics)
        tell_statistics<T, 32>(p, both, row, col - 2 * lane, lane);
      store_pair<K::Epilogue::kHeads, T>(p, row, col, both[0]);
    }
  }
};

}  // namespace stof::gemm::sm90
