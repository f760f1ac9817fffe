// What token.cuh is told, where a CTA is in it, and the new token's rows: queries, key and value,
// made ready in shared memory.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/global.cuh"
#include "ptx/math.cuh"
#include "rotary.cuh"
#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof::attention {

template <typename T>
struct TokenParams {
  const T* q;  // (batch, heads, 1, head_dim); rows of it and of all others are 16-byte aligned
  const T* k;  // (batch, kv_heads, 1, head_dim)
  const T* v;
  const T* q_norm;  // weights of RMSNorm (head_dim,), or null: there is none
  const T* k_norm;
  const float* frequency;  // (half,)
  const int* positions;    // (batch,): the key that the token becomes
  const int* lengths;      // (batch,), or null: there are as many keys as the cache has
  T* key_cache;            // (batch, kv_heads, keys, head_dim)
  T* value_cache;
  T* out;          // (batch, heads, 1, head_dim)
  float* partial;  // of each split of each item, see TokenSums
  int* counters;   // of each item, left as they were found: 0
  i64 q_batch, q_head, k_batch, k_head, v_batch, v_head;  // strides in elements
  i64 cache_batch, cache_head, cache_key, out_batch, out_head;
  i64 position_batch;  // 0: all sequences have the same
  int items;           // batch * kv_heads * octets
  int kv_heads, group;
  int octets;  // of the heads of a group
  int splits;  // at most
  int least;   // keys of a split, of several; twice as many are not cut
  int keys;
  int head_dim;
  int half;           // pairs that are turned
  int interleaved;    // pairs are neighbours
  int ring;           // positions go round
  int early;          // no kernel that still runs writes caches, positions, lengths or frequencies
  float factor, cap;  // of scores, in base 2: cap * tanh(factor * s), or with a cap of 0 factor * s
  float magnitude, eps;
};

// What a CTA does: heads of a group of one sequence, and tiles of their keys from `first` to
// `last`.
struct TokenPlace {
  static constexpr int kHeads = 8;
  i64 batch;
  int kv_head, octet, heads, head;  // how many, and the first
  int item, split, splits;
  int position, slot, length;  // slot: of the cache; -1: it is written nowhere
  int first, last;

  template <typename T>
  __device__ __forceinline__ TokenPlace(const TokenParams<T>& p, int tile) {
    item = blockIdx.x % p.items;
    split = blockIdx.x / p.items;
    octet = item % p.octets;
    kv_head = item / p.octets % p.kv_heads;
    batch = item / p.octets / p.kv_heads;
    head = kv_head * p.group + octet * kHeads;
    heads = min(p.group - octet * kHeads, kHeads);
    position = ptx::load_l2_4(p.positions + batch * p.position_batch);
    length = p.lengths == nullptr ? p.keys : ptx::load_l2_4(p.lengths + batch);
    length = max(min(length, p.keys), 0);
    slot = p.ring && position >= p.keys ? position % p.keys : position;
    if (slot < 0 || slot >= p.keys) slot = -1;
    splits = length <= 2 * p.least ? 1 : min(ceil_div(length, p.least), p.splits);
    const int tiles = ceil_div(length, tile);
    first = split < splits ? tiles * split / splits : tiles;
    last = split < splits ? tiles * (split + 1) / splits : tiles;
  }

  template <typename T>
  __device__ __forceinline__ i64 cache(const TokenParams<T>& p) const {
    return batch * p.cache_batch + kv_head * p.cache_head;
  }
};

// A warp takes a row, or several: eight elements a lane.
template <typename T, int kDim>
struct TokenRows {
  static constexpr int kKey = TokenPlace::kHeads, kValue = kKey + 1, kRows = kValue + 1;
  static constexpr int kPitch = kDim + 32;  // chunks of two rows are in different banks
  static constexpr int kPlace = kRows * kPitch * 2;
  static constexpr int kBytes = kPlace + 64;
  static_assert(sizeof(TokenPlace) <= 64);
  static constexpr int kLanes = kDim / 8, kAtOnce = 32 / kLanes, kWarps = 8;
  u16* const memory;

  __device__ __forceinline__ TokenRows(char* memory) : memory(reinterpret_cast<u16*>(memory)) {}

  __device__ __forceinline__ TokenPlace& place() const {
    return *reinterpret_cast<TokenPlace*>(memory + kRows * kPitch);
  }

  __device__ __forceinline__ uint4 chunk(int row, int number) const {
    return *reinterpret_cast<const uint4*>(memory + row * kPitch + number * 8);
  }

  // Of a lane's elements, the same in every row: of 8 that have a partner each half a head away, or
  // of 4 pairs.
  struct Turns {
    Turn of[8];
    int from;   // the lane that has the partners; or this lane, which has no pairs or whole ones
    int count;  // of those that are turned; others stay what they are, finite or not
    bool second;

    __device__ __forceinline__ Turns(const TokenParams<T>& p, int position) {
      const int lane = threadIdx.x % 32, own = lane % kLanes, half = p.half / 8;
      int first = 4 * own;
      from = lane, second = false;
      if (!p.interleaved) {
        second = own >= half;
        first = own < 2 * half ? 8 * (second ? own - half : own) : p.half;
        if (first < p.half) from = second ? lane - half : lane + half;
      }
      count = p.half - first;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        of[i] = {0.f, 1.f};
        if (first + i < p.half)
          of[i] = Turn::by(static_cast<float>(position) * p.frequency[first + i], p.magnitude);
      }
    }

    __device__ __forceinline__ void turn(Vector8<T>& x, bool interleaved) const {
      if (interleaved) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < count) of[i].rotate(x.x[2 * i], x.x[2 * i + 1]);
        return;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float partner = __shfl_sync(0xffffffffu, x.x[i], from);
        if (second) partner = -partner;
        if (i < count) x.x[i] = x.x[i] * of[i].cosine - partner * of[i].sine;
      }
    }
  };

  __device__ __forceinline__ void fill(const TokenParams<T>& p, const TokenPlace& place,
                                       const Turns& turns) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane % kLanes * 8;
    if (threadIdx.x == 0) this->place() = place;
#pragma unroll 1
    for (int first = warp * kAtOnce; first < kRows; first += kWarps * kAtOnce) {
      // Key and value first: rows of heads that are not there come last, and cost little.
      const int number = first + lane / kLanes, row = number < 2 ? kKey + number : number - 2;
      const bool query = row < place.heads, is_key = number == 0, is_value = number == 1;
      const T* x = p.v + place.batch * p.v_batch + place.kv_head * p.v_head;
      if (is_key) x = p.k + place.batch * p.k_batch + place.kv_head * p.k_head;
      if (query) x = p.q + place.batch * p.q_batch + (place.head + row) * p.q_head;
      const bool there = (query || is_key || is_value) && c < p.head_dim;
      uint4 bits = make_uint4(0, 0, 0, 0);
      if (there) bits = *reinterpret_cast<const uint4*>(x + c);
      if (p.half > 0 || p.q_norm != nullptr || p.k_norm != nullptr) {
        auto of = Vector8<T>::of(bits);
        normalise(p, of, query ? p.q_norm : is_key ? p.k_norm : nullptr, c);
        if (p.half > 0) turns.turn(of, p.interleaved != 0);
        if (query || is_key) bits = packed(of);
      }
      if (number < kRows) *reinterpret_cast<uint4*>(memory + row * kPitch + c) = bits;
      // By one CTA of those that have this key.
      if (there && !query && place.slot >= 0 && place.split == 0 && place.octet == 0) {
        T* const to = (is_key ? p.key_cache : p.value_cache) + place.cache(p);
        *reinterpret_cast<uint4*>(to + place.slot * p.cache_key + c) = bits;
      }
    }
  }

 private:
  // By a weight that is there or not; all lanes of the warp come.
  __device__ static __forceinline__ void normalise(const TokenParams<T>& p, Vector8<T>& x,
                                                   const T* weight, int c) {
    if (p.q_norm == nullptr && p.k_norm == nullptr) return;
    const float squares = warp_sum<kLanes>(x.template squares<true>(0.f, 8));
    if (weight == nullptr || c >= p.head_dim) return;
    const float scale = rsqrtf(squares * ptx::reciprocal(static_cast<float>(p.head_dim)) + p.eps);
    const auto by = Vector8<T>::load(weight + c, 8, true);
#pragma unroll
    for (int i = 0; i < 8; ++i)  // rounded, as between two kernels
      x.x[i] = ptx::to_float(ptx::from_float<T>(x.x[i] * scale * by.x[i]));
  }

  __device__ static __forceinline__ uint4 packed(const Vector8<T>& x) {
    return make_uint4(ptx::pack<T>(x.x[0], x.x[1]), ptx::pack<T>(x.x[2], x.x[3]),
                      ptx::pack<T>(x.x[4], x.x[5]), ptx::pack<T>(x.x[6], x.x[7]));
  }
};

}  // namespace stof::attention
