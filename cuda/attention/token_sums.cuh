// The results of warps, and of CTAs, of token.cuh added up: each has of every head the sum of its
// weighted values, the sum of weights, and the score in base 2 that these are relative to.
#pragma once

#include "attention/softmax.cuh"
#include "attention/token_rows.cuh"
#include "ptx/convert.cuh"
#include "ptx/global.cuh"
#include "ptx/math.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kDim>
struct TokenSums {
  static constexpr int kWarps = 8, kHeads = TokenPlace::kHeads;
  static constexpr int kMostSplits = 64;
  static constexpr int kEach = kMostSplits / kWarps;   // splits of a warp
  static constexpr int kPitch = kDim + 4;              // of a head's sums
  static constexpr int kFours = kDim / 4;              // of columns
  static constexpr int kFloats = kHeads * (kDim + 2);  // of a split in memory: sums, then weights
  static constexpr int kStatsBytes = kWarps * kHeads * 8;
  static constexpr int kBytes = kStatsBytes + 16 + kWarps * kHeads * kPitch * 4;

  struct alignas(16) Four {
    float x[4];

    __device__ static __forceinline__ Four from_l2(const float* from) {
      const uint4 w = ptx::load_l2_16(from);
      return {
          {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)}};
    }
  };
  struct alignas(8) Stats {
    float top, sum;  // kLowest and 0, and values of 0: no key
  };

  // A sum of several. All come to `top`, the highest of theirs, before any is added.
  struct Joined {
    float top = kLowest, sum = 0.f;
    Four o = {};

    __device__ __forceinline__ void add(const Stats& stats, const Four& x) {
      const float share = ptx::exp2(stats.top - top);
      sum = fmaf(stats.sum, share, sum);
#pragma unroll
      for (int i = 0; i < 4; ++i) o.x[i] = fmaf(x.x[i], share, o.x[i]);
    }
  };

  Stats* const stats;  // [kWarps][kHeads]
  int* const flag;
  float* const sums;  // [kWarps][kHeads][kPitch]

  __device__ __forceinline__ TokenSums(char* memory)
      : stats(reinterpret_cast<Stats*>(memory)),
        flag(reinterpret_cast<int*>(memory + kStatsBytes)),
        sums(reinterpret_cast<float*>(memory + kStatsBytes + 16)) {}

  __device__ __forceinline__ Four& of_warp(int warp, int head, int four) const {
    return *reinterpret_cast<Four*>(sums + (warp * kHeads + head) * kPitch + 4 * four);
  }

  // A warp's, as its lanes have them: see token.cuh.
  __device__ __forceinline__ void put(const float (&origin)[2], const float (&sum)[2],
                                      const float (&o)[kDim / 64][4][4], int heads) const {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = 2 * q + c;
      if (head >= heads) continue;
      if (g == 0) stats[warp * kHeads + head] = {origin[c], sum[c]};
#pragma unroll
      for (int block = 0; block < kDim / 64; ++block)
#pragma unroll
        for (int j = 0; j < 4; j += 2)
          of_warp(warp, head, 16 * block + 2 * g + j / 2) = {
              {o[block][j][c], o[block][j][c + 2], o[block][j + 1][c], o[block][j + 1][c + 2]}};
    }
  }

  __device__ __forceinline__ Joined of_warps(int head, int four) const {
    Joined all;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      all.top = fmaxf(all.top, stats[warp * kHeads + head].top);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      all.add(stats[warp * kHeads + head], of_warp(warp, head, four));
    return all;
  }

  // What all warps have put is the result, or that of a split.
  __device__ __forceinline__ void finish(const TokenParams<T>& p, const TokenPlace& place) const {
    if (place.splits == 1) return store(p, place);
    float* const splits = p.partial + static_cast<i64>(place.item) * p.splits * kFloats;
    float* const own = splits + static_cast<i64>(place.split) * kFloats;
    for (int i = threadIdx.x; i < place.heads * kFours; i += kWarps * 32) {
      const Joined all = of_warps(i / kFours, i % kFours);
      *reinterpret_cast<Four*>(own + 4 * i) = all.o;
      if (i % kFours == 0)
        *reinterpret_cast<Stats*>(own + kHeads * kDim + 2 * (i / kFours)) = {all.top, all.sum};
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const bool last = ptx::arrive(p.counters + place.item) == place.splits - 1;
      if (last) p.counters[place.item] = 0;
      *flag = last;
    }
    __syncthreads();
    if (*flag == 0) return;
    gather(splits, place);
    __syncthreads();
    store(p, place);
  }

 private:
  __device__ __forceinline__ void store(const TokenParams<T>& p, const TokenPlace& place) const {
    T* const out = p.out + place.batch * p.out_batch + place.head * p.out_head;
    for (int i = threadIdx.x; i < place.heads * kFours; i += kWarps * 32) {
      const int head = i / kFours, four = i % kFours;
      if (4 * four >= p.head_dim) continue;
      const Joined all = of_warps(head, four);
      const float factor = all.sum == 0.f ? 0.f : ptx::reciprocal(all.sum);
      *reinterpret_cast<uint2*>(out + head * p.out_head + 4 * four) =
          make_uint2(ptx::pack<T>(all.o.x[0] * factor, all.o.x[1] * factor),
                     ptx::pack<T>(all.o.x[2] * factor, all.o.x[3] * factor));
    }
  }

  // Every warp adds up some of the splits, all of whose loads are on their way at once.
  __device__ __forceinline__ void gather(const float* splits, const TokenPlace& place) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = lane; i < place.heads * kFours; i += 32) {
      const int head = i / kFours;
      Stats of[kEach];
      Four x[kEach];
      Joined all;
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int split = warp + n * kWarps;
        const float* const from = splits + static_cast<i64>(split) * kFloats;
        of[n] = {kLowest, 0.f};
        x[n] = {};
        if (split < place.splits) {
          const uint2 w = ptx::load_l2_8(from + kHeads * kDim + 2 * head);
          of[n] = {__uint_as_float(w.x), __uint_as_float(w.y)};
          x[n] = Four::from_l2(from + 4 * i);
        }
      }
#pragma unroll
      for (int n = 0; n < kEach; ++n) all.top = fmaxf(all.top, of[n].top);
#pragma unroll
      for (int n = 0; n < kEach; ++n) all.add(of[n], x[n]);
      of_warp(warp, head, i % kFours) = all.o;
      if (i % kFours == 0) stats[warp * kHeads + head] = {all.top, all.sum};
    }
  }
};

}  // namespace stof::attention
