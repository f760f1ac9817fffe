// LayerNorm or RMSNorm over the last axis, of one array or of the sum of two, which can be written
// as well; or if kTold only what a product needs of its rows to be normalised afterwards
// (epilogue/normed.cuh). Statistics in fp32; variance is the mean squared distance from the mean. A
// row is that of 1, 2, 4 or 8 warps, which keep 32 elements a thread in registers: what lies beyond
// is read again, as are rows that are no whole 16-byte pieces.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/prefetch.cuh"
#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof {

template <typename T, bool kCentred, bool kTold = false>
struct Norm {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  // Loads under way are what takes time. (For sm_80 ptxas 13 spills with 80 registers.)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
  static constexpr int kMinBlocks = 2;
#else
  static constexpr int kMinBlocks = 3;
#endif
  static constexpr int kSmemBytes = 2 * kWarps * 4;
  static constexpr int kPieces = 4;  // pieces of 8 elements

  struct Params {
    const T* x;
    const T* residual;  // may be null, as may `sum`
    const T* weight;
    const T* bias;  // read if centred
    T* sum;
    void* out;  // of T; if kTold (rows, 2) floats: the mean, and the inverse of the deviation
    i64 x_row, residual_row, sum_row, out_row;  // strides in elements
    i64 rows;
    int cols;
    int wide;       // rows of all arrays are whole 16-byte pieces
    int warps;      // a power of two, for each row
    int backwards;  // from the last rows to the first
    float eps;
  };

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    if constexpr (!kTold) ask(p);
    ptx::after_earlier_kernels();
    if (p.wide != 0) {
      Row<true>(p, reinterpret_cast<float*>(smem)).run();
    } else {
      Row<false>(p, reinterpret_cast<float*>(smem)).run();
    }
  }

 private:
  // Asks for weight and bias, which are read last, while earlier kernels end: 2 % of a stack's time
  // at 128 rows of 768, where weights come from memory (H200). Before sm_90 none overlap.
  __device__ static __forceinline__ void ask(const Params& p) {
#if __CUDA_ARCH__ >= 900
    for (int c = threadIdx.x * 64; c < p.cols; c += kThreads * 64) {
      ptx::prefetch_l2(p.weight + c);
      if (kCentred) ptx::prefetch_l2(p.bias + c);
    }
#endif
  }

  template <bool kWide>
  struct Row {
    static constexpr int kKept = kWide ? kPieces : 0, kAtOnce = 2;
    const Params& p;
    float* partial;  // of each warp: a sum, then a sum of squares
    i64 row;
    int cols;         // none in a row beyond the last, whose warps meet the others all the same
    int first, step;  // columns

    __device__ __forceinline__ Row(const Params& p, float* partial) : p(p), partial(partial) {
      const int warp = threadIdx.x / 32;
      const int block = p.backwards != 0 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
      row = static_cast<i64>(block) * (kWarps / p.warps) + warp / p.warps;
      cols = row < p.rows ? p.cols : 0;
      first = (warp % p.warps * 32 + threadIdx.x % 32) * 8;
      step = p.warps * 256;
    }

    // The bits of 8 elements from column c on; those beyond the row are 0.
    __device__ __forceinline__ uint4 bits(const T* from, int c) const {
      return bits8<kWide>(from + c, cols - c);
    }

    __device__ __forceinline__ uint4 shift(int c) const {
      return kCentred ? bits(p.bias, c) : make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ Vector8<T> load(const T* from, int c) const {
      return Vector8<T>::of(bits(from, c));
    }

    __device__ __forceinline__ void store(T* to, int c, const Vector8<T>& v) const {
      if (c < cols) v.store(to + c, kWide ? 8 : cols - c, kWide);
    }

    __device__ __forceinline__ Vector8<T> input(int c) const {
      Vector8<T> v = load(p.x + row * p.x_row, c);
      if (p.residual != nullptr) add(v, load(p.residual + row * p.residual_row, c));
      return v;
    }

    __device__ static __forceinline__ void add(Vector8<T>& to, const Vector8<T>& v) {
#pragma unroll
      for (int i = 0; i < 8; ++i) to.x[i] += v.x[i];
    }

    // All loads come before what needs one of them.
    __device__ __forceinline__ void read(Vector8<T>* kept) const {
      uint4 raw[kKept + 1], other[kKept + 1];
      const T* x = p.x + row * p.x_row;
#pragma unroll
      for (int j = 0; j < kKept; ++j) raw[j] = bits(x, first + j * step);
      if (p.residual != nullptr) {
        const T* residual = p.residual + row * p.residual_row;
#pragma unroll
        for (int j = 0; j < kKept; ++j) other[j] = bits(residual, first + j * step);
#pragma unroll
        for (int j = 0; j < kKept; ++j) {
          kept[j] = Vector8<T>::of(raw[j]);
          add(kept[j], Vector8<T>::of(other[j]));
        }
      } else {
#pragma unroll
        for (int j = 0; j < kKept; ++j) kept[j] = Vector8<T>::of(raw[j]);
      }
    }

    // Over the threads of the row, and divided by its length.
    __device__ __forceinline__ float mean_of(float x, float* partial) const {
      x = warp_sum(x);
      if (p.warps > 1) {
        const int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) partial[warp] = x;
        __syncthreads();
        x = 0.f;
        for (int i = 0; i < p.warps; ++i) x += partial[warp / p.warps * p.warps + i];
      }
      return x / p.cols;
    }

    __device__ __forceinline__ float squares(const Vector8<T>& v, int c, float mean) const {
      return v.template squares<kWide>(mean, cols - c);
    }

    __device__ __forceinline__ void write(const Vector8<T>& v, uint4 weight, uint4 bias, int c,
                                          float mean, float scale) const {
      if (p.sum != nullptr) store(p.sum + row * p.sum_row, c, v);
      const auto result = v.normalised(mean, scale, Vector8<T>::of(weight), Vector8<T>::of(bias));
      store(static_cast<T*>(p.out) + row * p.out_row, c, result);
    }

    // Reads the row once: mean and squared distances of what a thread has read are merged with
    // those of the next piece (Chan, Golub and LeVeque), and in the end over the threads.
    __device__ __forceinline__ void tell() const {
      float mean = 0.f, square = 0.f, count = 0.f;
      for (int c = first; c < cols; c += kPieces * step) {
        uint4 raw[kPieces];
#pragma unroll
        for (int j = 0; j < kPieces; ++j) raw[j] = bits(p.x + row * p.x_row, c + j * step);
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          const int at = c + j * step;
          if (at >= cols) continue;
          const auto v = Vector8<T>::of(raw[j]);
          const float more = kWide ? 8.f : static_cast<float>(min(8, cols - at));
          const float middle = kCentred ? v.sum() / more : 0.f;
          const float all = count + more, away = middle - mean;
          square += squares(v, at, middle);
          if (count > 0.f) square += away * away * (count * (more / all));  // not 0 * inf
          mean += away * (more / all);
          count = all;
        }
      }
      const float middle = kCentred ? mean_of(mean * count, partial) : 0.f;
      const float away = mean - middle;
      square = mean_of(count > 0.f ? square + away * away * count : 0.f, partial + kWarps);
      if (first == 0 && row < p.rows) {
        float* const told = static_cast<float*>(p.out) + 2 * row;
        told[0] = middle;
        told[1] = rsqrtf(square + p.eps);
      }
    }

    __device__ __forceinline__ void run() const {
      if constexpr (kTold) {
        tell();
        return;
      }
      Vector8<T> kept[kKept > 0 ? kKept : 1];
      read(kept);
      const int beyond = first + kKept * step;

      float mean = 0.f;
      if constexpr (kCentred) {
#pragma unroll
        for (int j = 0; j < kKept; ++j) mean += kept[j].sum();
#pragma unroll 1
        for (int c = beyond; c < cols; c += step) mean += input(c).sum();
        mean = mean_of(mean, partial);
      }

      float square = 0.f;
#pragma unroll
      for (int j = 0; j < kKept; ++j) square += squares(kept[j], first + j * step, mean);
#pragma unroll 1
      for (int c = beyond; c < cols; c += step) square += squares(input(c), c, mean);
      const float scale = rsqrtf(mean_of(square, partial + kWarps) + p.eps);
      // A load that comes after a store waits for its turn: those of two pieces go first.
#pragma unroll
      for (int j = 0; j < kKept; j += kAtOnce) {
        uint4 weight[kAtOnce], bias[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          weight[i] = bits(p.weight, first + (j + i) * step);
          bias[i] = shift(first + (j + i) * step);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          write(kept[j + i], weight[i], bias[i], first + (j + i) * step, mean, scale);
      }
#pragma unroll 1
      for (int c = beyond; c < cols; c += step)
        write(input(c), bits(p.weight, c), shift(c), c, mean, scale);
    }
  };
};

}  // namespace stof
