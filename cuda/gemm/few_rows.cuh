// C = epilogue(A B^T) of at most four rows of A, which is what a decoder multiplies for a token:
// the time is that of reading B once. B's rows lie along K, and a warp takes two of them, or of a
// gated product four: 16 bytes a lane and load, several loads in flight. Few columns are few warps,
// so K may be cut into slices, one a warp of the same CTA.
//
// With kNormed rows of A are divided by their root mean square and multiplied by a weight first:
// what divides a row is a factor of its sums, so that nothing is read twice.
//
// Sums are in fp32, in an order that depends on nothing but kSlices.
//
// If no kernel before this one writes B, its first loads, which of a short K are all, begin before
// those have ended, and the next kernel may come as soon as all CTAs of this one are there.
#pragma once

#include "epilogue/stages.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/grid.cuh"
#include "ptx/shared.cuh"
#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof::gemm {

// kConstant: no kernel before writes B or the norm's weight. kRoom: bytes of shared memory for what
// all warps read of rows of A and the norm's weight, which then comes at once.
template <typename T, int kRows, int kSlices, class Epilogue, bool kNormed = false,
          bool kConstant = false, int kRoom = 0>
struct FewRows {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMinBlocks = 4;
  static constexpr int kHalves = Epilogue::kHalves;
  static constexpr int kSums = kRows * (kHalves * 2 + (kNormed ? 1 : 0));
  static constexpr bool kNear = kRoom > 0;
  static constexpr int kSmemBytes = kRoom + (kSlices > 1 ? kWarps * kSums * sizeof(float) : 0);
  static constexpr int kStep = kSlices * 256;  // of K, that all slices take at once
  // Steps whose loads are in flight, as many as there are registers for.
  static constexpr int kAhead = kRows == 1 ? 4 : kRows * kHalves > 4 ? 1 : 2;
  static_assert(kWarps % kSlices == 0, "the slices of a column are in one CTA");

  struct Params {
    const T* a;
    const T* b;
    T* c;
    const void* bias;  // see epilogue::Operands
    const void* residual;
    i64 residual_row, c_row;  // strides in elements
    i64 a_row, b_row;
    const T* norm;  // (k,), 16-byte aligned; if kNormed
    int m, n, k;    // of the output
    int pairs_residual;
    float scale, eps;
  };

  using Raw = uint4[kAhead][kHalves][2];

  struct Sums {
    float of[kRows][kHalves][2];
    float squares[kRows];

    __device__ __forceinline__ float& operator[](int j) {
      constexpr int kProducts = kHalves * 2;
      return j < kRows * kProducts ? of[j / kProducts][j / 2 % kHalves][j % 2]
                                   : squares[j - kRows * kProducts];
    }
  };

  // Products of eight elements: those from `valid` on are 0 in both.
  __device__ static __forceinline__ void multiply(const Params& p, Sums& sums,
                                                  const Vector8<T> (&b)[kHalves][2],
                                                  const T* const (&rows)[kRows], const T* of_norm,
                                                  i64 at, int valid) {
    Vector8<T> norm;
    if constexpr (kNormed) norm = Vector8<T>::load(of_norm + at, valid, true);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      auto a = Vector8<T>::load(rows[r] + at, valid, true);
      if constexpr (kNormed) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          sums.squares[r] += a.x[e] * a.x[e];
          a.x[e] *= norm.x[e];
        }
      }
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int e = 0; e < 8; ++e) sums.of[r][half][i] += a.x[e] * b[half][i].x[e];
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
    const int whole = p.k / 8 * 8;
    const int first = (slice * 32 + lane) * 8;
    Raw raw;
    if constexpr (kConstant) {
      ptx::let_next_kernel_come();
      load(raw, columns, first, whole);
      if constexpr (kNear && kNormed) fetch(smem, p.m, p.norm, whole);
    }
    ptx::after_earlier_kernels();
    const T* near[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) near[r] = kNear ? place(smem, min(r, p.m - 1), whole) : rows[r];
    const T* const norm = kNear ? place(smem, p.m, whole) : p.norm;
    if constexpr (kNear) {
      for (int r = 0; r < p.m; ++r) fetch(smem, r, p.a + r * p.a_row, whole);
      if constexpr (kNormed && !kConstant) fetch(smem, p.m, p.norm, whole);
      ptx::cp_async_commit();
    }
    u32 residual = 0;
    if constexpr (kConstant) residual = residual_of(p, slice, lane, col);
    if constexpr (kNear) {
      ptx::cp_async_wait<0>();
      __syncthreads();
    }
    for (i64 at = first; at < whole; at += kAhead * kStep) {
      if (!kConstant || at != first) load(raw, columns, at, whole);
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        if (at + s * kStep >= whole) break;
        Vector8<T> b[kHalves][2];
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = 0; i < 2; ++i) b[half][i] = Vector8<T>::of(raw[s][half][i]);
        multiply(p, sums, b, near, norm, at + s * kStep, 8);
      }
    }
    if (whole < p.k && whole % kStep == first) {  // less than eight are left
      Vector8<T> b[kHalves][2];
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          b[half][i] = Vector8<T>::load(columns[half][i] + whole, p.k - whole, true);
      multiply(p, sums, b, rows, p.norm, whole, p.k - whole);
    }
    finish(p, sums, reinterpret_cast<float*>(smem + kRoom), warp, slice, lane, col, residual);
  }

  // Where row i is in shared memory, of `whole` elements.
  __device__ static __forceinline__ T* place(char* smem, int i, int whole) {
    return reinterpret_cast<T*>(smem) + i * whole;
  }

  // Begins to copy it there.
  __device__ static __forceinline__ void fetch(char* smem, int i, const T* from, int whole) {
    const u32 to = ptx::shared_address(place(smem, i, whole));
#pragma unroll 1
    for (int k = threadIdx.x * 8; k < whole; k += kThreads * 8)
      ptx::cp_async_16(to + k * static_cast<int>(sizeof(T)), from + k);
  }

  // B's from `at` on, for kAhead steps, up to `whole`.
  __device__ static __forceinline__ void load(Raw& raw, const T* const (&columns)[kHalves][2],
                                              i64 at, int whole) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          raw[s][half][i] = {};
          if (at + s * kStep < whole)
            raw[s][half][i] = *reinterpret_cast<const uint4*>(columns[half][i] + at + s * kStep);
        }
  }

  // What the residual adds to the columns of the row that a lane ends.
  __device__ static __forceinline__ u32 residual_of(const Params& p, int slice, int lane, int col) {
    if constexpr (Epilogue::kResidual) {
      if (slice == 0 && lane < min(kRows, p.m) && col < p.n)
        return epilogue::load_pair(static_cast<const T*>(p.residual) + lane * p.residual_row + col,
                                   p.n - col, p.pairs_residual != 0);
    }
    return 0;
  }

  __device__ static __forceinline__ void finish(const Params& p, Sums& sums, float* shared,
                                                int warp, int slice, int lane, int col,
                                                u32 residual) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums[j] = warp_sum(sums[j]);
    if constexpr (kSlices > 1) {
      if (lane == 0) {
#pragma unroll
        for (int j = 0; j < kSums; ++j) shared[warp * kSums + j] = sums[j];
      }
      __syncthreads();
      if (slice > 0) return;
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        sums[j] = 0.f;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) sums[j] += shared[(warp + s) * kSums + j];
      }
    }
    if (col >= p.n) return;
    epilogue::Operands operands = {p.bias, p.residual, p.residual_row, p.scale,
                                   p.m,    p.n,        p.n * kHalves,  p.pairs_residual};
    if constexpr (kConstant) {
      operands.has_residual = true;
      operands.residual_pair = residual;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane != r || r >= p.m) continue;
      if constexpr (kNormed) {
        const float factor = rsqrtf(sums.squares[r] / p.k + p.eps);
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = 0; i < 2; ++i) sums.of[r][half][i] *= factor;
      }
      Epilogue::template apply<T>(sums.of[r], operands, r, col);
      T* const to = p.c + r * p.c_row + col;
      to[0] = ptx::from_float<T>(sums.of[r][0][0]);
      if (col + 1 < p.n) to[1] = ptx::from_float<T>(sums.of[r][0][1]);
    }
  }
};

}  // namespace stof::gemm
