// C = epilogue(A B^T) of at most four rows of A, which is what a decoder multiplies for a token:
// the time is that of reading B once. B's rows lie along K, and a warp takes two of them, or of a
// gated product four: 16 bytes a lane and load, several loads in flight. Few columns are few warps,
// so K may be cut into slices, one a warp of the same CTA.
//
// Sums are in fp32, in an order that depends on nothing but kSlices.
#pragma once

#include "epilogue/stages.cuh"
#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof::gemm {

template <typename T, int kRows, int kSlices, class Epilogue>
struct FewRows {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMinBlocks = 4;
  static constexpr int kHalves = Epilogue::kHalves;
  static constexpr int kSums = kRows * kHalves * 2;
  static constexpr int kSmemBytes = kSlices > 1 ? kWarps * kSums * sizeof(float) : 0;
  static constexpr int kStep = kSlices * 256;       // of K, that all slices take at once
  static constexpr int kAhead = kRows > 2 ? 2 : 4;  // steps whose loads are in flight
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

  using Sums = float[kRows][kHalves][2];

  // Products of eight elements: those from `valid` on are 0 in both.
  __device__ static __forceinline__ void multiply(Sums& sums, const Vector8<T> (&b)[kHalves][2],
                                                  const T* const (&rows)[kRows], i64 at,
                                                  int valid) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto a = Vector8<T>::load(rows[r] + at, valid, true);
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int e = 0; e < 8; ++e) sums[r][half][i] += a.x[e] * b[half][i].x[e];
    }
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int slice = warp % kSlices;
    const int col = (static_cast<int>(blockIdx.x) * (kWarps / kSlices) + warp / kSlices) * 2;

    // Rows and columns beyond the last read the last one, and are not stored.
    const T* rows[kRows];
    const T* columns[kHalves][2];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = p.a + min(r, p.m - 1) * p.a_row;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        columns[half][i] = p.b + (min(col + i, p.n - 1) + static_cast<i64>(half) * p.n) * p.b_row;

    Sums sums = {};
    i64 at = (slice * 32 + lane) * 8;
    for (; at + (kAhead - 1) * kStep + 8 <= p.k; at += kAhead * kStep) {
      uint4 raw[kAhead][kHalves][2];
#pragma unroll
      for (int s = 0; s < kAhead; ++s)
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            raw[s][half][i] = *reinterpret_cast<const uint4*>(columns[half][i] + at + s * kStep);
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        Vector8<T> b[kHalves][2];
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = 0; i < 2; ++i) b[half][i] = Vector8<T>::of(raw[s][half][i]);
        multiply(sums, b, rows, at + s * kStep, 8);
      }
    }
    for (; at < p.k; at += kStep) {
      const int valid = static_cast<int>(min(p.k - at, i64{8}));
      Vector8<T> b[kHalves][2];
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          b[half][i] = Vector8<T>::load(columns[half][i] + at, valid, true);
      multiply(sums, b, rows, at, valid);
    }
    finish(p, sums, reinterpret_cast<float*>(smem), warp, slice, lane, col);
  }

  __device__ static __forceinline__ void finish(const Params& p, Sums& sums, float* shared,
                                                int warp, int slice, int lane, int col) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) sums[r][half][i] = warp_sum(sums[r][half][i]);
    if constexpr (kSlices > 1) {
      if (lane == 0) {
#pragma unroll
        for (int j = 0; j < kSums; ++j)
          shared[warp * kSums + j] = sums[j / (kHalves * 2)][j / 2 % kHalves][j % 2];
      }
      __syncthreads();
      if (slice > 0) return;
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        float sum = 0.f;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) sum += shared[(warp + s) * kSums + j];
        sums[j / (kHalves * 2)][j / 2 % kHalves][j % 2] = sum;
      }
    }
    if (col >= p.n) return;
    const epilogue::Operands operands = {p.bias, p.residual, p.residual_row, p.scale,
                                         p.m,    p.n,        p.n * kHalves,  p.pairs_residual};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane != r || r >= p.m) continue;
      Epilogue::template apply<T>(sums[r], operands, r, col);
      T* const to = p.c + r * p.c_row + col;
      to[0] = ptx::from_float<T>(sums[r][0][0]);
      if (col + 1 < p.n) to[1] = ptx::from_float<T>(sums[r][0][1]);
    }
  }
};

}  // namespace stof::gemm
