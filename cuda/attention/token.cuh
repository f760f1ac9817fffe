// Attention of one new token of each sequence, in one kernel from the projections on: its query and
// key are normalised (or not) and turned by its position, its key and value are written into the
// caches, and the query attends to all keys there are.
//
// There is little to compute and nothing to wait for but memory, so all is arranged for that. A CTA
// has up to eight query heads that share their keys, and all keys, or a split of them. A warp takes
// 16 keys at a time, straight from the cache into the fragments of mma.sync: the product's rows are
// keys and its columns heads, K^T q, and then V p, of which rows are columns of V. In which order a
// sum is taken is free, so every lane loads 16 bytes of one row, whatever elements a fragment
// wants.
//
// If nothing that still runs writes the caches (`early`), keys and values are on their way before
// the kernels before this one have ended, and so may be what the next one reads early: its weights.
// The new ones come from shared memory, which every CTA makes for itself, and the cache is written
// by one of them.
//
// Splits are added up by the CTA that arrives last, in the order of the splits. How many there are
// depends on the sequence's length, which is on the device: a short one in a large cache is one
// CTA's.
#pragma once

#include "attention/softmax.cuh"
#include "attention/token_rows.cuh"
#include "attention/token_sums.cuh"
#include "ptx/global.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/movmatrix.cuh"
#include "ptx/opaque.cuh"
#include "ptx/prefetch.cuh"
#include "types.cuh"
#include "warp.cuh"

namespace stof::attention {

template <typename T, int kDim>
struct Token {
  using Params = TokenParams<T>;
  using Rows = TokenRows<T, kDim>;
  using Sums = TokenSums<T, kDim>;
  static constexpr int kWarps = Sums::kWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMinBlocks = kDim == 64 ? 2 : 1;
  static constexpr int kSmemBytes = Rows::kBytes + Sums::kBytes;
  static constexpr int kTile = 16;                               // keys
  static constexpr int kSlabs = kDim / 32, kBlocks = kDim / 64;  // of columns
  // There are no registers for keys of the next step beside the values of this one.
  static constexpr bool kLate = kDim > 128;
  static constexpr int kAsked = 7;  // tiles after the first that L2 is asked for early

  struct Words {
    u32 x[4];

    __device__ static __forceinline__ Words of(uint4 w) { return {{w.x, w.y, w.z, w.w}}; }
  };

  const Params& p;
  const TokenPlace& place;
  const Rows& rows;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  const i64 cache;
  Words key[2][kSlabs];     // rows g and g + 8
  Words value[4][kBlocks];  // rows 2q, 2q + 1, and 8 further
  // Of the heads 2q and 2q + 1, and columns 8g + 2j, 8g + 2j + 1 of each block: c of mma.sync.
  float o[kBlocks][4][4];
  float origin[2] = {kLowest, kLowest}, sum[2] = {0.f, 0.f};

  __device__ __forceinline__ Token(const Params& p, const TokenPlace& place, const Rows& rows)
      : p(p), place(place), rows(rows), cache(place.cache(p)) {}

  __device__ __forceinline__ int tile(int step) const { return place.first + step * kWarps + warp; }
  __device__ __forceinline__ bool there(int tile, int row) const {
    return tile < place.last && row < place.length;
  }
  __device__ __forceinline__ bool inside(int chunk) const { return chunk * 8 < p.head_dim; }

  __device__ __forceinline__ int key_row(int tile, int r) const { return tile * kTile + g + 8 * r; }
  __device__ __forceinline__ int value_row(int tile, int r) const {
    return tile * kTile + 2 * q + r % 2 + r / 2 * 8;
  }

  __device__ __forceinline__ void load_keys(int tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = key_row(tile, r);
      const T* const from = p.key_cache + cache + row * p.cache_key + q * 8;
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        key[r][slab] = {};
        if (there(tile, row) && inside(4 * slab + q))
          key[r][slab] = Words::of(ptx::load_l2_16(from + slab * 32));
      }
    }
  }

  __device__ __forceinline__ void load_values(int tile) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = value_row(tile, r);
      const T* const from = p.value_cache + cache + row * p.cache_key + g * 8;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        value[r][block] = {};
        if (there(tile, row) && inside(8 * block + g))
          value[r][block] = Words::of(ptx::load_l2_16(from + block * 64));
      }
    }
  }

  // Asks for what the next steps load: it is in L2 then.
  __device__ __forceinline__ void ask() const {
    const int lane = threadIdx.x % 32;
    const T* const from = (lane < 16 ? p.key_cache : p.value_cache) + cache;
#pragma unroll 1
    for (int step = 1; step <= kAsked && tile(step) < place.last; ++step) {
      const int row = tile(step) * kTile + lane % 16;
      if (row < place.length)
        for (int c = 0; c < p.head_dim; c += 64) ptx::prefetch_l2(from + row * p.cache_key + c);
    }
  }

  // Not if the sequence's length leaves it out: then its value must not count, not even NaN.
  __device__ __forceinline__ bool has_new(int tile) const {
    return place.slot < place.length && static_cast<u32>(place.slot - tile * kTile) < kTile;
  }

  // The new key and value, in the place of what the cache had there.
  __device__ __forceinline__ void renew_keys(int tile) {
    if (!has_new(tile)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (key_row(tile, r) == place.slot)
#pragma unroll
        for (int slab = 0; slab < kSlabs; ++slab)
          key[r][slab] = Words::of(rows.chunk(Rows::kKey, 4 * slab + q));
  }
  __device__ __forceinline__ void renew_values(int tile) {
    if (!has_new(tile)) return;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (value_row(tile, r) == place.slot)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          value[r][block] = Words::of(rows.chunk(Rows::kValue, 8 * block + g));
  }

  // Scores in base 2 of the keys g and g + 8 and the heads 2q and 2q + 1.
  __device__ __forceinline__ void multiply_keys(int tile, float (&s)[4]) const {
    float sums[2][4] = {};  // that do not wait for each other
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      const Words query = Words::of(rows.chunk(g, 4 * slab + q));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const u32 a[4] = {key[0][slab].x[i], key[1][slab].x[i], key[0][slab].x[i + 1],
                          key[1][slab].x[i + 1]};
        ptx::mma_m16n8k16<T>(sums[i / 2], a, query.x[i], query.x[i + 1]);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      // Rounded, so that what is subtracted later is right for scores far from 0 too.
      s[e] = ptx::multiply(sums[0][e] + sums[1][e], p.factor);
      if (p.cap > 0.f) s[e] = p.cap * attention::tanh(s[e]);
      if (!there(tile, key_row(tile, e / 2))) s[e] = kNegativeInfinity;
    }
  }

  // Moves the heads' origins, if a weight might be large else.
  __device__ __forceinline__ void raise(const float (&s)[4]) {
    constexpr float kSlack = 8;  // as in softmax.cuh
    float to[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
    if (!__any_sync(0xffffffffu, to[0] - origin[0] > kSlack || to[1] - origin[1] > kSlack)) return;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      to[c] = fmaxf(origin[c], lanes_max<28>(to[c]));
      const float share = ptx::exp2(origin[c] - to[c]);
      origin[c] = to[c];
      sum[c] *= share;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          o[block][j][c] *= share;
          o[block][j][c + 2] *= share;
        }
    }
  }

  // Of two keys' words, the lower or upper columns.
  __device__ static __forceinline__ u32 lower(Words x, Words y, int j) {
    return (x.x[j] & 0xffff) | y.x[j] << 16;
  }
  __device__ static __forceinline__ u32 upper(Words x, Words y, int j) {
    return x.x[j] >> 16 | (y.x[j] & 0xffff0000u);
  }

  __device__ __forceinline__ void add_values(float (&s)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[e] = ptx::exp2(s[e] - origin[e % 2]);
      sum[e % 2] += s[e];
    }
    const u32 b[2] = {ptx::transposed(ptx::pack<T>(s[0], s[1])),
                      ptx::transposed(ptx::pack<T>(s[2], s[3]))};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const u32 a[4] = {
            lower(value[0][block], value[1][block], j), upper(value[0][block], value[1][block], j),
            lower(value[2][block], value[3][block], j), upper(value[2][block], value[3][block], j)};
        ptx::mma_m16n8k16<T>(o[block][j], a, b[0], b[1]);
      }
  }

  // The warp's share of the keys. What the next step reads is on its way while this one computes.
  __device__ __forceinline__ void attend() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[block][j][e] = 0.f;
#pragma unroll 1
    for (int at = tile(0); at < place.last; at += kWarps) {
      float s[4];
      renew_keys(at);
      multiply_keys(at, s);
      if (!kLate) load_keys(ptx::opaque(at + kWarps));
      raise(s);
      renew_values(at);
      add_values(s);
      if (kLate) load_keys(ptx::opaque(at + kWarps));
      load_values(ptx::opaque(at + kWarps));
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) sum[c] = lanes_sum<28>(sum[c]);
  }

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    if (p.early)
      ptx::let_next_kernel_come();
    else
      ptx::after_earlier_kernels();
    const Rows rows(memory);
    {
      const TokenPlace place(p, kTile);
      Token own(p, place, rows);
      own.load_keys(own.tile(0));
      own.load_values(own.tile(0));
      own.ask();
      const typename Rows::Turns turns(p, place.position);
      if (p.early) ptx::after_earlier_kernels();
      if (place.split >= place.splits) return;
      rows.fill(p, place, turns);
      __syncthreads();
      own.attend();
      Sums(memory + Rows::kBytes).put(own.origin, own.sum, own.o, place.heads);
    }
    __syncthreads();
    // Read again, so that it took no registers meanwhile.
    Sums(memory + Rows::kBytes).finish(p, rows.place());
  }
};

}  // namespace stof::attention
