// From products to scores of more than a factor, a tile of keys at a time, for the sm_90a
// attention.
//
// `ScoresOfTile<K>` leaves scores that are in base 2. What one thread needs of biases for the first
// keys is on its way while the products are computed, and that for the next ones while these are
// applied: `Rows` of element_scores.cuh. `ScoresByDistance<K>` is for a bias by distance alone. It
// leaves what the softmax still has to scale and to shift: where all keys of a tile are so far from
// a warp's queries that they have one bias, nothing else is done.
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

template <class K>
struct ScoresByDistance {
  using Params = typename K::Params;
  enum Way { kAlike, kInRow, kAnywhere };  // where the tile's keys are
  static constexpr int kPairs = 4;         // groups of 8 keys at a time
  static_assert(K::kGroups % kPairs == 0);

  ScoresOfTile<K> of_any;
  Way way;
  float scale, shift;  // of what make() leaves

  __device__ static __forceinline__ ScoresByDistance begin(const Params& p, const TwoRows& at,
                                                           u32 places, int thread) {
    ScoresByDistance made{ScoresOfTile<K>::rows_of(p, at), kAnywhere, 1.f, 0.f};
    if (p.query_at == nullptr) made.find(p, places, thread % 32);
    return made;
  }

  // Whether make() leaves other numbers than the products.
  __device__ __forceinline__ bool makes() const { return way != kAlike; }

  __device__ __forceinline__ void make(float (&s)[K::kN / 2], const Params& p, u32 places,
                                       int thread) {
    if (way == kAlike) return;
    if (way == kAnywhere) {  // few are; biases are not asked for earlier, to spare registers
      of_any.find_first(p, places, thread);
      return of_any.make(s, p, places, thread);
    }
    // The second row stands 8 places after the first, so that it has the biases of the group
    // before.
    const auto& rows = of_any.rows;
    const float* from = rows.middle + (static_cast<int>(ptx::load_shared_4(places)) +
                                       thread % 4 * 2 - rows.distances.stands[0]);
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
    const bool group = lane < K::kGroups;
    const int key = group ? ptx::load_shared_4(places + 4 * lane) : p.seq_k;
    const int first = __shfl_sync(0xffffffff, of_any.rows.distances.stands[0], 0);
    const int last = __shfl_sync(0xffffffff, of_any.rows.distances.stands[1], 31);
    const bool none = key >= p.seq_k;  // they are masked
    const bool after = __all_sync(0xffffffff, none || key - last >= p.alike);
    const bool before = __all_sync(0xffffffff, none || first - (key + 7) >= p.alike);
    const int begin = __shfl_sync(0xffffffff, key, 0);
    if (after || before) {
      const float bias = of_any.rows.middle[after ? p.alike : -p.alike] * kLog2e;
      if (p.factor > 0.f && fabsf(bias) <= kFar) way = kAlike, scale = p.factor, shift = bias;
    } else if (!K::kPacked || __all_sync(0xffffffff, !group || key == begin + 8 * lane)) {
      way = kInRow, scale = kLog2e;
    }
  }
};

}  // namespace stof::attention::sm90
