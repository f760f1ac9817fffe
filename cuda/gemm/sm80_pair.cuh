// C = epilogue(between(A B^T) D^T) in one kernel on mma.sync, for sm_80 and everything newer: the
// two products of a small MLP. A is (M, K), B (H, K) and D (N, H), each contiguous along its second
// axis.
//
// A CTA has kM rows, and what is between for all of them, at most kHidden columns, in shared
// memory: rounded as two kernels would, and never in memory. Every CTA reads all of B and D, out of
// L2, in slices of kN rows that are kK deep, as one stream through kStages buffers.
#pragma once

#include "epilogue/ahead.cuh"
#include "epilogue/stages.cuh"
#include "gemm/sm80_loader.cuh"
#include "gemm/sm80_warp.cuh"
#include "ptx/convert.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::gemm {

template <typename T, int kM, int kHidden, int kWarpM, int kWarpN, class Between, class Epilogue>
struct Sm80Pair {
  static constexpr int kN = 128, kK = 32, kStages = 3;
  static constexpr int kThreads = kM / kWarpM * (kN / kWarpN) * 32;
  static constexpr int kMinBlocks = 2;
  static constexpr int kColumns = kN / Between::kHalves;  // between, of a tile
  static_assert(kHidden % kN == 0 && Epilogue::kHalves == 1);
  static_assert(kWarpN % (16 * Between::kHalves) == 0);
  using LoaderA = Loader<kM, kK, kThreads, kAlongK, false>;
  using LoaderB = Loader<kN, kK, kThreads, kAlongK, Between::kHalves != 1>;
  using LoaderD = Loader<kN, kK, kThreads, kAlongK, false>;
  using TileA = typename LoaderA::Tile;
  using TileB = typename LoaderB::Tile;
  using TileH = Tile<kM, kHidden>;
  static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
  static constexpr int kSmemBytes = TileH::kBytes + kStages * kStageBytes;
  static constexpr int kParts = kK / 16;
  static_assert(kParts % 2 == 0, "a slice begins with the first fragments");

  struct Params {
    const u16* a;
    const u16* b;
    const u16* d;
    T* c;
    const void* bias_b;  // see epilogue::Operands
    const void* bias_d;
    const void* residual;
    i64 residual_row, c_row;  // strides in elements
    i64 a_row, b_row, d_row;
    int m, n, k, hidden;          // of the output, of A and of what is between
    int pairs_c, pairs_residual;  // rows are 4-byte aligned
    float scale_b, scale_d;
  };

  using Sums = WarpSums<kWarpM, kWarpN>;

  // The slices in the order in which they are used: of A and B for each tile of what is between,
  // then of D for each tile of C.
  struct Stream {
    const Params& p;
    i64 row0;
    u32 to;  // buffers
    int tile = 0, step = 0, buffer = 0;
    LoaderA a;
    LoaderB b;
    LoaderD d;

    __device__ __forceinline__ Stream(const Params& p, i64 row0, u32 to)
        : p(p), row0(row0), to(to), a(of_a()), b(of_b()), d(of_d(0)) {}

    __device__ __forceinline__ int tiles_b() const { return ceil_div(p.hidden, kColumns); }
    __device__ __forceinline__ int tiles_d() const { return ceil_div(p.n, kN); }

    __device__ __forceinline__ Operand of_a() const {
      return {p.a + row0 * p.a_row, p.a_row, 1, static_cast<int>(p.m - row0), p.k, 0};
    }

    __device__ __forceinline__ Operand of_b() const {
      const int first = tile * kColumns;
      return {p.b + first * p.b_row, p.b_row, 1, p.hidden - first, p.k, p.hidden};
    }

    __device__ __forceinline__ Operand of_d(int of) const {
      return {p.d + of * kN * p.d_row, p.d_row, 1, p.n - of * kN, p.hidden, 0};
    }

    // Starts one of the parts of the next slice; behind the last there are empty ones.
    __device__ __forceinline__ void start(int part) {
      const u32 here = to + buffer * kStageBytes;
      const bool first = tile < tiles_b();
      if (first) {
        a.template start<kParts>(here, part);
        b.template start<kParts>(here + TileA::kBytes, part);
      } else if (tile < tiles_b() + tiles_d()) {
        d.template start<kParts>(here + TileA::kBytes, part);
      }
      if (part < kParts - 1) return;
      ptx::cp_async_commit();
      buffer = buffer == kStages - 1 ? 0 : buffer + 1;
      a.advance();
      b.advance();
      if (!first) d.advance();
      if (++step < ceil_div(first ? p.k : p.hidden, kK)) return;
      step = 0;
      ++tile;
      a = LoaderA(of_a());
      b = LoaderB(of_b());
      if (!first) d = LoaderD(of_d(tile - tiles_b()));
    }
  };

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / (kN / kWarpN) * kWarpM, warp_col = warp % (kN / kWarpN) * kWarpN;
    const i64 row0 = static_cast<i64>(blockIdx.x) * kM;
    const u32 hidden = ptx::shared_address(smem), slices = hidden + TileH::kBytes;
    Stream stream(p, row0, slices);
    int used = 0;  // the buffer of the slice that is multiplied
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i)
#pragma unroll
      for (int part = 0; part < kParts; ++part) stream.start(part);
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();

    const epilogue::Operands between = {
        p.bias_b, nullptr, 0, p.scale_b, p.m, p.hidden, p.hidden * Between::kHalves, 0};
    products<TileA>(
        stream, used, stream.tiles_b(), ceil_div(p.k, kK), warp_row, warp_col, lane,
        [&](int buffer) { return slices + buffer * kStageBytes; },
        [&](const Sums& sums, int tile) {
          keep(between, sums, hidden, row0, tile * kColumns, warp_row, warp_col, lane);
        });
    __syncthreads();  // all of what is between is there
    const epilogue::Operands operands = {p.bias_d, p.residual, p.residual_row,  p.scale_d, p.m,
                                         p.n,      p.n,        p.pairs_residual};
    products<TileH>(
        stream, used, stream.tiles_d(), ceil_div(p.hidden, kK), warp_row, warp_col, lane,
        [&](int) { return hidden; },
        [&](const Sums& sums, int tile) {
          store(p, operands, sums, row0, tile * kN, warp_row, warp_col, lane);
        });
    ptx::cp_async_wait<0>();
  }

  // Computes `tiles` products of `steps` slices each. `finish(sums, tile)` takes what was summed
  // up.
  template <class TileOfA, class Where, class Finish>
  __device__ static __forceinline__ void products(Stream& stream, int& used, int tiles, int steps,
                                                  int warp_row, int warp_col, int lane,
                                                  const Where& where, const Finish& finish) {
    constexpr bool kWhole = TileOfA::kCols != kK;
    WarpFragments<kWarpM, kWarpN, TileOfA, TileB, false, false> fragments[2];
    const auto take = [&](int of, int buffer, int step, int part) {
      fragments[of].load_a(where(buffer), kWhole ? step * kParts + part : part, warp_row, lane);
      fragments[of].load_b(stream.to + buffer * kStageBytes + TileA::kBytes, part, warp_col, lane);
    };
    take(0, used, 0, 0);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      Sums sums;
      sums.clear();
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const int next = used == kStages - 1 ? 0 : used + 1;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          // The buffer that is filled was read to its end before the barrier of the step before.
          stream.start(part);
          if (part == kParts - 1) {
            ptx::cp_async_wait<kStages - 2>();
            __syncthreads();  // the next slice is there
            take(0, next, step + 1 < steps ? step + 1 : 0, 0);
          } else {
            take((part + 1) % 2, used, step, part + 1);
          }
          fragments[part % 2].template multiply<T>(sums);
        }
        used = next;
      }
      finish(sums, tile);
    }
  }

  // Takes sums through `Between` and into shared memory; zeros beyond the last column, which are
  // multiplied too.
  __device__ static __forceinline__ void keep(epilogue::Operands x, const Sums& sums, u32 hidden,
                                              i64 row0, int col0, int warp_row, int warp_col,
                                              int lane) {
    constexpr int kHalves = Between::kHalves, kPairs = kWarpN / (8 * kHalves);
    const int first = col0 + warp_col / kHalves + 2 * (lane & 3);
    epilogue::Columns<Between, T, kPairs> ahead;
    ahead.load(x, col0 + kColumns <= x.cols, [&](int j) { return first + 8 * j; });
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      ahead.give(x, j);
      const int col = first + 8 * j;
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = warp_row + 16 * i + 8 * r + (lane >> 2);
          float v[kHalves][2];
#pragma unroll
          for (int half = 0; half < kHalves; ++half)
#pragma unroll
            for (int e = 0; e < 2; ++e) v[half][e] = sums.of[i][kHalves * j + half][2 * r + e];
          Between::template apply<T>(v, x, row0 + row, col);
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (col + e >= x.cols) v[0][e] = 0.f;
          ptx::store_shared_4(TileH::address(hidden, row, col / 8) + col % 8 * 2,
                              ptx::pack<T>(v[0][0], v[0][1]));
        }
    }
  }

  // Straight to memory: a quad has 16 bytes of a row.
  __device__ static __forceinline__ void store(const Params& p, epilogue::Operands x,
                                               const Sums& sums, i64 row0, int col0, int warp_row,
                                               int warp_col, int lane) {
    constexpr int kPairs = kWarpN / 8;
    const int first = col0 + warp_col + 2 * (lane & 3);
    const bool whole = col0 + kN <= p.n;
    epilogue::Columns<Epilogue, T, kPairs> ahead;
    ahead.load(x, whole, [&](int j) { return first + 8 * j; });
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 row = row0 + warp_row + 16 * i + 8 * r + (lane >> 2);
        if (row >= p.m) continue;
        u32 added[kPairs] = {};
        // All of it before any is stored, as it may be stored there.
        if constexpr (Epilogue::kResidual) epilogue::load_residual<T>(added, x, row, first, whole);
        T* const to = p.c + row * p.c_row;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const int col = first + 8 * j;
          float v[1][2] = {{sums.of[i][j][2 * r], sums.of[i][j][2 * r + 1]}};
          ahead.give(x, j);
          x.has_residual = true;
          x.residual_pair = added[j];
          Epilogue::template apply<T>(v, x, row, col);
          if (p.pairs_c && col + 1 < p.n) {
            *reinterpret_cast<u32*>(to + col) = ptx::pack<T>(v[0][0], v[0][1]);
          } else {
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (col + e < p.n) to[col + e] = ptx::from_float<T>(v[0][e]);
          }
        }
      }
  }
};

}  // namespace stof::gemm
