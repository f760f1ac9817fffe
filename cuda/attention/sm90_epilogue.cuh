// How a warpgroup's output leaves the sm_90a attention: through the buffer its queries came in.
#pragma once

#include "attention/sm90_shape.cuh"
#include "attention/sm90_softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/opaque.cuh"
#include "ptx/packed.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"

namespace stof::attention::sm90 {

constexpr float kNaN = __builtin_bit_cast(float, 0x7fffffffu);

template <class K>
struct Epilogue {
  using Params = typename K::Params;
  using T = typename K::T;

  const Params& p;
  const u32 buffer;  // of the CTA's query tile
  const int group, thread;

  // Where 16-byte chunk `chunk` of a row of this warpgroup goes: 128-byte swizzled slabs, as a box
  // expects them.
  __device__ __forceinline__ u32 address(int row, int chunk) const {
    return buffer + chunk / 8 * K::kSlabBytesQ + (group * 64 + row) * 128 +
           ((chunk % 8 ^ row % 8) << 4);
  }

  // Returns whether the warp's output is all finite.
  __device__ __forceinline__ bool stage(const float (&o)[K::kDimV / 2]) const {
    const int row = thread / 32 * 16 + thread % 16;
    u32 zero[4] = {0, 0, 0, 0};  // sums that do not wait for each other
#pragma unroll
    for (int j = 0; j < K::kDimV / 16; ++j) {
      u32 r[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        r[e] = ptx::pack<T>(o[8 * j + 2 * e], o[8 * j + 2 * e + 1]);
        zero[e] = ptx::add_zero_times<T>(r[e], zero[e]);
      }
      ptx::stmatrix_x4(address(row, 2 * j + thread % 32 / 16), r[0], r[1], r[2], r[3]);
    }
    const u32 all = zero[0] | zero[1] | zero[2] | zero[3];
    return !__any_sync(0xffffffff, (all & 0x7fff7fff) != 0);
  }

  // A slice's result, see Params::partial; returns as stage() does.
  __device__ __forceinline__ bool store_partial(const float (&o)[K::kDimV / 2],
                                                const OnlineSoftmax& softmax,
                                                const Row& row) const {
    float* to = partial(row);
    float zero[2] = {0.f, 0.f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = group * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      float* values = to + at * K::kDimV + thread % 4 * 2;
#pragma unroll
      for (int j = 0; j < K::kDimV / 8; ++j) {
        const float x = o[4 * j + 2 * r], y = o[4 * j + 2 * r + 1];
        *reinterpret_cast<float2*>(values + 8 * j) = make_float2(x, y);
        zero[0] = fmaf(x, 0.f, zero[0]);
        zero[1] = fmaf(y, 0.f, zero[1]);
      }
      if (thread % 4 == 0)
        *reinterpret_cast<float2*>(to + K::kM * K::kDimV + 2 * at) =
            make_float2(softmax.origin[r], softmax.sum[r]);
    }
    return __all_sync(0xffffffff, zero[0] + zero[1] == 0.f);
  }

  __device__ __forceinline__ float* partial(const Row& row) const {
    return p.partial + static_cast<i64>(row.partial) * (K::kM * (K::kDimV + 2));
  }

  __device__ __forceinline__ void store_lse(const OnlineSoftmax& softmax, float sink, int first_row,
                                            const Row& row) const {
    if (p.lse == nullptr || thread % 4 != 0) return;
    float* lse = p.lse + (static_cast<i64>(row.batch) * p.heads + row.head) * p.seq_q;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      const float x = softmax.log2_sum_exp(r) * kLn2;
      if (at < p.seq_q) lse[at] = row.poison ? kNaN : x < sink ? sink : x;  // see RowResult
    }
  }

  // The warp's sixteen rows once more, key by key, with only the values that count. It is slow, and
  // runs only if values that are not finite stand in tiles with masked keys. Products are added up
  // in another order here: beside large scores these weights are right with a sum of their own
  // only.
  __device__ __forceinline__ void compute_again(int first_row, const Row& info) const {
    constexpr int kEachQk = (K::kDimQk + 31) / 32, kEachV = (K::kDimV + 31) / 32;
    const int warp = thread / 32, lane = thread % 32;
    const i64 kv_head = info.head / p.heads_per_kv;
    const T* q = p.q + info.batch * p.q_batch + info.head * p.q_head;
    const T* k = p.k + info.batch * p.k_batch + kv_head * p.k_head;
    const T* v = p.v + info.batch * p.v_batch + kv_head * p.v_head;
    const bool whole = info.partial < 0;
    __syncwarp();  // what was stored before is overwritten

#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      const int row = first_row + 16 * warp + r;
      if (row >= p.seq_q) return;
      float query[kEachQk], out[kEachV], top = kLowest, sum = 0.f;
#pragma unroll
      for (int i = 0; i < kEachQk; ++i)
        query[i] = lane + 32 * i < p.dim_qk ? ptx::to_float(q[row * p.q_row + lane + 32 * i]) : 0.f;
#pragma unroll
      for (int i = 0; i < kEachV; ++i) out[i] = 0.f;

#pragma unroll 1
      for (int i = 0; i < info.tiles; ++i) {
        const int entry = info.entry(i);
        const int keys = i == info.masked - 1 ? info.limit : K::kN;
        const int id = i < info.parts ? p.bitmap_id[entry] : -1;
        const u32* bits = id < 0 ? nullptr : bitmap(id);
#pragma unroll 1
        for (int key = 0; key < keys; ++key) {
          if (bits != nullptr && !kept(bits, warp, r, key)) continue;
          const i64 at = position(entry, i < info.parts, key);
          float score = 0.f;
#pragma unroll
          for (int e = 0; e < kEachQk; ++e)
            if (lane + 32 * e < p.dim_qk)
              score += query[e] * ptx::to_float(k[at * p.k_row + lane + 32 * e]);
          const Place place{info.batch, info.head, row, static_cast<int>(at)};
          score = K::Scores::of(warp_sum(score), p, place);
          if (K::Scores::kMasks && score == kNegativeInfinity) continue;
          if (score > top) {
            const float share = ptx::exp2(top - score);
            top = score;
            sum *= share;
#pragma unroll
            for (int e = 0; e < kEachV; ++e) out[e] *= fmaxf(share, kSmallest);  // 0 * inf is NaN
          }
          const float weight = ptx::exp2(score - top);
          sum += weight;
#pragma unroll
          for (int e = 0; e < kEachV; ++e)
            if (lane + 32 * e < p.dim_v)
              out[e] += weight * ptx::to_float(v[at * p.v_row + lane + 32 * e]);
        }
      }
      const float sink = whole && p.sinks != nullptr ? p.sinks[info.head] : kNegativeInfinity;
      const float factor = info.poison ? kNaN : RowResult(top, sum, sink).factor;
      const int at = group * 64 + 16 * warp + r;
#pragma unroll
      for (int i = 0; i < kEachV; ++i) {
        const int column = lane + 32 * i;
        if (whole)
          ptx::store_shared_2(address(16 * warp + r, column / 8) + lane % 8 * 2,
                              ptx::from_float<T>(out[i] * factor).bits);
        else if (column < K::kDimV)
          partial(info)[at * K::kDimV + column] = out[i];
      }
      if (!whole && lane == 0)
        *reinterpret_cast<float2*>(partial(info) + K::kM * K::kDimV + 2 * at) =
            make_float2(top, sum);
    }
  }

  // The lane's scores of a tile once more. It is slow, and runs only if a score exceeds all before
  // by more than a float's range (OnlineSoftmax). `info` is where the row is: read again each time,
  // to spare registers.
  __device__ __forceinline__ void score_again(float (&s)[K::kN / 2], u32 info, int tile) const {
#pragma unroll 1
    for (int i = 0; i < K::kN / 2; ++i) {
      // What depends on the thread alone is not kept in registers for this.
      const Epilogue here{p, buffer, group, ptx::opaque(thread)};
      const int r = here.thread % 32 / 4 + i / 2 % 2 * 8;
      const int key = i / 4 * 8 + here.thread % 4 * 2 + i % 2;
      const bool counted = here.counts(info, tile, r, key);
      const T* x = counted ? here.query_again(info, r) : p.q;
      const T* y = counted ? here.key_again(info, tile, key) : p.k;
      float score = 0.f;
#pragma unroll 1
      for (int e = 0; e < p.dim_qk; ++e)
        score = fmaf(ptx::to_float(x[e]), ptx::to_float(y[e]), score);
      if (!counted) score = kNegativeInfinity;
#pragma unroll
      for (int j = 0; j < K::kN / 2; ++j) s[j] = i == j ? score : s[j];  // registers have no index
    }
  }

  // Whether row r of the warp's sixteen keeps key `key` of a tile, if there is such a row.
  __device__ __forceinline__ bool counts(u32 info, int tile, int r, int key) const {
    const Row row = Row::load(info);
    if (row.q_tile * K::kM + group * 64 + thread / 32 * 16 + r >= p.seq_q) return false;
    if (tile == row.masked - 1 && key >= row.limit) return false;
    const int id = tile < row.parts ? p.bitmap_id[row.entry(tile)] : -1;
    return id < 0 || kept(bitmap(id), thread / 32, r, key);
  }
  __device__ __forceinline__ const T* query_again(u32 info, int r) const {
    const Row row = Row::load(info);
    const int at = row.q_tile * K::kM + group * 64 + thread / 32 * 16 + r;
    return p.q + row.batch * p.q_batch + row.head * p.q_head + at * p.q_row;
  }
  __device__ __forceinline__ const T* key_again(u32 info, int tile, int key) const {
    const Row row = Row::load(info);
    const i64 at = position(row.entry(tile), tile < row.parts, key);
    return p.k + row.batch * p.k_batch + row.head / p.heads_per_kv * p.k_head + at * p.k_row;
  }
  __device__ __forceinline__ const u32* bitmap(int id) const {
    return p.bitmaps + static_cast<i64>(id) * (K::kBitmapBytes / 4);
  }

  // Where in the sequence key `key` of a listed tile stands.
  __device__ __forceinline__ i64 position(int entry, bool part, int key) const {
    const i64 col = Listed<K::kHalves>(p.cols ? p.cols[entry] : entry).col;
    if (!K::kPacked || !part) return col * K::kN + key;
    return static_cast<i64>(p.groups[col * K::kGroups + key / 8]) * 8 + key % 8;
  }

  // The bit of key `key` for row r of a warp's sixteen, as MaskBits counts them.
  __device__ __forceinline__ bool kept(const u32* bits, int warp, int r, int key) const {
    const int bit = r / 8 * (K::kN / 4) + key / 8 * 2 + key % 2;
    const int lane = r % 8 * 4 + key % 8 / 2;
    const int word = ((group * 4 + warp) * 32 + lane) * K::kMaskWords + bit / 32;
    return bits[word] >> bit % 32 & 1;
  }
};

}  // namespace stof::attention::sm90
