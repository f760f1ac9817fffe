// C = epilogue(A B^T) of at most sixteen rows of A: as few_rows.cuh the time is that of reading B,
// but for more rows than sums by hand keep up with. B's rows lie along K.
//
// A warp has 16 columns of B and multiplies on mma.sync straight from global memory: a lane loads
// 16 bytes of a row, eight of K, which are two products' share of its fragments if both operands
// number K the same way. Several loads are in flight; K is cut into slices, one a warp of the CTA.
//
// Sums are in fp32, in an order that depends on nothing but kSlices.
#pragma once

#include "epilogue/ahead.cuh"
#include "epilogue/stages.cuh"
#include "gemm/few_sums.cuh"
#include "ptx/mma.cuh"
#include "types.cuh"

namespace stof::gemm {

template <typename T, int kRows, int kSlices, class Epilogue>
struct SixteenRows {
  static constexpr int kWarps = kSlices > 8 ? kSlices : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMinBlocks = 16 / kWarps;
  static constexpr int kHalves = Epilogue::kHalves;
  static constexpr int kTiles = 2 / kHalves;  // of 8 columns of the output, that a warp has
  static constexpr int kBlocks = kRows / 8;   // of 8 rows
  using End = FewSums<T, 2, kBlocks, kSlices, Epilogue>;
  static constexpr int kSmemBytes = kSlices > 1 ? kWarps * End::kBytes : 0;
  static constexpr int kAhead = 4;           // steps whose loads are in flight
  static constexpr int kStep = kAhead * 32;  // of K, that a slice takes at once
  static_assert(kRows == 8 || kRows == 16);
  static_assert(kWarps % kSlices == 0, "the slices of a column are in one CTA");

  struct Params {
    const T* a;
    const T* b;
    T* c;
    const void* bias;  // see epilogue::Operands
    const void* residual;
    i64 residual_row, c_row;  // strides in elements
    i64 a_row, b_row;
    int m, n, k;  // of the output
    int pairs_residual;
    float scale;
  };

  // Eight of K of a row of each block of A, and of each tile of B.
  struct Loaded {
    uint4 a[kBlocks], b[2];

    __device__ __forceinline__ void multiply(float (&sums)[2][4]) const {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // the first four of K, and the others
        u32 of_a[4] = {};
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          of_a[block] = i == 0 ? a[block].x : a[block].z;
          of_a[2 + block] = i == 0 ? a[block].y : a[block].w;
        }
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
          ptx::mma_m16n8k16<T>(sums[tile], of_a, i == 0 ? b[tile].x : b[tile].z,
                               i == 0 ? b[tile].y : b[tile].w);
      }
    }
  };

  // Less than eight elements, and zeros.
  __device__ static __forceinline__ uint4 rest(const T* from, int valid) {
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = epilogue::load_pair(from + 2 * i, valid - 2 * i, false);
    return {word[0], word[1], word[2], word[3]};
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int slice = warp % kSlices;
    const int block = static_cast<int>(blockIdx.x) * (kWarps / kSlices) + warp / kSlices;
    const int col = block * (kTiles * 8);

    // Rows and columns beyond the last read the last one, and are not stored.
    const T* rows[kBlocks];
    const T* columns[2];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      rows[i] = p.a + static_cast<i64>(min(8 * i + lane / 4, p.m - 1)) * p.a_row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const i64 row = min(col + i % kTiles * 8 + lane / 4, p.n - 1);
      columns[i] = p.b + (row + static_cast<i64>(i / kTiles) * p.n) * p.b_row;
    }
    const epilogue::Operands operands = {p.bias, p.residual, p.residual_row, p.scale,
                                         p.m,    p.n,        p.n * kHalves,  p.pairs_residual};
    epilogue::Columns<Epilogue, T, kTiles> ahead;
    ahead.load(operands, col + kTiles * 8 <= p.n,
               [&](int i) { return col + 8 * i + lane % 4 * 2; });

    float sums[2][4] = {};
    const int whole = p.k / 8 * 8;
    for (int from = slice * kStep; from < whole; from += kSlices * kStep) {
      Loaded loaded[kAhead];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const int at = from + 32 * s + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          loaded[s].b[i] = at < whole ? *reinterpret_cast<const uint4*>(columns[i] + at) : uint4{};
#pragma unroll
        for (int i = 0; i < kBlocks; ++i)
          loaded[s].a[i] = at < whole ? *reinterpret_cast<const uint4*>(rows[i] + at) : uint4{};
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) loaded[s].multiply(sums);
    }
    if (whole < p.k && slice == 0) {
      const int valid = lane % 4 == 0 ? p.k - whole : 0;
      Loaded loaded;
#pragma unroll
      for (int i = 0; i < 2; ++i) loaded.b[i] = rest(columns[i] + whole, valid);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) loaded.a[i] = rest(rows[i] + whole, valid);
      loaded.multiply(sums);
    }
    End::finish(p, operands, ahead, sums, reinterpret_cast<float*>(smem), warp, slice, lane, col);
  }
};

}  // namespace stof::gemm
