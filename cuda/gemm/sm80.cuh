// C = epilogue(A B) on mma.sync, for sm_80 and everything newer. A is (M, K), and B is given as
// (N, K).
//
// A CTA computes a kM x kN tile with warps of kWarpM x kWarpN, streaming slices of A and B that are
// kK deep through kStages buffers. CTAs are numbered so that groups of eight row tiles share their
// columns of B in L2.
#pragma once

#include "epilogue/ahead.cuh"
#include "epilogue/stages.cuh"
#include "gemm/raster.cuh"
#include "gemm/result.cuh"
#include "gemm/sm80_loader.cuh"
#include "gemm/sm80_warp.cuh"
#include "ptx/convert.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::gemm {

template <typename T, int kM, int kN, int kWarpM, int kWarpN, int kK, int kStages, Layout kLayoutA,
          Layout kLayoutB, class Epilogue>
struct Sm80 {
  static constexpr int kRowGroup = 8;
  static constexpr int kHalves = Epilogue::kHalves;
  static_assert(kWarpN % (16 * kHalves) == 0);
  static constexpr int kColumns = kN / kHalves;  // of the output
  static constexpr int kWarpsN = kN / kWarpN;
  static constexpr int kThreads = kM / kWarpM * kWarpsN * 32;
  static constexpr int kMinBlocks = kThreads >= 256 ? 1 : 2;
  using LoaderA = Loader<kM, kK, kThreads, kLayoutA, false>;
  using LoaderB = Loader<kN, kK, kThreads, kLayoutB, kHalves != 1>;
  using TileA = typename LoaderA::Tile;
  using TileB = typename LoaderB::Tile;
  using TileC = Tile<kM, kColumns>;
  static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
  static constexpr int kSmemBytes = kStages * kStageBytes;
  static_assert(TileC::kBytes <= kSmemBytes, "the output leaves through the buffers");

  struct Params {
    const u16* a;
    const u16* b;
    T* c;
    const void* bias;  // see epilogue::Operands
    const void* residual;
    const float* row_statistics;
    const float* column_sums;
    const int* positions;
    const float* frequency;
    float* statistics;        // (m, ceil(n / 64), 2), if Statistics are told
    i64 residual_row, c_row;  // strides in elements
    i64 c_batch, c_head;      // of heads
    i64 a_row, a_col;
    i64 b_row, b_col;
    int m, n, k;                 // of the output
    int wide_c, pairs_residual;  // rows are 16-byte aligned, and 4-byte
    int turned, half, head_dim, seq;
    float scale, magnitude;
  };

  using Accumulator = WarpSums<kWarpM, kWarpN>;
  using Fragments =
      WarpFragments<kWarpM, kWarpN, TileA, TileB, LoaderA::kTransposed, LoaderB::kTransposed>;

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const TilePlace tile =
        raster(blockIdx.x, ceil_div(p.m, kM), ceil_div(p.n, kColumns), kRowGroup);
    const i64 row0 = static_cast<i64>(tile.row) * kM;
    const int col0 = tile.col * kColumns;

    const Operand a = {p.a + row0 * p.a_row,         p.a_row, p.a_col,
                       static_cast<int>(p.m - row0), p.k,     0};
    const Operand b = {p.b + col0 * p.b_row, p.b_row, p.b_col, p.n - col0, p.k, p.n};
    LoaderA loader_a(a);
    LoaderB loader_b(b);
    const u32 base = ptx::shared_address(smem);
    const int steps = ceil_div(p.k, kK);
    constexpr int kParts = kK / 16;
    const auto load = [&](int step, int part) {
      if (step < steps) {
        const u32 to = base + step % kStages * kStageBytes;
        loader_a.template start<kParts>(to, part);
        loader_b.template start<kParts>(to + TileA::kBytes, part);
      }
      if (part == kParts - 1) {
        ptx::cp_async_commit();  // also when empty: the counts below stay constant
        loader_a.advance();
        loader_b.advance();
      }
    };

    const int warp_row = warp / kWarpsN * kWarpM;
    const int warp_col = warp % kWarpsN * kWarpN;
    Accumulator acc;
    acc.clear();

#pragma unroll 1
    for (int step = 0; step < kStages - 1; ++step)
#pragma unroll
      for (int part = 0; part < kParts; ++part) load(step, part);
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    // Of the next 16 of K, while the last are multiplied.
    Fragments fragments[2];
    const auto take = [&](Fragments& to, u32 slice, int part) {
      to.load_a(slice, part, warp_row, lane);
      to.load_b(slice + TileA::kBytes, part, warp_col, lane);
    };
    take(fragments[0], base, 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const u32 here = base + step % kStages * kStageBytes;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        // The buffer that is filled was read to its end before the barrier of the step before.
        load(step + kStages - 1, part);
        if (part == kParts - 1) {
          ptx::cp_async_wait<kStages - 2>();
          __syncthreads();  // the next slice is there
          take(fragments[kParts % 2], base + (step + 1) % kStages * kStageBytes, 0);
        } else {
          take(fragments[(part + 1) % 2], here, part + 1);
        }
        fragments[part % 2].template multiply<T>(acc);
      }
    }
    static_assert(kParts % 2 == 0, "a step begins with the first fragments");
    ptx::cp_async_wait<0>();
    __syncthreads();
    store(p, acc, base, row0, col0, warp_row, warp_col, lane);
  }

  // Through shared memory, so that rows leave in pieces of 16 bytes.
  __device__ static __forceinline__ void store(const Params& p, Accumulator& acc, u32 base,
                                               i64 row0, int col0, int warp_row, int warp_col,
                                               int lane) {
    const epilogue::Operands operands = epilogue::operands_of<kHalves>(p);
    if constexpr (Epilogue::kApart > 0)
      couple(operands, acc, base, row0, col0, warp_row, warp_col, lane);
    warp_col /= kHalves;
    constexpr int kPairs = kWarpN / (8 * kHalves);
    const int first = col0 + warp_col + 2 * (lane & 3);
    const bool whole = col0 + kColumns <= p.n;
    epilogue::Columns<Epilogue, T, kPairs> columns;
    columns.load(operands, whole, [&](int j) { return first + 8 * j; });
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + 16 * i + 8 * r + (lane >> 2);
        epilogue::Operands here = operands;
        epilogue::Rows<Epilogue, 1> of_row;
        of_row.load(operands, [&](int) { return row0 + row; });
        of_row.give(here, 0);
        u32 added[kPairs] = {};
        if constexpr (Epilogue::kResidual)
          epilogue::load_residual<T>(added, operands, row0 + row, first, whole);
        here.has_residual = true;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          float x[kHalves][2];
#pragma unroll
          for (int half = 0; half < kHalves; ++half)
#pragma unroll
            for (int e = 0; e < 2; ++e) x[half][e] = acc.of[i][kHalves * j + half][2 * r + e];
          columns.give(here, j);
          here.residual_pair = added[j];
          Epilogue::template apply<T>(x, here, row0 + row, first + 8 * j);
          const int col = warp_col + 8 * j + 2 * (lane & 3);
          ptx::store_shared_4(TileC::address(base, row, col / 8) + col % 8 * 2,
                              ptx::pack<T>(x[0][0], x[0][1]));
        }
      }
    }
    __syncthreads();
    if constexpr (Epilogue::kStatistics) tell(p, base, row0, col0);
#pragma unroll 2
    for (int i = threadIdx.x; i < kM * TileC::kChunks; i += kThreads) {
      const int row = i / TileC::kChunks, chunk = i % TileC::kChunks;
      const int col = col0 + 8 * chunk;
      if (row0 + row >= p.m || col >= p.n) continue;
      const uint4 x = ptx::load_shared_16(TileC::address(base, row, chunk));
      const auto to = [&](int e) {
        return p.c + place_of<Epilogue::kHeads>(p, row0 + row, col + e);
      };
      if (p.wide_c && col + 8 <= p.n) {
        *reinterpret_cast<uint4*>(to(0)) = x;
      } else {
        const u32 word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (col + e < p.n) *to(e) = T{static_cast<u16>(word[e / 2] >> e % 2 * 16)};
      }
    }
  }

  // Takes columns that are coupled, which other warps may have, through the epilogue as far as
  // that: by shared memory, 16 rows of each warp at a time.
  __device__ static __forceinline__ void couple(const epilogue::Operands& operands,
                                                Accumulator& acc, u32 base, i64 row0, int col0,
                                                int warp_row, int warp_col, int lane) {
    constexpr int kPitch = kN + 8;  // floats; so that a warp's pairs hit all banks
    static_assert(kN % (2 * Epilogue::kApart) == 0 && kM / kWarpM * 16 * kPitch * 4 <= kSmemBytes);
    const auto at = [&](int r, int col) {
      const int row = warp_row / kWarpM * 16 + 8 * r + (lane >> 2);
      return base + (row * kPitch + col) * 4;
    };
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            ptx::store_shared_4(at(r, warp_col + 8 * j + 2 * (lane & 3) + e),
                                __builtin_bit_cast(u32, acc.of[i][j][2 * r + e]));
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int col = warp_col + 8 * j + 2 * (lane & 3);
          const i64 row = row0 + warp_row + 16 * i + 8 * r + (lane >> 2);
          float x[2] = {acc.of[i][j][2 * r], acc.of[i][j][2 * r + 1]};
          const uint2 other = ptx::load_shared_8(at(r, col ^ Epilogue::kApart));
          gemm::couple<Epilogue, T>(x, other, operands, row, col0 + col);
          acc.of[i][j][2 * r] = x[0];
          acc.of[i][j][2 * r + 1] = x[1];
        }
      __syncthreads();
    }
  }

  // Of the rows in shared memory, each warp takes its own.
  __device__ static __forceinline__ void tell(const Params& p, u32 base, i64 row0, int col0) {
    static_assert(kHalves == 1 && kColumns % 64 == 0);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < kM; row += kThreads / 32)
#pragma unroll
      for (int slab = 0; slab < kColumns / 64; ++slab) {
        const int first = col0 + 64 * slab, col = 64 * slab + 2 * lane;
        const u32 both[1] = {ptx::load_shared_4(TileC::address(base, row, col / 8) + col % 8 * 2)};
        tell_statistics<T, 32>(p, both, row0 + row, first, lane);
      }
  }
};

}  // namespace stof::gemm
