// What a warp of the GEMMs on mma.sync holds: sums of kM x kN, and what it multiplies next.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "types.cuh"

namespace stof::gemm {

template <int kM, int kN>
struct WarpSums {
  float of[kM / 16][kN / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kM / 16; ++i)
#pragma unroll
      for (int j = 0; j < kN / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) of[i][j][e] = 0.f;
  }
};

// 16 of K, of tiles that lie along K or, transposed, along their rows.
template <int kM, int kN, class TileA, class TileB, bool kTransposedA, bool kTransposedB>
struct WarpFragments {
  u32 a[kM / 16][4];
  u32 b[kN / 16][4];

  // The `step`-th 16 of K of a tile at shared address `smem`, of rows from `warp_row` on.
  __device__ __forceinline__ void load_a(u32 smem, int step, int warp_row, int lane) {
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      if constexpr (kTransposedA)
        ptx::ldmatrix_x4_trans(a[i],
                               TileA::address(smem, 16 * step + (lane & 7) + ((lane >> 4) << 3),
                                              warp_row / 8 + 2 * i + ((lane >> 3) & 1)));
      else
        ptx::ldmatrix_x4(
            a[i], TileA::address(smem, warp_row + 16 * i + (lane & 15), 2 * step + (lane >> 4)));
    }
  }

  __device__ __forceinline__ void load_b(u32 smem, int step, int warp_col, int lane) {
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
      if constexpr (kTransposedB)
        ptx::ldmatrix_x4_trans(b[j], TileB::address(smem, 16 * step + (lane & 15),
                                                    warp_col / 8 + 2 * j + (lane >> 4)));
      else
        ptx::ldmatrix_x4(b[j],
                         TileB::address(smem, warp_col + 16 * j + (lane & 7) + ((lane >> 4) << 3),
                                        2 * step + ((lane >> 3) & 1)));
    }
  }

  template <typename T>
  __device__ __forceinline__ void multiply(WarpSums<kM, kN>& sums) const {
#pragma unroll
    for (int j = 0; j < kN / 16; ++j)
#pragma unroll
      for (int i = 0; i < kM / 16; ++i) {
        ptx::mma_m16n8k16<T>(sums.of[i][2 * j], a[i], b[j][0], b[j][1]);
        ptx::mma_m16n8k16<T>(sums.of[i][2 * j + 1], a[i], b[j][2], b[j][3]);
      }
  }
};

}  // namespace stof::gemm
