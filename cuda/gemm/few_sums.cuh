// The end of a product of at most sixteen rows whose K is cut into slices, one a warp of the CTA:
// sums as mma.sync leaves them are added up through shared memory, always in the same order, and go
// through the epilogue.
#pragma once

#include "epilogue/ahead.cuh"
#include "epilogue/operands.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof::gemm {

// kTilesOfB: of 8 columns of B, that a warp has, those of a fold's first half first; kBlocks: of 8
// rows.
template <typename T, int kTilesOfB, int kBlocks, int kSlices, class Epilogue>
struct FewSums {
  static constexpr int kHalves = Epilogue::kHalves;
  static constexpr int kTiles = kTilesOfB / kHalves;
  static constexpr int kOfTile = 2 * kBlocks;  // of a thread
  static constexpr int kBytes =
      kTilesOfB * kOfTile * 32 * static_cast<int>(sizeof(float));  // of a warp

  // Parts of 8 by 8 of the output that a slice ends.
  static constexpr int kParts = (kTiles * kBlocks + kSlices - 1) / kSlices;

  // What the residual adds to a thread's pair of each of its parts.
  struct Residual {
    u32 pair[kParts] = {};

    __device__ __forceinline__ void load(const epilogue::Operands& x, int slice, int lane,
                                         int col) {
      if constexpr (Epilogue::kResidual) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          const int part = i * kSlices + slice;
          const int row = row_of(part, lane), here = column_of(part, lane, col);
          if (part >= kTiles * kBlocks || row >= x.rows || here >= x.cols) continue;
          const T* const from = static_cast<const T*>(x.residual) + row * x.residual_row + here;
          pair[i] = epilogue::load_pair(from, x.cols - here, x.pairs != 0);
        }
      }
    }
  };

  __device__ static __forceinline__ int row_of(int part, int lane) {
    return 8 * (part % kBlocks) + lane / 4;
  }
  __device__ static __forceinline__ int column_of(int part, int lane, int col) {
    return col + 8 * (part / kBlocks) + lane % 4 * 2;
  }

  // Slices of a column are warps one after another. `col` is the first of the output's. What is in
  // `residual` counts if `operands` say that it was read.
  template <class Params>
  __device__ static __forceinline__ void finish(const Params& p, const epilogue::Operands& operands,
                                                const epilogue::Columns<Epilogue, T, kTiles>& ahead,
                                                const float (&sums)[kTilesOfB][4], float* shared,
                                                int warp, int slice, int lane, int col,
                                                const Residual& residual = {}) {
    const auto at = [&](int of, int tile, int i) {
      return ((of * kTilesOfB + tile) * kOfTile + i) * 32 + lane;
    };
    if constexpr (kSlices > 1) {
#pragma unroll
      for (int tile = 0; tile < kTilesOfB; ++tile)
#pragma unroll
        for (int i = 0; i < kOfTile; ++i) shared[at(warp, tile, i)] = sums[tile][i];
      __syncthreads();
    }
#pragma unroll
    for (int part = 0; part < kTiles * kBlocks; ++part) {
      if (part % kSlices != slice) continue;
      const int tile = part / kBlocks, block = part % kBlocks;
      float x[kHalves][2];
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int of_b = tile + half * kTiles, i = 2 * block + e;
          if constexpr (kSlices == 1) {
            x[half][e] = sums[of_b][i];
          } else {
            x[half][e] = 0.f;
#pragma unroll
            for (int s = 0; s < kSlices; ++s) x[half][e] += shared[at(warp - slice + s, of_b, i)];
          }
        }
      epilogue::Operands here = operands;
      here.residual_pair = residual.pair[part / kSlices];
      store(p, here, ahead, x, tile, row_of(part, lane), column_of(part, lane, col));
    }
  }

  template <class Params>
  __device__ static __forceinline__ void store(const Params& p, epilogue::Operands operands,
                                               const epilogue::Columns<Epilogue, T, kTiles>& ahead,
                                               float (&x)[kHalves][2], int tile, int row, int col) {
    if (row >= p.m || col >= p.n) return;
    ahead.give(operands, tile);
    Epilogue::template apply<T>(x, operands, row, col);
    T* const to = p.c + row * p.c_row + col;
    to[0] = ptx::from_float<T>(x[0][0]);
    if (col + 1 < p.n) to[1] = ptx::from_float<T>(x[0][1]);
  }
};

}  // namespace stof::gemm
