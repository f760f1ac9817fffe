// What a product needs of its rows to be normalised afterwards (epilogue/normed.cuh), the mean and
// the inverse of the deviation, from those of each 64 columns, as the product before told them
// (epilogue/markers.cuh): Chan, Golub and LeVeque. One warp a row, in fp32.
#pragma once

#include "types.cuh"
#include "warp.cuh"

namespace stof {

struct MergedStatistics {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  struct Params {
    const float* parts;  // (rows, ceil(cols / 64), 2)
    float* out;          // (rows, 2)
    i64 rows;
    int cols;
    int centred;
    float eps;
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    const i64 row = static_cast<i64>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
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
    const float variance = warp_sum(squares) / p.cols;
    if (threadIdx.x % 32 != 0) return;
    p.out[2 * row] = mean;
    p.out[2 * row + 1] = rsqrtf(variance + p.eps);
  }
};

}  // namespace stof
