// LayerNorm or RMSNorm over the last axis, of one array or of the sum of two, which can be written
// as well; or if kTold only what a product needs of its rows to be normalised afterwards
// (epilogue/normed.cuh). Statistics in fp32; variance is the mean squared distance from the mean. A
// row is that of 1, 2, 4 or 8 warps, which keep 32 elements a thread in registers: what lies beyond
// is read again.
#pragma once

#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof {

template <typename T, bool kCentred, bool kTold = false>
struct Norm {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kMinBlocks = 2;
  static constexpr int kSmemBytes = 2 * kWarps * 4;
  static constexpr int kKept = 4;  // pieces of 8 elements

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
    int wide;   // rows of all arrays are whole 16-byte pieces
    int warps;  // a power of two, for each row
    float eps;
  };

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    if (p.wide != 0) {
      Row<true>(p, reinterpret_cast<float*>(smem)).run();
    } else {
      Row<false>(p, reinterpret_cast<float*>(smem)).run();
    }
  }

 private:
  template <bool kWide>
  struct Row {
    const Params& p;
    float* partial;  // of each warp: a sum, then a sum of squares
    i64 row;
    int cols;         // none in a row beyond the last, whose warps meet the others all the same
    int first, step;  // columns

    __device__ __forceinline__ Row(const Params& p, float* partial) : p(p), partial(partial) {
      const int warp = threadIdx.x / 32;
      row = static_cast<i64>(blockIdx.x) * (kWarps / p.warps) + warp / p.warps;
      cols = row < p.rows ? p.cols : 0;
      first = (warp % p.warps * 32 + threadIdx.x % 32) * 8;
      step = p.warps * 256;
    }

    // The bits of 8 elements from column c on; those beyond the row are 0.
    __device__ __forceinline__ uint4 bits(const T* from, int c) const {
      uint4 raw = make_uint4(0, 0, 0, 0);
      if constexpr (kWide) {
        if (c < cols) raw = *reinterpret_cast<const uint4*>(from + c);
      } else {
        u32 word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (c + i < cols) word[i / 2] |= static_cast<u32>(from[c + i].bits) << i % 2 * 16;
        raw = make_uint4(word[0], word[1], word[2], word[3]);
      }
      return raw;
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
    __device__ __forceinline__ void read(Vector8<T> (&kept)[kKept]) const {
      uint4 raw[kKept], other[kKept];
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

    __device__ static __forceinline__ float total(const Vector8<T>& v) {
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += v.x[i];
      return sum;
    }

    __device__ __forceinline__ float squares(const Vector8<T>& v, int c, float mean) const {
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float d = c + i < cols ? v.x[i] - mean : 0.f;
        sum += d * d;
      }
      return sum;
    }

    __device__ __forceinline__ void write(const Vector8<T>& v, Vector8<T> weight, Vector8<T> bias,
                                          int c, float mean, float scale) const {
      if (p.sum != nullptr) store(p.sum + row * p.sum_row, c, v);
      Vector8<T> result;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        result.x[i] = (v.x[i] - mean) * scale * weight.x[i];
        if constexpr (kCentred) result.x[i] += bias.x[i];
      }
      store(static_cast<T*>(p.out) + row * p.out_row, c, result);
    }

    __device__ __forceinline__ void run() const {
      Vector8<T> kept[kKept];
      read(kept);
      const int beyond = first + kKept * step;

      float mean = 0.f;
      if constexpr (kCentred) {
#pragma unroll
        for (int j = 0; j < kKept; ++j) mean += total(kept[j]);
        for (int c = beyond; c < cols; c += step) mean += total(input(c));
        mean = mean_of(mean, partial);
      }

      float square = 0.f;
#pragma unroll
      for (int j = 0; j < kKept; ++j) square += squares(kept[j], first + j * step, mean);
      for (int c = beyond; c < cols; c += step) square += squares(input(c), c, mean);
      const float scale = rsqrtf(mean_of(square, partial + kWarps) + p.eps);
      if constexpr (kTold) {
        if (first == 0 && row < p.rows) {
          float* const told = static_cast<float*>(p.out) + 2 * row;
          told[0] = mean;
          told[1] = scale;
        }
        return;
      }

      // A load that comes after a store waits for its turn: those of two pieces go first.
#pragma unroll
      for (int j = 0; j < kKept; j += 2) {
        uint4 weight[2], bias[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          weight[i] = bits(p.weight, first + (j + i) * step);
          bias[i] = kCentred ? bits(p.bias, first + (j + i) * step) : weight[i];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto scaled = Vector8<T>::of(weight[i]), shift = Vector8<T>::of(bias[i]);
          write(kept[j + i], scaled, shift, first + (j + i) * step, mean, scale);
        }
      }
      for (int c = beyond; c < cols; c += step) {
        const auto scaled = load(p.weight, c), shift = kCentred ? load(p.bias, c) : scaled;
        write(input(c), scaled, shift, c, mean, scale);
      }
    }
  };
};

}  // namespace stof
