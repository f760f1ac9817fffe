// From products to scores of more than a factor, a tile of keys at a time, for the sm_90a
// attention.
//
// What one thread needs of biases for the first keys is on its way while the products are computed,
// and that for the next ones while these are applied: `Rows` of element_scores.cuh.
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
    ScoresOfTile made{{p, at}, {}};
    int key[kPairs];
    load_keys(key, places, thread, 0);
    made.rows.find(made.found, p, key);
    return made;
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

}  // namespace stof::attention::sm90
