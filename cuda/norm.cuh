// LayerNorm over the last axis: one warp a row, statistics in fp32, variance as the mean squared
// distance from the mean.
#pragma once

#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof {

template <typename T>
struct LayerNorm {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  struct Params {
    const T* x;
    const T* weight;
    const T* bias;
    T* out;
    i64 x_row, out_row;  // strides in elements
    i64 rows;
    int cols;
    int wide;  // all four arrays have 16-byte aligned rows
    float eps;
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    constexpr int kWarps = kThreads / 32;
    const i64 row = static_cast<i64>(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (row >= p.rows) return;
    const int first = threadIdx.x % 32 * 8;
    const T* x = p.x + row * p.x_row;
    const bool wide = p.wide != 0;

    float sum = 0.f;
    for (int c = first; c < p.cols; c += 256) {
      const auto v = Vector8<T>::load(x + c, p.cols - c, wide);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += v.x[i];
    }
    const float mean = warp_sum(sum) / p.cols;

    float squares = 0.f;
    for (int c = first; c < p.cols; c += 256) {
      const auto v = Vector8<T>::load(x + c, p.cols - c, wide);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float d = c + i < p.cols ? v.x[i] - mean : 0.f;
        squares += d * d;
      }
    }
    const float scale = rsqrtf(warp_sum(squares) / p.cols + p.eps);

    for (int c = first; c < p.cols; c += 256) {
      auto v = Vector8<T>::load(x + c, p.cols - c, wide);
      const auto weight = Vector8<T>::load(p.weight + c, p.cols - c, wide);
      const auto bias = Vector8<T>::load(p.bias + c, p.cols - c, wide);
#pragma unroll
      for (int i = 0; i < 8; ++i) v.x[i] = (v.x[i] - mean) * scale * weight.x[i] + bias.x[i];
      v.store(p.out + row * p.out_row + c, p.cols - c, wide);
    }
  }
};

}  // namespace stof
