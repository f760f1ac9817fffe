// How the score of one query and key comes from their product: a list of stages, applied in order.
//
// A kernel's Params has the fields below that its stages name; those of stages that are not listed
// are not read. A stage is a struct with
//   static constexpr bool kMasks;  // it may take a key away, with a score of -inf
//   template <typename P>
//   static __device__ void apply(float& score, const P& params, const Place& at);
//   template <typename P> struct Rows;  // the same for a tile
// Rows<P> holds what two rows need of a stage. Its `find` begins to load what scores of these and
// of pairs of keys need into a Found<kPairs>, and `apply` takes them: a thread's, in the order of
// an accumulator, which are 4 of a pair, those of the first row first. Scores are in units of
// log2(e): exp(score) is 2^(what is here).
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

struct TwoRows {
  i64 batch;
  int head, row[2];
};

// How far the key is after the query.
template <typename P>
__device__ __forceinline__ int distance(const P& p, const Place& at) {
  if (p.query_at != nullptr) return p.key_at[at.key] - p.query_at[at.row];
  return (p.seq_q - at.row) - (p.seq_k - at.key);
}

// The same from two rows.
template <typename P>
struct Distances {
  int stands[2];

  __device__ __forceinline__ Distances(const P& p, const TwoRows& at) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      stands[r] = p.query_at != nullptr ? p.query_at[at.row[r]] : at.row[r] - p.seq_q + p.seq_k;
  }

  // Calls take(i, distance) for the scores of pairs of keys.
  template <int kPairs, class Take>
  __device__ __forceinline__ void each(const P& p, const int (&key)[kPairs],
                                       const Take& take) const {
    const bool plain = p.query_at == nullptr;
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const int here = key[i / 2] + i % 2;
      const int key_stands = plain ? here : p.key_at[min(here, p.seq_k - 1)];
#pragma unroll
      for (int r = 0; r < 2; ++r) take(i / 2 * 4 + 2 * r + i % 2, key_stands - stands[r]);
    }
  }
};

// cap * tanh(score).
struct Softcap {
  static constexpr bool kMasks = false;
  // Below, the error of a tanh that is right beside 1 alone is 3e-5 of a score's unit at most.
  static constexpr float kLittle = 128;

  template <typename P>
  __device__ static __forceinline__ void apply(float& score, const P& p, const Place&) {
    score = ptx::multiply(p.cap, tanh(score));
  }

  template <typename P>
  struct Rows {
    template <int kPairs>
    struct Found {};

    __device__ __forceinline__ Rows(const P&, const TwoRows&) {}

    template <int kPairs>
    __device__ __forceinline__ void find(Found<kPairs>&, const P&, const int (&)[kPairs]) const {}

    template <int kPairs>
    __device__ __forceinline__ void apply(float (&s)[4 * kPairs], const P& p, const int (&)[kPairs],
                                          const Found<kPairs>&) const {
      if (p.cap < kLittle) {
#pragma unroll
        for (int i = 0; i < 4 * kPairs; ++i)
          s[i] = fmaf(-2.f * p.cap, ptx::reciprocal(ptx::exp2(2.f * kLog2e * s[i]) + 1.f), p.cap);
      } else {
#pragma unroll
        for (int i = 0; i < 4 * kPairs; ++i) s[i] = ptx::multiply(p.cap, tanh(s[i]));
      }
    }
  };
};

struct Alibi {
  static constexpr bool kMasks = false;
  template <typename P>
  __device__ static __forceinline__ void apply(float& score, const P& p, const Place& at) {
    const int away = distance(p, at);
    score -= p.alibi[at.head] * kLog2e * static_cast<float>(away < 0 ? -away : away);
  }

  template <typename P>
  struct Rows {
    template <int kPairs>
    struct Found {};

    const Distances<P> distances;
    const float slope;

    __device__ __forceinline__ Rows(const P& p, const TwoRows& at)
        : distances(p, at), slope(p.alibi[at.head] * kLog2e) {}

    template <int kPairs>
    __device__ __forceinline__ void find(Found<kPairs>&, const P&, const int (&)[kPairs]) const {}

    template <int kPairs>
    __device__ __forceinline__ void apply(float (&s)[4 * kPairs], const P& p,
                                          const int (&key)[kPairs], const Found<kPairs>&) const {
      if (p.query_at == nullptr) {  // the second key of a pair is on the same side, or at 0
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) {
          const int away = key[i / 2] - distances.stands[i % 2];
          const float to = away < 0 ? slope : -slope, first = static_cast<float>(away);
          s[2 * i] = fmaf(first, to, s[2 * i]);
          s[2 * i + 1] = fmaf(first + 1.f, to, s[2 * i + 1]);
        }
      } else {
        distances.each(p, key, [&](int i, int away) {
          s[i] = fmaf(fabsf(static_cast<float>(away)), -slope, s[i]);
        });
      }
    }
  };
};

struct Relative {
  static constexpr bool kMasks = false;
  template <typename P>
  __device__ static __forceinline__ void apply(float& score, const P& p, const Place& at) {
    const int away = distance(p, at);
    const int column = away < -p.reach ? 0 : away > p.reach ? 2 * p.reach : away + p.reach;
    score += p.relative[static_cast<i64>(at.head) * (2 * p.reach + 1) + column] * kLog2e;
  }

  template <typename P>
  struct Rows {
    template <int kPairs>
    struct Found {
      float bias[4 * kPairs];
    };

    const Distances<P> distances;
    const float* const middle;

    __device__ __forceinline__ Rows(const P& p, const TwoRows& at)
        : distances(p, at),
          middle(p.relative + static_cast<i64>(at.head) * (2 * p.reach + 1) + p.reach) {}

    template <int kPairs>
    __device__ __forceinline__ void find(Found<kPairs>& found, const P& p,
                                         const int (&key)[kPairs]) const {
      distances.each(p, key, [&](int i, int away) {
        found.bias[i] = middle[max(-p.reach, min(away, p.reach))];
      });
    }

    template <int kPairs>
    __device__ __forceinline__ void apply(float (&s)[4 * kPairs], const P&, const int (&)[kPairs],
                                          const Found<kPairs>& found) const {
#pragma unroll
      for (int i = 0; i < 4 * kPairs; ++i) s[i] = fmaf(found.bias[i], kLog2e, s[i]);
    }
  };
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

  template <typename P>
  struct Rows {
    struct alignas(2 * sizeof(T)) Pair {
      T x[2];
    };
    template <int kPairs>
    struct Found {
      Pair bias[2 * kPairs];
    };

    const T* from[2];

    __device__ __forceinline__ Rows(const P& p, const TwoRows& at) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        from[r] = static_cast<const T*>(p.bias) + at.batch * p.bias_batch + at.head * p.bias_head +
                  at.row[r] * p.bias_row;
    }

    template <int kPairs>
    __device__ __forceinline__ void find(Found<kPairs>& found, const P& p,
                                         const int (&key)[kPairs]) const {
      const u64 places = reinterpret_cast<u64>(from[0]) | reinterpret_cast<u64>(from[1]);
      bool pairs = p.bias_key == 1 && places % sizeof(Pair) == 0;
      // Keys of pairs are even, but for those of no group, which are behind the end.
#pragma unroll
      for (int i = 0; i < kPairs; ++i) pairs = pairs && key[i] + 1 < p.seq_k;
      if (pairs) {
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i)
          found.bias[i] = *reinterpret_cast<const Pair*>(from[i % 2] + key[i / 2]);
      } else {
#pragma unroll
        for (int i = 0; i < 4 * kPairs; ++i)
          found.bias[i / 2].x[i % 2] =
              from[i / 2 % 2][min(key[i / 4] + i % 2, p.seq_k - 1) * p.bias_key];
      }
    }

    template <int kPairs>
    __device__ __forceinline__ void apply(float (&s)[4 * kPairs], const P& p, const int (&)[kPairs],
                                          const Found<kPairs>& found) const {
#pragma unroll
      for (int i = 0; i < 4 * kPairs; ++i) {
        const float bias = bias_value(found.bias[i / 2].x[i % 2]);
        s[i] = bias <= p.bias_masking ? kNegativeInfinity : fmaf(bias, kLog2e, s[i]);
      }
    }
  };
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

  template <typename P>
  struct Rows : Stages::template Rows<P>... {
    template <int kPairs>
    struct Found : Stages::template Rows<P>::template Found<kPairs>... {};

    __device__ __forceinline__ Rows(const P& p, const TwoRows& at)
        : Stages::template Rows<P>(p, at)... {}

    template <int kPairs>
    __device__ __forceinline__ void find(Found<kPairs>& found, const P& p,
                                         const int (&key)[kPairs]) const {
      (Stages::template Rows<P>::template find<kPairs>(found, p, key), ...);
    }

    template <int kPairs>
    __device__ __forceinline__ void apply(float (&s)[4 * kPairs], const P& p,
                                          const int (&key)[kPairs],
                                          const Found<kPairs>& found) const {
#pragma unroll
      for (int i = 0; i < 4 * kPairs; ++i) s[i] = ptx::multiply(s[i], p.factor);
      (Stages::template Rows<P>::template apply<kPairs>(s, p, key, found), ...);
    }
  };
};

// Whether scores are products with a factor and one bias by distance alone.
template <class Scores>
constexpr bool kIsByDistance = false;
template <>
constexpr bool kIsByDistance<Scores<Relative>> = true;
template <>
constexpr bool kIsByDistance<Scores<Alibi>> = true;

}  // namespace stof::attention
