// Sum of table rows: table[id] + position_table[position] + type_table[type], one warp a token.
//
// An id outside its table gives a row of NaN: never a read out of bounds, never a plausible number.
#pragma once

#include "types.cuh"
#include "vector.cuh"

namespace stof {

template <typename T>
struct Embedding {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSmemBytes = 0;

  struct Params {
    const void* ids;          // (tokens,) of int, or of i64
    const T* table;           // (table_rows, cols)
    const T* position_table;  // (>= seq, cols), or null
    const void* token_types;  // (tokens,) of int, or of i64; read only with a type table
    const T* type_table;      // (type_rows, cols), or null
    T* out;                   // (tokens, cols)
    i64 tokens, seq;
    i64 table_rows, type_rows;
    int cols;
    int wide;                  // all arrays have 16-byte aligned rows
    int long_ids, long_types;  // which are of i64
  };

  __device__ static __forceinline__ void run(const Params& p, char*) {
    constexpr int kWarps = kThreads / 32;
    const i64 token = static_cast<i64>(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (token >= p.tokens) return;
    const i64 id = at(p.ids, token, p.long_ids);
    const i64 type = p.type_table ? at(p.token_types, token, p.long_types) : 0;
    const bool known =
        id >= 0 && id < p.table_rows && (!p.type_table || (type >= 0 && type < p.type_rows));
    for (int c = threadIdx.x % 32 * 8; c < p.cols; c += 256) {
      const int valid = p.cols - c;
      const bool wide = p.wide != 0;
      Vector8<T> sum;
      if (known) {
        sum = Vector8<T>::load(p.table + id * p.cols + c, valid, wide);
        if (p.position_table) add(sum, p.position_table + token % p.seq * p.cols + c, valid, wide);
        if (p.type_table) add(sum, p.type_table + type * p.cols + c, valid, wide);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum.x[i] = __int_as_float(0x7fffffff);
      }
      sum.store(p.out + token * p.cols + c, valid, wide);
    }
  }

  __device__ static __forceinline__ i64 at(const void* from, i64 token, int is_long) {
    return is_long ? static_cast<const i64*>(from)[token] : static_cast<const int*>(from)[token];
  }

  __device__ static __forceinline__ void add(Vector8<T>& sum, const T* from, int valid, bool wide) {
    const auto v = Vector8<T>::load(from, valid, wide);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum.x[i] += v.x[i];
  }
};

}  // namespace stof
