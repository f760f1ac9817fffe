// Row-wise sparse attention on mma.sync, for sm_80 and everything newer: masks that keep few keys
// of a row (STOF, arXiv 2506.06095, section 4.2.2).
//
// A warp computes one query row from the keys that its mask keeps and reads nothing else of K and
// V; of a long row the warps of a CTA each take a share. It takes sixteen keys at a time, gathered
// into registers that are operands of the tensor cores as they come. In lane 4g + q of a warp:
//
// Scores: eight rows of K are A, a quarter of 64 bytes of key g in each lane. Its words 0 and 2 are
// in row g of A, words 1 and 3 in row g + 8; the query's words 0 and 2 are in even columns of B,
// 1 and 3 in odd ones. So row g, even column, plus row g + 8, odd column, is the product.
//
// Output: A is V transposed, rows columns of V and columns keys; B is the weights, the same in all
// columns. A lane reads columns 8g.. of keys 2q, 2q + 8, 2q + 1 and 2q + 9; byte permutations put
// two keys' elements of a column into a word.
//
// Which of a product's terms meet does not matter as long as both sides agree, so no element of K
// or V moves between lanes. Softmax and score modifications are fp32.
//
// Time is that of the L2: each kept element moves a row of K and one of V.
#pragma once

#include "attention/element_scores.cuh"
#include "attention/keys.cuh"
#include "ptx/convert.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "types.cuh"
#include "warp.cuh"

namespace stof::attention {

// kPairs: chunks of sixteen keys that are in flight. kWide: rows of q, k and v are 16-byte aligned,
// and head dims multiples of 8.
template <typename T, int kHeadDim, int kPairs, bool kWide, template <int> class Source,
          class Scores>
struct Rowwise {
  static constexpr int kThreads = 128;
  // CTAs of an SM that registers have to allow.
  static constexpr int kLoaded = kHeadDim * kPairs * (kWide && !Scores::kCount ? 1 : 2);
  static constexpr int kMinBlocks = kLoaded > 128 ? 2 : kLoaded > 64 || kPairs > 1 ? 3 : 5;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kChunk = 16 * kPairs;
  static constexpr int kTiles = 2 * kPairs;                        // of eight keys
  static constexpr int kParts = kHeadDim / 32;                     // of 64 bytes of a key's row
  static constexpr int kSets = kHeadDim < 64 ? 1 : kHeadDim / 64;  // of 64 columns of V
  static_assert(kHeadDim % 32 == 0 && kPairs <= 2);
  using Keys = Source<kChunk>;

  // Of a row that warps share: each one's sums of weighted values, maximum and sum of weights.
  struct Partial {
    float out[64 * kSets];
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
    const float* alibi;     // this and what follows: see element_scores.cuh
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
    int block_rows;              // query rows of a CTA, whose warps take turns: a divisor of 64
    int long_rows;               // of KeyLists
    int wide_q, wide_k, wide_v;  // rows 16-byte aligned; not read if kWide
    int pairs_out;               // rows 4-byte aligned: two outputs a store
    int reach;
    int early;  // row_ptr, cols, bitmap_id, bitmaps, order, mask_of: as in params.cuh
    float factor, cap, bias_masking;
  };

  // What a lane has of a row when attend() is done: two columns of each set's sums of weighted
  // values, and the row's maximum and sum of weights.
  struct State {
    float out[kSets][2];
    float max, sum;
  };

  struct alignas(16) Piece {
    u32 word[4];
  };

  // Eight elements as they lie in memory, zeros from `valid` on.
  __device__ static __forceinline__ Piece load(const u16* from, int valid, bool wide) {
    Piece piece = {};
    if (valid <= 0) return piece;
    if (kWide || (wide && valid >= 8)) return *reinterpret_cast<const Piece*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 lo = 2 * i < valid ? from[2 * i] : 0;
      const u32 hi = 2 * i + 1 < valid ? from[2 * i + 1] : 0;
      piece.word[i] = lo | hi << 16;
    }
    return piece;
  }

  // Row `key` of an array whose rows are `bytes` apart; unsigned, which takes two instructions.
  __device__ static __forceinline__ const u16* row_of(const u16* from, int key, u64 bytes) {
    const i64 offset = static_cast<i64>(static_cast<u32>(key) * bytes);
    return reinterpret_cast<const u16*>(reinterpret_cast<const u8*>(from) + offset);
  }

  using Values = Piece[kTiles][2][kSets];

  __device__ static __forceinline__ void load_values(Values& values, const Params& p, const u16* v,
                                                     u64 v_row, const int (&key)[kTiles][2],
                                                     int lane) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int set = 0; set < kSets; ++set)
          values[t][e][set] =
              load(row_of(v, key[t][e], v_row) + 64 * set,
                   key[t][e] < 0 ? 0 : p.dim_v - 64 * set - 8 * (lane >> 2), p.wide_v != 0);
  }

  // out += V^T w; of the accumulators, 0 and 2 count, 1 and 3 are of columns that repeat theirs.
  __device__ static __forceinline__ void accumulate(float (&out)[kSets][4][4], Values& values,
                                                    const float (&w)[kTiles], int lane) {
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const u32 mine = ptx::pack<T>(w[t], w[t + 1]);
      u32 b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        b[e] = __shfl_sync(0xffffffffu, mine, 4 * (2 * (lane & 3) + e));
        // What a key that a bias masks holds must not count, as 0 * NaN would.
        if (Scores::kMasks && (b[e] & 0xffff) == 0x8000) clear(values[t][e]);
        if (Scores::kMasks && b[e] >> 16 == 0x8000) clear(values[t + 1][e]);
      }
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const u32 v0 = values[t][0][set].word[i], v1 = values[t + 1][0][set].word[i];
          const u32 v2 = values[t][1][set].word[i], v3 = values[t + 1][1][set].word[i];
          const u32 a[4] = {(v0 & 0xffff) | v1 << 16, v0 >> 16 | (v1 & 0xffff0000),
                            (v2 & 0xffff) | v3 << 16, v2 >> 16 | (v3 & 0xffff0000)};
          ptx::mma_m16n8k16<T>(out[set][i], a, b[0], b[1]);
        }
      }
    }
  }

  __device__ static __forceinline__ void clear(Piece (&pieces)[kSets]) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) pieces[set] = {};
  }

  // Takes the warp's keys of a row.
  __device__ static __forceinline__ void attend(State& state, const Params& p, Keys keys, Place at,
                                                int lane) {
    const int group = lane >> 2, quad = lane & 3;
    const i64 kv_head = at.head / p.heads_per_kv;
    const u16* k = p.k + at.batch * p.k_batch + kv_head * p.k_head + 8 * quad;
    const u16* v = p.v + at.batch * p.v_batch + kv_head * p.v_head + 8 * group;
    const u64 k_row = static_cast<u64>(p.k_row) * 2, v_row = static_cast<u64>(p.v_row) * 2;
    const u16* q_row =
        p.q + at.batch * p.q_batch + at.head * p.q_head + at.row * p.q_row + 8 * quad;
    const int valid_k = p.dim_qk - 8 * quad;
    u32 q[kParts][2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto piece = load(q_row + 32 * part, valid_k - 32 * part, p.wide_q != 0);
      q[part][0] = piece.word[group & 1];
      q[part][1] = piece.word[2 + (group & 1)];
    }
    float out[kSets][4][4];
#pragma unroll
    for (int set = 0; set < kSets; ++set)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[set][i][e] = 0.f;
    state.max = kNegativeInfinity;
    state.sum = 0.f;

    while (keys.valid()) {
      const int mine = keys.next(lane);
      int key_k[kTiles], key_v[kTiles][2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        key_k[t] = __shfl_sync(0xffffffffu, mine, 8 * t + group);
        key_v[t][0] = __shfl_sync(0xffffffffu, mine, 8 * t + 2 * quad);
        key_v[t][1] = __shfl_sync(0xffffffffu, mine, 8 * t + 2 * quad + 1);
      }
      Piece k_piece[kTiles][kParts];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          k_piece[t][part] = load(row_of(k, key_k[t], k_row) + 32 * part,
                                  key_k[t] < 0 ? 0 : valid_k - 32 * part, p.wide_k != 0);
      Values values;
      if constexpr (kHeadDim <= 128) load_values(values, p, v, v_row, key_v, lane);

      float w[kTiles];  // scores, then weights, of keys 8 * t + group
      float max = state.max;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        float product[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          ptx::mma_m16n8k16<T>(product, k_piece[t][part].word, q[part][0], q[part][1]);
        at.key = key_k[t];
        w[t] = at.key < 0 ? kNegativeInfinity : Scores::of(product[0] + product[3], p, at);
        max = fmaxf(max, w[t]);
      }
      if constexpr (kHeadDim > 128) load_values(values, p, v, v_row, key_v, lane);

      max = lanes_max<28>(max);
      const float origin = max == kNegativeInfinity ? 0.f : max;  // keeps -inf - -inf away
      const float rescale = ptx::exp2(state.max - origin);
      state.max = max;
      state.sum *= rescale;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const bool masked = Scores::kMasks && w[t] == kNegativeInfinity;
        w[t] = masked ? -0.f : ptx::exp2(w[t] - origin);  // not the 0 of a low score
        state.sum += w[t];
      }
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          out[set][i][0] *= rescale;
          out[set][i][2] *= rescale;
        }
      }
      accumulate(out, values, w, lane);
    }
    state.sum = lanes_sum<28>(state.sum);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i == 0 || quad == i) {
          state.out[set][0] = out[set][i][0];
          state.out[set][1] = out[set][i][2];
        }
      }
    }
  }

  // The first of the two columns of a set that a lane has.
  __device__ static __forceinline__ int column(int set, int lane) { return 64 * set + 2 * lane; }

  // Adds up the warps' shares of a row in the first warp, in their order.
  __device__ static __forceinline__ void combine(State& state, Partial* partials, int warp,
                                                 int lane) {
    Partial& mine = partials[warp];
#pragma unroll
    for (int set = 0; set < kSets; ++set)
#pragma unroll
      for (int e = 0; e < 2; ++e) mine.out[column(set, lane) + e] = state.out[set][e];
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
      state = {};
      state.max = max;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float factor = ptx::exp2(partials[w].max - origin);
        state.sum += factor * partials[w].sum;
#pragma unroll
        for (int set = 0; set < kSets; ++set)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            state.out[set][e] += factor * partials[w].out[column(set, lane) + e];
      }
    }
    __syncthreads();  // the next row may overwrite them
  }

  __device__ static __forceinline__ void store(State& state, const Params& p, const Place& at,
                                               int lane) {
    float factor = 1.f, sink = kNegativeInfinity;
    if (p.sinks != nullptr) {
      sink = p.sinks[at.head];
      const float last = sink_log2(sink), max = fmaxf(state.max, last);
      const float origin = max == kNegativeInfinity ? 0.f : max;
      factor = ptx::exp2(state.max - origin);
      state.sum = state.sum * factor + ptx::exp2(last - origin);
      state.max = max;
    }
    if (state.sum != 0.f) factor /= state.sum;
    T* to = p.out + at.batch * p.out_batch + at.head * p.out_head + at.row * p.out_row;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const int col = column(set, lane);
      const float x = state.out[set][0] * factor, y = state.out[set][1] * factor;
      if (p.pairs_out && col + 1 < p.dim_v) {
        *reinterpret_cast<u32*>(to + col) = ptx::pack<T>(x, y);
      } else {
        if (col < p.dim_v) to[col] = ptx::from_float<T>(x);
        if (col + 1 < p.dim_v) to[col + 1] = ptx::from_float<T>(y);
      }
    }
    if (p.lse != nullptr && lane == 0) {
      const float lse =
          state.sum == 0.f ? kNegativeInfinity : (state.max + ptx::log2(state.sum)) * kLn2;
      p.lse[(at.batch * p.heads + at.head) * p.seq_q + at.row] = lse < sink ? sink : lse;
    }
  }

  // A row where nothing right can be computed.
  __device__ static __forceinline__ void store_nan(const Params& p, const Place& at, int lane) {
    State state = {};
    state.sum = __int_as_float(0x7fffffff);
    store(state, p, at, lane);
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    if (!p.early) ptx::after_earlier_kernels();
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
    const bool cut_off = p.overflow != nullptr && *p.overflow != 0;
    const int first = block.shared ? 0 : warp, step = block.shared ? 1 : kWarps;
    if (p.early && (cut_off || first >= block.rows)) ptx::after_earlier_kernels();
    if (cut_off) {
      for (int i = warp; i < block.rows; i += kWarps) {
        at.row = block.row(i);
        store_nan(p, at, lane);
      }
      return;
    }
    const int parts = block.shared ? kWarps : 1;
    State state;
    for (int i = first; i < block.rows; i += step) {
      at.row = block.row(i);
      const int part = block.shared ? warp : 0;
      Keys keys(p, mask, at.row, part, parts, kv_length, queue, lane);
      if (p.early && i == first) ptx::after_earlier_kernels();
      attend(state, p, keys, at, lane);
      if (block.shared) combine(state, partials, warp, lane);
      if (!block.shared || warp == 0) store(state, p, at, lane);
    }
  }
};

}  // namespace stof::attention
