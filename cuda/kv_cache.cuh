// Writes the keys or values of new tokens into a cache, each at its position; or both, into two
// caches of one shape.
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
    const T* values;             // as x, or null
    const int* positions;        // (batch, seq)
    T* cache;                    // (batch, heads, keys, head_dim)
    T* value_cache;              // as cache
    i64 x_batch, x_head, x_seq;  // strides in elements
    i64 values_batch, values_head, values_seq;
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
    i64 item = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
    const bool second = item >= p.rows * chunks;
    if (second) item -= p.rows * chunks;
    const i64 row = item / chunks;
    if (row >= p.rows || (second && p.values == nullptr)) return;
    const int c = static_cast<int>(item % chunks) * 8;
    const int head = static_cast<int>(row % p.heads);
    const int at = static_cast<int>(row / p.heads % p.seq);
    const i64 batch = row / p.heads / p.seq;
    int key = p.positions[batch * p.position_batch + at];
    if (p.ring && key >= p.keys) key %= p.keys;
    if (key < 0 || key >= p.keys) return;
    const i64 from = second ? batch * p.values_batch + head * p.values_head + at * p.values_seq
                            : batch * p.x_batch + head * p.x_head + at * p.x_seq;
    const T* x = (second ? p.values : p.x) + from + c;
    T* to = (second ? p.value_cache : p.cache) + batch * p.cache_batch + head * p.cache_head +
            key * p.cache_key + c;
    const bool wide = p.wide != 0;
    Vector8<T>::load(x, p.head_dim - c, wide).store(to, p.head_dim - c, wide);
  }
};

}  // namespace stof
