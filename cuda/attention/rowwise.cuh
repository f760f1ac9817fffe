// Row-wise sparse attention, for sm_80 and everything newer: masks that keep few keys of a row
// (STOF, arXiv 2506.06095, section 4.2.2).
//
// A warp computes one query row from the keys that its mask keeps and reads nothing else of K and
// V; of a long row the warps of a CTA each take a share. kLanes lanes read a row of K or V, 16
// bytes each, so a warp has kGroups keys in flight per load, and kSteps loads. The products are
// summed over those lanes so that each lane gets the score of one key: softmax and score
// modifications cost one key's work per lane. Everything is fp32 from the products on.
//
// Time is that of the L2: each kept element moves a row of K and one of V.
#pragma once

#include "attention/keys.cuh"
#include "attention/scores.cuh"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "types.cuh"
#include "warp.cuh"

namespace stof::attention {

// kWide: rows of q, k and v are 16-byte aligned, and head dims multiples of 8.
template <typename T, int kHeadDim, int kSteps, bool kWide, template <int, int> class Source,
          class Scores>
struct Rowwise {
  static constexpr int kThreads = 128;
  // CTAs of an SM that registers have to allow.
  static constexpr int kMinBlocks = kSteps > 4 ? 3 : kHeadDim <= 128 ? 5 : 4;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kLanes = kHeadDim / 8;  // of one key
  static constexpr int kGroups = 32 / kLanes;  // keys side by side
  static constexpr int kChunk = kGroups * kSteps;
  static constexpr int kOutputs = 8 / kGroups;  // columns of the output that a lane stores
  static_assert(kLanes >= kSteps && kLanes <= 32 && kGroups * kLanes == 32);
  using Keys = Source<kChunk, kWarps>;

  // Of a row that warps share: each one's sums of weighted values, maximum and sum of weights.
  struct Partial {
    float out[kHeadDim];
    float max, sum;
  };
  static constexpr int kSmemBytes =
      static_cast<int>(kWarps * (sizeof(Partial) + Keys::kQueue * sizeof(int)));

  struct Params {
    const u16* q;
    const u16* k;
    const u16* v;
    T* out;
    float* lse;  // (batch, heads, seq_q) contiguous, or null
    // Which keys a row keeps, see keys.cuh.
    const int* row_ptr;
    const int* cols;
    const int* bitmap_id;
    const u64* bitmaps;
    const int* order;
    const int* mask_of;     // the number of a batch and head's mask; null: number 0
    const int* kv_lengths;  // (batch,), or null: keys at and after it are masked
    const int* overflow;    // not null and not 0: the lists are cut off, and the answer is NaN
    const float* sinks;     // (heads,) scores of one more key of value 0, or null
    const float* alibi;     // this and what follows: see scores.cuh
    const float* relative;
    const void* bias;
    const int* query_at;
    const int* key_at;
    i64 q_batch, q_head, q_row;
    i64 k_batch, k_head, k_row;
    i64 v_batch, v_head, v_row;
    i64 out_batch, out_head, out_row;
    i64 bias_batch, bias_head, bias_row, bias_key;
    int mask_batch, mask_head;  // strides of mask_of
    int heads, heads_per_kv;
    int seq_q, seq_k;
    int dim_qk, dim_v;
    int blocks;                  // CTAs of a head
    int long_rows;               // of KeyLists
    int wide_q, wide_k, wide_v;  // rows 16-byte aligned; not read if kWide
    int wide_out;                // rows aligned to the kOutputs elements of a store
    int reach;
    float factor, cap, bias_masking;
  };

  // What a lane holds of a row: its eight columns of the sum of weighted values, over the keys of
  // its group; `max` is of the warp, `sum` of the keys whose scores this lane made.
  struct State {
    float out[8];
    float max, sum;
  };

  // Eight elements as they lie in memory, zeros from `valid` on.
  __device__ static __forceinline__ uint4 load(const u16* from, int valid, bool wide) {
    if (valid <= 0) return make_uint4(0, 0, 0, 0);
    if (kWide || (wide && valid >= 8)) return *reinterpret_cast<const uint4*>(from);
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 lo = 2 * i < valid ? from[2 * i] : 0;
      const u32 hi = 2 * i + 1 < valid ? from[2 * i + 1] : 0;
      word[i] = lo | hi << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
  }

  __device__ static __forceinline__ void widen(float (&x)[8], uint4 raw) {
    const u32 word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = ptx::to_float(T{static_cast<u16>(word[i] & 0xffff)});
      x[2 * i + 1] = ptx::to_float(T{static_cast<u16>(word[i] >> 16)});
    }
  }

  __device__ static __forceinline__ void multiply(float& sum, const float (&q)[8], uint4 raw) {
    float x[8];
    widen(x, raw);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(q[e], x[e], sum);
  }

  __device__ static __forceinline__ void accumulate(float (&sum)[8], float weight, uint4 raw) {
    float x[8];
    widen(x, raw);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum[e] = fmaf(weight, x[e], sum[e]);
  }

  // Row `key` of an array whose rows are `bytes` apart; unsigned, which takes two instructions.
  __device__ static __forceinline__ const u16* row_of(const u16* from, int key, u64 bytes) {
    const i64 offset = static_cast<i64>(static_cast<u32>(key) * bytes);
    return reinterpret_cast<const u16*>(reinterpret_cast<const u8*>(from) + offset);
  }

  // Takes the warp's keys of a row.
  __device__ static __forceinline__ void attend(State& state, const Params& p, Keys keys, Place at,
                                                int lane) {
    // A lane makes the score of key `place` of a chunk, and so do those that differ from it in
    // neither its group nor its place.
    constexpr int kOwners = (kSteps - 1) | (31 & ~(kLanes - 1));
    const int place = (lane & (kSteps - 1)) * kGroups + lane / kLanes;
    const int chunk = lane % kLanes * 8;
    const int valid_k = p.dim_qk - chunk, valid_v = p.dim_v - chunk;
    const i64 kv_head = at.head / p.heads_per_kv;
    const u16* k = p.k + at.batch * p.k_batch + kv_head * p.k_head + chunk;
    const u16* v = p.v + at.batch * p.v_batch + kv_head * p.v_head + chunk;
    const u64 k_row = static_cast<u64>(p.k_row) * 2, v_row = static_cast<u64>(p.v_row) * 2;
    float q[8];
    widen(q, load(p.q + at.batch * p.q_batch + at.head * p.q_head + at.row * p.q_row + chunk,
                  valid_k, p.wide_q != 0));
#pragma unroll
    for (int e = 0; e < 8; ++e) state.out[e] = 0.f;
    state.max = kNegativeInfinity;
    state.sum = 0.f;

    while (keys.valid()) {
      int count;
      at.key = keys.next(place, count);
      const bool many = count > kChunk / 2;  // else the second half of the steps has no keys
      int key[kSteps];
      uint4 k_raw[kSteps], v_raw[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) key[s] = __shfl_sync(0xffffffffu, at.key, s, kLanes);
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        k_raw[s] = load(row_of(k, key[s], k_row), key[s] < 0 ? 0 : valid_k, p.wide_k != 0);
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        v_raw[s] = load(row_of(v, key[s], v_row), key[s] < 0 ? 0 : valid_v, p.wide_v != 0);

      float product[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) product[s] = 0.f;
#pragma unroll
      for (int s = 0; s < kSteps / 2; ++s) multiply(product[s], q, k_raw[s]);
      if (many) {
#pragma unroll
        for (int s = kSteps / 2; s < kSteps; ++s) multiply(product[s], q, k_raw[s]);
      }
      scatter_sum<kSteps, kSteps, 1>(product, lane);
      product[0] = lanes_sum<(kLanes - 1) & ~(kSteps - 1)>(product[0]);
      const float score = at.key < 0 ? kNegativeInfinity : Scores::of(product[0], p, at);

      const float max = lanes_max<kOwners>(fmaxf(state.max, score));
      const float origin = max == kNegativeInfinity ? 0.f : max;  // keeps -inf - -inf away
      const float rescale = ptx::exp2(state.max - origin);
      const float weight = ptx::exp2(score - origin);
      state.max = max;
      state.sum = state.sum * rescale + weight;
#pragma unroll
      for (int e = 0; e < 8; ++e) state.out[e] *= rescale;
      // What a key that a bias masks holds must not count, as 0 * NaN would.
      float w[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        w[s] = __shfl_sync(0xffffffffu, weight, s, kLanes);
        if (Scores::kMasks && w[s] == 0.f) v_raw[s] = make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int s = 0; s < kSteps / 2; ++s) accumulate(state.out, w[s], v_raw[s]);
      if (many) {
#pragma unroll
        for (int s = kSteps / 2; s < kSteps; ++s) accumulate(state.out, w[s], v_raw[s]);
      }
    }
    state.sum = lanes_sum<kOwners>(state.sum);
    scatter_sum<8, kGroups, kLanes>(state.out, lane);
  }

  // The column of the first of kOutputs sums that a lane has when attend() is done.
  __device__ static __forceinline__ int column(int lane) {
    return lane % kLanes * 8 + lane / kLanes * kOutputs;
  }

  // Adds up the warps' shares of a row in the first warp, in their order.
  __device__ static __forceinline__ void combine(State& state, Partial* partials, int warp,
                                                 int lane) {
    Partial& mine = partials[warp];
#pragma unroll
    for (int e = 0; e < kOutputs; ++e) mine.out[column(lane) + e] = state.out[e];
    if (lane == 0) {
      mine.max = state.max;
      mine.sum = state.sum;
    }
    __syncthreads();
    if (warp == 0) {
      float max = kNegativeInfinity;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) max = fmaxf(max, partials[w].max);
      const float origin = max == kNegativeInfinity ? 0.f : max;
      state.max = max;
      state.sum = 0.f;
#pragma unroll
      for (int e = 0; e < kOutputs; ++e) state.out[e] = 0.f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float factor = ptx::exp2(partials[w].max - origin);
        state.sum += factor * partials[w].sum;
#pragma unroll
        for (int e = 0; e < kOutputs; ++e)
          state.out[e] += factor * partials[w].out[column(lane) + e];
      }
    }
    __syncthreads();  // the next row may overwrite them
  }

  __device__ static __forceinline__ void store(State& state, const Params& p, const Place& at,
                                               int lane) {
    constexpr float kLn2 = 0.6931471805599453f;
    float factor = 1.f;
    if (p.sinks != nullptr) {
      const float sink = p.sinks[at.head] * kLog2E;
      const float max = fmaxf(state.max, sink);
      const float origin = max == kNegativeInfinity ? 0.f : max;
      factor = ptx::exp2(state.max - origin);
      state.sum = state.sum * factor + ptx::exp2(sink - origin);
      state.max = max;
    }
    if (state.sum != 0.f) factor /= state.sum;
    T* to = p.out + at.batch * p.out_batch + at.head * p.out_head + at.row * p.out_row;
    put(to, state.out, factor, column(lane), p);
    if (p.lse != nullptr && lane == 0)
      p.lse[(at.batch * p.heads + at.head) * p.seq_q + at.row] =
          state.sum == 0.f ? kNegativeInfinity : (state.max + ptx::log2(state.sum)) * kLn2;
  }

  // Stores the first kOutputs of `x` times `factor` from column `col` of a row on.
  __device__ static __forceinline__ void put(T* to, const float (&x)[8], float factor, int col,
                                             const Params& p) {
    if constexpr (kOutputs > 1) {
      if (p.wide_out && col + kOutputs <= p.dim_v) {
        struct alignas(2 * kOutputs) Words {
          u32 word[kOutputs / 2];
        } words;
#pragma unroll
        for (int i = 0; i < kOutputs / 2; ++i)
          words.word[i] = ptx::pack<T>(x[2 * i] * factor, x[2 * i + 1] * factor);
        *reinterpret_cast<Words*>(to + col) = words;
        return;
      }
    }
#pragma unroll
    for (int e = 0; e < kOutputs; ++e)
      if (col + e < p.dim_v) to[col + e] = ptx::from_float<T>(x[e] * factor);
  }

  // A row where nothing right can be computed.
  __device__ static __forceinline__ void store_nan(const Params& p, const Place& at, int lane) {
    State state;
#pragma unroll
    for (int e = 0; e < 8; ++e) state.out[e] = 0.f;
    state.max = 0.f;
    state.sum = __int_as_float(0x7fffffff);
    store(state, p, at, lane);
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int index = blockIdx.x % p.blocks;
    Place at;
    at.head = blockIdx.x / p.blocks % p.heads;
    at.batch = blockIdx.x / p.blocks / p.heads;
    const i64 mask = p.mask_of ? p.mask_of[at.batch * p.mask_batch + at.head * p.mask_head] : 0;
    const int kv_length = p.kv_lengths ? max(0, min(p.seq_k, p.kv_lengths[at.batch])) : p.seq_k;
    Partial* partials = reinterpret_cast<Partial*>(smem);
    int* queue = reinterpret_cast<int*>(partials + kWarps) + warp * Keys::kQueue;

    const typename Keys::Block block(p, mask, index);
    if (p.overflow != nullptr && *p.overflow != 0) {
      for (int i = warp; i < block.rows; i += kWarps) {
        at.row = block.row(i);
        store_nan(p, at, lane);
      }
      return;
    }
    const int parts = block.shared ? kWarps : 1;
    State state;
    for (int i = block.shared ? 0 : warp; i < block.rows; i += block.shared ? 1 : kWarps) {
      at.row = block.row(i);
      const int part = block.shared ? warp : 0;
      attend(state, p, Keys(p, mask, at.row, part, parts, kv_length, queue, lane), at, lane);
      if (block.shared) combine(state, partials, warp, lane);
      if (!block.shared || warp == 0) store(state, p, at, lane);
    }
  }
};

}  // namespace stof::attention
