// How the score of one query and key comes from their product: a list of stages, applied in order.
//
// A kernel's Params has the fields below that its stages name; those of stages that are not listed
// are not read. A stage is a struct with
//   static constexpr bool kMasks;  // it may take a key away, with a score of -inf
//   template <typename P>
//   static __device__ void apply(float& score, const P& params, const Place& at);
// Scores are in units of log2(e): exp(score) is 2^(what is here).
//   float factor;          // scale * log2(e), or with Softcap scale / softcap
//   float cap;             // softcap * log2(e)
//   const float* alibi;    // (heads,) slopes
//   const float* relative; // (heads, 2 * reach + 1), by distance from -reach on
//   int reach;
//   const void* bias;      // (batch, heads, queries, keys) with strides in elements:
//   i64 bias_batch, bias_head, bias_row, bias_key;
//   float bias_masking;    // a key with this bias or less is masked
//   const int* query_at;   // where queries stand, for biases by distance; null: query i at
//   const int* key_at;     // i + seq_k - seq_q, and keys at their own number
//   int seq_q, seq_k;
#pragma once

#include "attention/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "types.cuh"

namespace stof::attention {

struct Place {
  i64 batch;
  int head, row, key;
};

// How far the key is after the query.
template <typename P>
__device__ __forceinline__ int distance(const P& p, const Place& at) {
  if (p.query_at != nullptr) return p.key_at[at.key] - p.query_at[at.row];
  return (p.seq_q - at.row) - (p.seq_k - at.key);
}

// cap * tanh(score).
struct Softcap {
  static constexpr bool kMasks = false;
  template <typename P>
  __device__ static __forceinline__ void apply(float& score, const P& p, const Place&) {
    score = ptx::multiply(p.cap, tanh(score));
  }
};

struct Alibi {
  static constexpr bool kMasks = false;
  template <typename P>
  __device__ static __forceinline__ void apply(float& score, const P& p, const Place& at) {
    const int away = distance(p, at);
    score -= p.alibi[at.head] * kLog2e * static_cast<float>(away < 0 ? -away : away);
  }
};

struct Relative {
  static constexpr bool kMasks = false;
  template <typename P>
  __device__ static __forceinline__ void apply(float& score, const P& p, const Place& at) {
    const int away = distance(p, at);
    const int column = away < -p.reach ? 0 : away > p.reach ? 2 * p.reach : away + p.reach;
    score += p.relative[static_cast<i64>(at.head) * (2 * p.reach + 1) + column] * kLog2e;
  }
};

__device__ __forceinline__ float bias_value(float x) { return x; }
template <typename T>
__device__ __forceinline__ float bias_value(T x) {
  return ptx::to_float(x);
}

// Bias elements of type T: f16, bf16 or float.
template <typename T>
struct Additive {
  static constexpr bool kMasks = true;
  template <typename P>
  __device__ static __forceinline__ void apply(float& score, const P& p, const Place& at) {
    const i64 offset =
        at.batch * p.bias_batch + at.head * p.bias_head + at.row * p.bias_row + at.key * p.bias_key;
    const float bias = bias_value(static_cast<const T*>(p.bias)[offset]);
    score = bias <= p.bias_masking ? kNegativeInfinity : score + bias * kLog2e;
  }
};

template <typename... Stages>
struct Scores {
  static constexpr int kCount = sizeof...(Stages);
  static constexpr bool kMasks = (false || ... || Stages::kMasks);

  template <typename P>
  __device__ static __forceinline__ float of(float product, const P& p, const Place& at) {
    float score = ptx::multiply(product, p.factor);
    (Stages::apply(score, p, at), ...);
    return score;
  }
};

}  // namespace stof::attention
