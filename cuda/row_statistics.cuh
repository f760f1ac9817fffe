// What a product needs of its rows to be normalised afterwards (epilogue/normed.cuh): the mean, and
// the inverse of the deviation. One warp a row; in fp32, the variance from distances to the mean.
#pragma once

#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof {

struct RowStatisticsShape {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  __device__ static __forceinline__ i64 row() {
    return static_cast<i64>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  }

  __device__ static __forceinline__ void store(float* out, i64 row, float mean, float variance,
                                               float eps) {
    if (threadIdx.x % 32 != 0) return;
    out[2 * row] = mean;
    out[2 * row + 1] = rsqrtf(variance + eps);
  }
};

template <typename T>
struct RowStatistics : RowStatisticsShape {
  struct Params {
    const T* x;
    float* out;  // (rows, 2)
    i64 x_row;   // elements
    i64 rows;
    int cols;
    int wide;     // rows are 16-byte aligned
    int centred;  // else the mean counts as zero: RMSNorm
    float eps;
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    const i64 row = RowStatisticsShape::row();
    if (row >= p.rows) return;
    const T* const x = p.x + row * p.x_row;
    float mean = 0.f;
    if (p.centred) {
      float sum = 0.f;
      each(p, x, [&](float value) { sum += value; });
      mean = warp_sum(sum) / p.cols;
    }
    float squares = 0.f;
    each(p, x, [&](float value) { squares += (value - mean) * (value - mean); });
    store(p.out, row, mean, warp_sum(squares) / p.cols, p.eps);
  }

  template <class Take>
  __device__ static __forceinline__ void each(const Params& p, const T* x, const Take& take) {
    for (int c = threadIdx.x % 32 * 8; c < p.cols; c += 256) {
      const auto v = Vector8<T>::load(x + c, p.cols - c, p.wide != 0);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (c + i < p.cols) take(v.x[i]);
    }
  }
};

// From those of each 64 columns, as the product before told them (epilogue/markers.cuh): Chan,
// Golub and LeVeque.
struct MergedStatistics : RowStatisticsShape {
  struct Params {
    const float* parts;  // (rows, ceil(cols / 64), 2)
    float* out;          // (rows, 2)
    i64 rows;
    int cols;
    int centred;
    float eps;
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    const i64 row = RowStatisticsShape::row();
    if (row >= p.rows) return;
    const int count = ceil_div(p.cols, 64);
    const float* const parts = p.parts + row * count * 2;
    const auto size = [&](int i) { return static_cast<float>(min(64, p.cols - 64 * i)); };
    float mean = 0.f;
    if (p.centred) {
      float sum = 0.f;
      for (int i = threadIdx.x % 32; i < count; i += 32) sum += parts[2 * i] * size(i);
      mean = warp_sum(sum) / p.cols;
    }
    float squares = 0.f;
    for (int i = threadIdx.x % 32; i < count; i += 32) {
      const float away = parts[2 * i] - mean;
      squares += parts[2 * i + 1] + away * away * size(i);
    }
    store(p.out, row, mean, warp_sum(squares) / p.cols, p.eps);
  }
};

}  // namespace stof
