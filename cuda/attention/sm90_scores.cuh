// From products to scores of more than a factor, a tile of keys at a time, for the sm_90a
// attention.
//
// `ScoresOfTile<K>` leaves scores that are in base 2. What one thread needs of biases for the first
// keys is on its way while the products are computed, and that for the next ones while these are
// applied: `Rows` of element_scores.cuh. `ScoresByDistance<K>` is for a bias by distance alone, and
// leaves what the softmax still has to scale and to shift. That is all where the keys of a tile are
// so far from a warp's queries that they have one bias.
#pragma once

#include "attention/element_scores.cuh"
#include "attention/sm90_shape.cuh"
#include "ptx/shared.cuh"
#include "ptx/wgmma.cuh"

namespace stof::attention::sm90 {

template <class K>
struct ScoresOfTile {
  using Params = typename K::Params;
  using Rows = typename K::Scores::template Rows<Params>;
  static constexpr bool kMuch = sizeof(typename Rows::template Found<4>) > 64;
  static constexpr int kPairs = kMuch || K::kGroups % 4 != 0 ? 2 : 4;  // of keys at a time
  using Found = typename Rows::template Found<kPairs>;

  Rows rows;
  Found found;

  // `places`: where the tile's keys are, see K::places.
  __device__ static __forceinline__ ScoresOfTile begin(const Params& p, const TwoRows& at,
                                                       u32 places, int thread) {
    ScoresOfTile made = rows_of(p, at);
    made.find_first(p, places, thread);
    return made;
  }

  __device__ static __forceinline__ ScoresOfTile rows_of(const Params& p, const TwoRows& at) {
    return {{p, at}, {}};
  }

  __device__ __forceinline__ void find_first(const Params& p, u32 places, int thread) {
    int key[kPairs];
    load_keys(key, places, thread, 0);
    rows.find(found, p, key);
  }

  // find_first() and make(), where what is there for a part of all tiles alone is not to take
  // registers.
  __device__ __forceinline__ void make_all(float (&s)[K::kN / 2], const Params& p, u32 places,
                                           int thread) {
    find_first(p, places, thread);
    make(s, p, places, thread);
  }

  __device__ __forceinline__ void make(float (&s)[K::kN / 2], const Params& p, u32 places,
                                       int thread) {
#pragma unroll
    for (int j = 0; j < K::kGroups; j += kPairs) {
      int key[kPairs], next[kPairs];
      Found later;
      load_keys(key, places, thread, j);
      if (j + kPairs < K::kGroups) {
        load_keys(next, places, thread, j + kPairs);
        rows.find(later, p, next);
      }
      rows.apply(*reinterpret_cast<float (*)[4 * kPairs]>(&s[4 * j]), p, key, found);
      found = later;
      ptx::pin(s);
    }
  }

 private:
  // This thread's first key of each 8 in the tile, from the j-th on.
  __device__ static __forceinline__ void load_keys(int (&key)[kPairs], u32 places, int thread,
                                                   int j) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      key[i] = ptx::load_shared_4(places + 4 * (j + i)) + thread % 4 * 2;
  }
};

// Where the keys of a tile are, seen from a warp's sixteen queries.
struct Aside {
  // Whether all that count are so far or farther behind the last query, or before the first one.
  bool after, before;
  bool in_row;  // whether they follow each other
  int begin;    // the first of them

  template <class K>
  __device__ static __forceinline__ Aside find(const typename K::Params& p, const int (&stands)[2],
                                               int far, u32 places, int lane) {
    const bool group = lane < K::kGroups;
    const int key = group ? ptx::load_shared_4(places + 4 * lane) : p.seq_k;
    const int first = __shfl_sync(0xffffffff, stands[0], 0);
    const int last = __shfl_sync(0xffffffff, stands[1], 31);
    const bool none = key >= p.seq_k;  // they are masked
    Aside found;
    found.after = __all_sync(0xffffffff, none || key - last >= far);
    found.before = __all_sync(0xffffffff, none || first - (key + 7) >= far);
    found.begin = __shfl_sync(0xffffffff, key, 0);
    found.in_row = !K::kPacked || __all_sync(0xffffffff, !group || key == found.begin + 8 * lane);
    return found;
  }
};

// What make() leaves is to be multiplied by `scale`, and has `shift` added to it in each row.
template <class K, class Scores = typename K::Scores>
struct ScoresByDistance;

template <class K>
struct ScoresByDistance<K, Scores<Relative>> {
  using Params = typename K::Params;
  enum Way { kAlike, kInRow, kAnywhere };  // of the tile's keys: all have one bias
  static constexpr int kPairs = 4;         // groups of 8 keys at a time
  static_assert(K::kGroups % kPairs == 0);

  ScoresOfTile<K> of_any;
  Way way;
  float scale, shift[2];

  __device__ static __forceinline__ ScoresByDistance begin(const Params& p, const TwoRows& at,
                                                           u32 places, int thread) {
    ScoresByDistance made{ScoresOfTile<K>::rows_of(p, at), kAnywhere, 1.f, {0.f, 0.f}};
    if (p.query_at == nullptr) made.find(p, places, thread % 32);
    return made;
  }

  // Whether make() leaves other numbers than the products.
  __device__ __forceinline__ bool makes() const { return way != kAlike; }

  __device__ __forceinline__ void make(float (&s)[K::kN / 2], const Params& p, u32 places,
                                       int thread) {
    if (way == kAlike) return;
    if (way == kAnywhere) return of_any.make_all(s, p, places, thread);
    // The second row is 8 places behind the first: it has the biases of the group of keys before.
    const auto& rows = of_any.rows;
    const int begin = ptx::load_shared_4(places);
    const float* from = rows.middle + (begin + thread % 4 * 2 - rows.distances.stands[0]);
    const float factor = p.factor * kLn2;
#pragma unroll
    for (int j = 0; j < K::kGroups; j += kPairs) {
      float bias[2 * kPairs + 2];
#pragma unroll
      for (int i = 0; i < 2 * kPairs + 2; ++i) bias[i] = from[8 * (j + i / 2 - 1) + i % 2];
#pragma unroll
      for (int i = 0; i < 4 * kPairs; ++i)
        s[4 * j + i] = fmaf(s[4 * j + i], factor, bias[i / 4 * 2 + (i % 4 < 2 ? 2 : 0) + i % 2]);
      ptx::pin(s);
    }
  }

 private:
  // Where the table goes on, see Params::alike, its places need not be held to its ends.
  __device__ __forceinline__ void find(const Params& p, u32 places, int lane) {
    const Aside aside = Aside::find<K>(p, of_any.rows.distances.stands, p.alike, places, lane);
    if (aside.after || aside.before) {
      const float bias = of_any.rows.middle[aside.after ? p.alike : -p.alike] * kLog2e;
      if (p.factor > 0.f && fabsf(bias) <= kFar)
        way = kAlike, scale = p.factor, shift[0] = shift[1] = bias;
    } else if (aside.in_row) {
      way = kInRow, scale = kLog2e;
    }
  }
};

// On one side of the queries a bias is one number of the row and one of the key.
template <class K>
struct ScoresByDistance<K, Scores<Alibi>> {
  using Params = typename K::Params;
  static constexpr float scale = 1.f;

  ScoresOfTile<K> of_any;
  bool aside;   // the tile is on one side
  float slope;  // from one key to the next there
  float shift[2];

  __device__ static __forceinline__ ScoresByDistance begin(const Params& p, const TwoRows& at,
                                                           u32 places, int thread) {
    ScoresByDistance made{ScoresOfTile<K>::rows_of(p, at), false, 0.f, {0.f, 0.f}};
    made.aside = p.query_at == nullptr && made.find(p, places, thread % 32);
    return made;
  }

  __device__ __forceinline__ bool makes() const { return true; }

  __device__ __forceinline__ void make(float (&s)[K::kN / 2], const Params& p, u32 places,
                                       int thread) {
    if (!aside) return of_any.make_all(s, p, places, thread);
    const float begin = static_cast<float>(thread % 4 * 2) * slope;
#pragma unroll
    for (int i = 0; i < K::kN / 4; ++i) {
      const float bias = fmaf(static_cast<float>(i / 2 * 8 + i % 2), slope, begin);
      s[i / 2 * 4 + i % 2] = fmaf(s[i / 2 * 4 + i % 2], p.factor, bias);
      s[i / 2 * 4 + i % 2 + 2] = fmaf(s[i / 2 * 4 + i % 2 + 2], p.factor, bias);
    }
  }

 private:
  __device__ __forceinline__ bool find(const Params& p, u32 places, int lane) {
    const auto& stands = of_any.rows.distances.stands;
    const Aside found = Aside::find<K>(p, stands, 0, places, lane);
    slope = found.after ? -of_any.rows.slope : of_any.rows.slope;
    bool near = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shift[r] = static_cast<float>(found.begin - stands[r]) * slope;
      near = near && fabsf(shift[r]) <= kFar;
    }
    if (found.in_row && (found.after || found.before) && __all_sync(0xffffffff, near)) return true;
    shift[0] = shift[1] = 0.f;
    return false;
  }
};

}  // namespace stof::attention::sm90
