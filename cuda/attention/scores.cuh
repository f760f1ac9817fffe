// Score modifications: what stands between the products and the softmax.
//
// The attention kernel takes one of these structs as a template argument. A member of it that is
// not used costs nothing, and Scores<> as a whole is the scale alone, which the softmax folds into
// its exponents.
#pragma once

#include "attention/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/opaque.cuh"
#include "types.cuh"

namespace stof::attention {

struct None {};
template <typename T>
constexpr bool kIsNone = false;
template <>
constexpr bool kIsNone<None> = true;

// The bias at and below which a key is masked: the type's lowest finite number.
template <typename T>
constexpr float kMasking = kLowest;
template <>
constexpr float kMasking<f16> = -65504.f;
template <>
constexpr float kMasking<bf16> = -3.3895313892515355e38f;

__device__ __forceinline__ float bias_value(float x) { return x; }
__device__ __forceinline__ float bias_value(f16 x) { return ptx::to_float(x); }
__device__ __forceinline__ float bias_value(bf16 x) { return ptx::to_float(x); }

// kSoftcap: softcap * tanh(score / softcap). Bias: the type of an array that is added, or None.
// kAlibi, kDistances: minus a slope times how far the key is, and a table by how far it is.
template <bool kSoftcap = false, class Bias = None, bool kAlibi = false, bool kDistances = false>
struct Scores {
  static constexpr bool kBias = !kIsNone<Bias>;
  static constexpr bool kPlain = !kSoftcap && !kBias && !kAlibi && !kDistances;
  static constexpr bool kMasks = kBias;  // scores may become -inf here

  // What the softmax multiplies scores with. Other than plain ones leave `apply` in base 2.
  template <class Params>
  __device__ static __forceinline__ float factor(const Params& p) {
    return kPlain ? p.scale_log2 : 1.f;
  }

  // `row` and `first_col` are those of the thread's first element. Indices of rows and keys beyond
  // the last are held to the last: what is read for those is masked or never stored. One
  // modification after another, for the sake of registers.
  template <class Work, class Params, int kFragments, int kN>
  __device__ static __forceinline__ void apply(float (&s)[kFragments][kN][4], const Params& p,
                                               const Work& work, int row, int first_col) {
    if constexpr (kPlain) return;
    each<false>(s, p, work, row, first_col, [&](int, i64) {
      return [&](float x, int) {
        x = ptx::multiply(x, p.scale_log2);
        if constexpr (kSoftcap) x = ptx::multiply(p.softcap_log2, tanh(x));
        return x;
      };
    });
    if constexpr (kAlibi)
      each(s, p, work, row, first_col, [&](int query, i64 head) {
        return [&, stands = query_at(p, query), slope = -kLog2e * p.alibi[head]](float x, int key) {
          return fmaf(slope, static_cast<float>(abs(key_at(p, key) - stands)), x);
        };
      });
    if constexpr (kDistances)
      each(s, p, work, row, first_col, [&](int query, i64 head) {
        return [&, stands = query_at(p, query),
                table = p.distances + head * (2 * p.reach + 1) + p.reach](float x, int key) {
          const int distance = key_at(p, key) - stands;
          return fmaf(kLog2e, table[max(-p.reach, min(distance, p.reach))], x);
        };
      });
    if constexpr (kBias)
      each(s, p, work, row, first_col, [&](int query, i64 head) {
        return [&, bias = static_cast<const Bias*>(p.bias) + work.batch * p.bias_batch +
                          head * p.bias_head + query * p.bias_row](float x, int key) {
          const float given = bias_value(bias[static_cast<i64>(key) * p.bias_col]);
          return given <= kMasking<Bias> ? kNegativeInfinity : fmaf(given, kLog2e, x);
        };
      });
  }

 private:
  template <class Params>
  __device__ static __forceinline__ int query_at(const Params& p, int query) {
    return p.query_at ? p.query_at[query] : query + p.seq_k - p.seq_q;
  }
  template <class Params>
  __device__ static __forceinline__ int key_at(const Params& p, int key) {
    return p.query_at ? p.key_at[key] : key;
  }

  // `row_of(query, head)` gives what a row's scores go through, with the number of the key.
  template <bool kWhere = true, class Work, class Params, class RowOf, int kFragments, int kN>
  __device__ static __forceinline__ void each(float (&s)[kFragments][kN][4], const Params& p,
                                              const Work& work, int row, int first_col,
                                              const RowOf& row_of) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = row + 16 * f + 8 * r;
        if constexpr (kWhere) __syncwarp();  // holds back loads for this row
        const int query = kWhere ? min(work.query(p, at), p.seq_q - 1) : 0;
        const auto change = row_of(query, kWhere ? work.head_of(p, at) : 0);
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          const int key = ptx::opaque(first_col + 8 * j);
#pragma unroll
          for (int e = 0; e < 2; ++e)
            s[f][j][2 * r + e] = change(s[f][j][2 * r + e], min(key + e, p.seq_k - 1));
        }
      }
  }
};

}  // namespace stof::attention
