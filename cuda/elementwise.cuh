// out[i] = Op(x[i], y[i % period]) over contiguous arrays, eight elements a thread.
#pragma once

#include "activation.cuh"
#include "types.cuh"
#include "vector.cuh"

namespace stof {

struct Add {
  static constexpr bool kBinary = true;
  static __device__ __forceinline__ float apply(float x, float y) { return x + y; }
};

struct Multiply {
  static constexpr bool kBinary = true;
  static __device__ __forceinline__ float apply(float x, float y) { return x * y; }
};

// Activation(x) * y: a gated linear unit's two halves.
template <class Activation>
struct Gated {
  static constexpr bool kBinary = true;
  static __device__ __forceinline__ float apply(float x, float y) {
    return Activation::apply(x) * y;
  }
};

// x, brought smoothly between -y and y: y * tanh(x / y).
struct SoftCap {
  static constexpr bool kBinary = true;
  static __device__ __forceinline__ float apply(float x, float y) {
    constexpr float kMinusTwoLog2e = -2.f * 1.4426950408889634f;
    return y * (2.f / (1.f + ptx::exp2(kMinusTwoLog2e * (x / y))) - 1.f);
  }
};

template <class Activation>
struct Unary {
  static constexpr bool kBinary = false;
  static __device__ __forceinline__ float apply(float x, float) { return Activation::apply(x); }
};

template <typename T, class Op>
struct Elementwise {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  struct Params {
    const T* x;
    const T* y;  // read by binary operators only
    T* out;
    i64 count;
    i64 period;  // elements of y, which divides count
    int wide;    // 16-byte aligned arrays, and a period that is a multiple of eight
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    const i64 i = (static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x) * 8;
    if (i >= p.count) return;
    const int valid = static_cast<int>(min(p.count - i, static_cast<i64>(8)));
    const bool wide = p.wide != 0;
    auto v = Vector8<T>::load(p.x + i, valid, wide);
    if constexpr (Op::kBinary) {
      const i64 at = i % p.period;
      Vector8<T> w;
      if (at + valid <= p.period) {
        w = Vector8<T>::load(p.y + at, valid, wide);
      } else {
#pragma unroll
        for (int e = 0; e < 8; ++e)
          w.x[e] = e < valid ? ptx::to_float(p.y[(i + e) % p.period]) : 0.f;
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) v.x[e] = Op::apply(v.x[e], w.x[e]);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) v.x[e] = Op::apply(v.x[e], 0.f);
    }
    v.store(p.out + i, valid, wide);
  }
};

}  // namespace stof
