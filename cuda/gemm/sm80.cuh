// C = epilogue(A B^T) on mma.sync, for sm_80 and everything newer. A is (M, K), B is (N, K), both
// read with any strides.
//
// A CTA computes a kM x kN tile with warps of kWarpM x kWarpN, streaming 32-deep slices of A and B
// through kStages buffers. CTAs are numbered so that groups of eight row tiles share their columns
// of B in L2.
#pragma once

#include "epilogue/stages.cuh"
#include "gemm/raster.cuh"
#include "ptx/convert.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::gemm {

template <typename T, int kM, int kN, int kWarpM, int kWarpN, class Epilogue>
struct Sm80 {
  static constexpr int kK = 32;
  static constexpr int kStages = 3;
  static constexpr int kRowGroup = 8;
  static constexpr int kHalves = Epilogue::kHalves;
  static_assert(kWarpN % (16 * kHalves) == 0);
  static constexpr int kColumns = kN / kHalves;  // of the output
  static constexpr int kWarpsN = kN / kWarpN;
  static constexpr int kThreads = kM / kWarpM * kWarpsN * 32;
  static constexpr int kMinBlocks = kThreads >= 256 ? 1 : 2;
  using TileA = Tile<kM, kK>;
  using TileB = Tile<kN, kK>;
  static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
  static constexpr int kSmemBytes = kStages * kStageBytes;

  struct Params {
    const u16* a;
    const u16* b;
    T* c;
    const void* bias;  // see epilogue::Operands
    const void* residual;
    i64 residual_row, c_row;  // strides in elements
    i64 a_row, a_col;
    i64 b_row, b_col;
    int m, n, k;         // of the output
    int wide_a, wide_b;  // unit column stride and rows 16-byte aligned: asynchronous copies
    int pairs_c, pairs_residual;  // rows 4-byte aligned: two at a time
    float scale;
  };

  using Accumulator = float[kWarpM / 16][kWarpN / 8][4];

  __device__ static __forceinline__ void multiply(Accumulator& acc, u32 smem, int warp_row,
                                                  int warp_col, int lane) {
    const u32 smem_b = smem + TileA::kBytes;
#pragma unroll
    for (int step = 0; step < kK / 16; ++step) {
      u32 a[kWarpM / 16][4];
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i)
        ptx::ldmatrix_x4(
            a[i], TileA::address(smem, warp_row + 16 * i + (lane & 15), 2 * step + (lane >> 4)));
#pragma unroll
      for (int j = 0; j < kWarpN / 16; ++j) {
        u32 b[4];
        ptx::ldmatrix_x4(b,
                         TileB::address(smem_b, warp_col + 16 * j + (lane & 7) + ((lane >> 4) << 3),
                                        2 * step + ((lane >> 3) & 1)));
#pragma unroll
        for (int i = 0; i < kWarpM / 16; ++i) {
          ptx::mma_m16n8k16<T>(acc[i][2 * j], a[i], b[0], b[1]);
          ptx::mma_m16n8k16<T>(acc[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  __device__ static __forceinline__ void store(const Params& p, const Accumulator& acc, i64 row0,
                                               int col0, int lane) {
    const epilogue::Operands operands = {p.bias, p.residual, p.residual_row, p.scale,
                                         p.m,    p.n,        p.n * kHalves,  p.pairs_residual};
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 row = row0 + 16 * i + 8 * r + (lane >> 2);
        if (row >= p.m) continue;
        T* to = p.c + row * p.c_row;
#pragma unroll
        for (int j = 0; j < kWarpN / (8 * kHalves); ++j) {
          const int col = col0 + 8 * j + 2 * (lane & 3);
          if (col >= p.n) continue;
          float x[kHalves][2];
#pragma unroll
          for (int half = 0; half < kHalves; ++half)
#pragma unroll
            for (int e = 0; e < 2; ++e) x[half][e] = acc[i][kHalves * j + half][2 * r + e];
          Epilogue::template apply<T>(x, operands, row, col);
          if (p.pairs_c && col + 1 < p.n) {
            *reinterpret_cast<u32*>(to + col) = ptx::pack<T>(x[0][0], x[0][1]);
          } else {
            to[col] = ptx::from_float<T>(x[0][0]);
            if (col + 1 < p.n) to[col + 1] = ptx::from_float<T>(x[0][1]);
          }
        }
      }
    }
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int tiles_m = ceil_div(p.m, kM);
    const int tiles_n = ceil_div(p.n, kColumns);
    const TilePlace tile = raster(blockIdx.x, tiles_m, tiles_n, kRowGroup);
    const i64 row0 = static_cast<i64>(tile.row) * kM;
    const int col0 = tile.col * kColumns;

    const u32 base = ptx::shared_address(smem);
    const int steps = ceil_div(p.k, kK);
    const auto load = [&](int step) {
      if (step < steps) {
        const i64 k0 = static_cast<i64>(step) * kK;
        const u32 to = base + step % kStages * kStageBytes;
        const int depth = static_cast<int>(p.k - k0);
        load_tile<TileA, kThreads>(to, {p.a + row0 * p.a_row + k0 * p.a_col, p.a_row, p.a_col,
                                        static_cast<int>(p.m - row0), depth, p.wide_a != 0});
        load_tile<TileB, kThreads, (kHalves > 1)>(
            to + TileA::kBytes, {p.b + col0 * p.b_row + k0 * p.b_col, p.b_row, p.b_col, p.n - col0,
                                 depth, p.wide_b != 0, p.n});
      }
      ptx::cp_async_commit();  // also when empty: the count below stays constant
    };

    const int warp_row = warp / kWarpsN * kWarpM;
    const int warp_col = warp % kWarpsN * kWarpN;
    Accumulator acc;
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i)
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.f;

#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
      ptx::cp_async_wait<kStages - 2>();
      __syncthreads();  // slice `step` is there, and every warp is done with the buffer that is
                        // filled next
      load(step + kStages - 1);
      multiply(acc, base + step % kStages * kStageBytes, warp_row, warp_col, lane);
    }
    store(p, acc, row0 + warp_row, col0 + warp_col / kHalves, lane);
  }
};

}  // namespace stof::gemm
