// Writes the keys or values of new tokens into a cache, each at its position.
//
// A position outside the cache is written nowhere, or, where the cache is a ring, at the place that
// comes round again: position modulo keys.
#pragma once

#include "types.cuh"
#include "vector.cuh"

namespace stof {

template <typename T>
struct KvCache {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  struct Params {
    const T* x;                  // (batch, heads, seq, head_dim)
    const int* positions;        // (batch, seq)
    T* cache;                    // (batch, heads, keys, head_dim)
    i64 x_batch, x_head, x_seq;  // strides in elements
    i64 cache_batch, cache_head, cache_key;
    i64 position_batch;  // 0: all sequences have the same
    i64 rows;            // batch * seq * heads
    int heads, seq;
    int keys;
    int head_dim;
    int wide;  // 16-byte aligned rows
    int ring;  // positions go round
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    const int chunks = ceil_div(p.head_dim, 8);
    const i64 item = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
    const i64 row = item / chunks;
    if (row >= p.rows) return;
    const int c = static_cast<int>(item % chunks) * 8;
    const int head = static_cast<int>(row % p.heads);
    const int at = static_cast<int>(row / p.heads % p.seq);
    const i64 batch = row / p.heads / p.seq;
    int key = p.positions[batch * p.position_batch + at];
    if (p.ring && key >= p.keys) key %= p.keys;
    if (key < 0 || key >= p.keys) return;
    const T* x = p.x + batch * p.x_batch + head * p.x_head + at * p.x_seq + c;
    T* to = p.cache + batch * p.cache_batch + head * p.cache_head + key * p.cache_key + c;
    const bool wide = p.wide != 0;
    Vector8<T>::load(x, p.head_dim - c, wide).store(to, p.head_dim - c, wide);
  }
};

}  // namespace stof
