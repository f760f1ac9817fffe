// Rotary position embedding: pairs of elements of a head turned by position * frequency.
//
// A pair is (i, i + half) or, interleaved, (2i, 2i + 1); elements from 2 * half on are copied. A
// thread takes eight pairs, or sixteen elements that are copied.
#pragma once

#include "ptx/math.cuh"
#include "types.cuh"
#include "vector.cuh"

namespace stof {

// Sine and cosine of an angle of either sign, below 2^17 or so. The angle is brought to [-pi, pi]
// first, in two steps because 2 pi is no float; there the special function unit is right to 2^-20.
struct Turn {
  float sine, cosine;

  __device__ static __forceinline__ Turn by(float angle, float magnitude) {
    constexpr float kInverse = 0.15915494309189535f;
    constexpr float kHigh = 6.28318548202514648f;
    constexpr float kLow = -1.74845553146e-7f;
    const float turns = rintf(angle * kInverse);
    const float rest = fmaf(-turns, kLow, fmaf(-turns, kHigh, angle));
    return {ptx::sine(rest) * magnitude, ptx::cosine(rest) * magnitude};
  }

  __device__ __forceinline__ void rotate(float& a, float& b) const {
    const float before = a;
    a = before * cosine - b * sine;
    b = b * cosine + before * sine;
  }
};

template <typename T, bool kInterleaved>
struct Rotary {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  struct Params {
    const T* x;              // (batch, heads, seq, head_dim)
    const int* positions;    // (batch, seq)
    const float* frequency;  // (half,)
    T* out;
    i64 x_batch, x_head, x_seq;  // strides in elements
    i64 out_batch, out_head, out_seq;
    i64 position_batch;  // 0: all sequences have the same
    i64 rows;            // batch * seq * heads
    int heads, seq;
    int half;
    int head_dim;
    int wide;  // 16-byte aligned rows, and halves that are multiples of eight elements
    float magnitude;
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    const int turned = ceil_div(p.half, 8);
    const int chunks = turned + ceil_div(p.head_dim - 2 * p.half, 16);
    const i64 item = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
    const i64 row = item / chunks;
    if (row >= p.rows) return;
    const int chunk = static_cast<int>(item % chunks);
    const int head = static_cast<int>(row % p.heads);
    const int at = static_cast<int>(row / p.heads % p.seq);
    const i64 batch = row / p.heads / p.seq;
    const T* x = p.x + batch * p.x_batch + head * p.x_head + at * p.x_seq;
    T* out = p.out + batch * p.out_batch + head * p.out_head + at * p.out_seq;
    if (chunk >= turned) {
      copy(p, x, out, 2 * p.half + (chunk - turned) * 16);
      return;
    }
    const float position = static_cast<float>(p.positions[batch * p.position_batch + at]);
    const int first = chunk * 8;
    const int valid = min(p.half - first, 8);
    Turn turn[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      turn[i] = Turn::by(i < valid ? position * p.frequency[first + i] : 0.f, p.magnitude);
    if constexpr (kInterleaved)
      neighbours(p, x, out, first, turn);
    else
      halves(p, x, out, first, turn);
  }

  __device__ static __forceinline__ void halves(const Params& p, const T* x, T* out, int first,
                                                const Turn (&turn)[8]) {
    const int valid = p.half - first;
    const bool wide = p.wide != 0;
    auto a = Vector8<T>::load(x + first, valid, wide);
    auto b = Vector8<T>::load(x + p.half + first, valid, wide);
#pragma unroll
    for (int i = 0; i < 8; ++i) turn[i].rotate(a.x[i], b.x[i]);
    a.store(out + first, valid, wide);
    b.store(out + p.half + first, valid, wide);
  }

  __device__ static __forceinline__ void neighbours(const Params& p, const T* x, T* out, int first,
                                                    const Turn (&turn)[8]) {
    const int valid = 2 * (p.half - first);
    const bool wide = p.wide != 0;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int c = 2 * first + 8 * part;
      auto v = Vector8<T>::load(x + c, valid - 8 * part, wide);
#pragma unroll
      for (int i = 0; i < 4; ++i) turn[4 * part + i].rotate(v.x[2 * i], v.x[2 * i + 1]);
      v.store(out + c, valid - 8 * part, wide);
    }
  }

  __device__ static __forceinline__ void copy(const Params& p, const T* x, T* out, int first) {
    const bool wide = p.wide != 0;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int c = first + 8 * part;
      Vector8<T>::load(x + c, p.head_dim - c, wide).store(out + c, p.head_dim - c, wide);
    }
  }
};

}  // namespace stof
