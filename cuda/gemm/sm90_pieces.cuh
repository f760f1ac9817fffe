// The sums of a tile in the sm_90a GEMM whose K is cut into pieces: added up through memory, by the
// warpgroup that is done last, or through the shared memory of a cluster that has all of them.
#pragma once

#include "gemm/sm90_shape.cuh"
#include "ptx/cluster.cuh"
#include "ptx/shared.cuh"
#include "ptx/sync.cuh"
#include "unroll.cuh"

namespace stof::gemm::sm90 {

// All threads of a warpgroup meet.
__device__ __forceinline__ void sync_warpgroup(int number) {
  constexpr int kFirst = 4;  // named barrier
  ptx::barrier_sync(kFirst + number, 128);
}

// Of a warpgroup.
template <class K>
struct Pieces {
  using Sums = float[K::kBlocks][K::kN / 2];

  const typename K::Params& p;
  const u32 smem;
  const int rank, group, thread;
  const int sharer;  // which part of a tile is this warpgroup's

  // Adds up the pieces of K, always in the same order. Returns false if some are missing: then
  // another warpgroup, which is done later, does it.
  __device__ __forceinline__ bool add_up(Sums& sums, const Unit& unit) const {
    constexpr int kVectors = K::kN / 8;
    constexpr int kPiece = K::kBlocks * kVectors * 128;  // vectors of a warpgroup
    // Whole tiles of a stream come first, and need no room.
    const int part = ((unit.tile - p.whole) * K::kCtas + rank) * K::kSharers + sharer;
    float4* const pieces =
        reinterpret_cast<float4*>(p.partial) + static_cast<i64>(part) * p.splits * kPiece + thread;
    float4* const mine = pieces + static_cast<i64>(unit.split) * kPiece;
#pragma unroll
    for (int block = 0; block < K::kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        mine[(block * kVectors + i) * 128] =
            make_float4(sums[block][4 * i], sums[block][4 * i + 1], sums[block][4 * i + 2],
                        sums[block][4 * i + 3]);
    __threadfence();
    sync_warpgroup(group);
    const u32 flag = smem + K::kFlags + 4 * group;
    if (thread == 0) {
      const bool last = atomicAdd(p.counters + part, 1) == unit.pieces - 1;
      if (last) p.counters[part] = 0;
      ptx::store_shared_4(flag, last);
    }
    sync_warpgroup(group);
    if (ptx::load_shared_4(flag) == 0) return false;
    __threadfence();
#pragma unroll
    for (int block = 0; block < K::kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < K::kN / 2; ++i) sums[block][i] = 0.f;
    // Of small tiles several at a time: they come from L2, one of them after long.
    constexpr int kAtOnce = K::kBlocks * kVectors >= 8 ? 1 : 8 / (K::kBlocks * kVectors);
#pragma unroll 1
    for (int first = 0; first < unit.pieces; first += kAtOnce) {
      float4 x[kAtOnce][K::kBlocks * kVectors];
#pragma unroll
      for (int piece = 0; piece < kAtOnce; ++piece)
#pragma unroll
        for (int i = 0; i < K::kBlocks * kVectors; ++i)
          // Not from L1, which may hold what was there before.
          if (first + piece < unit.pieces)
            x[piece][i] = __ldcg(pieces + (first + piece) * kPiece + i * 128);
          else
            x[piece][i] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int piece = 0; piece < kAtOnce; ++piece)
#pragma unroll
        for (int i = 0; i < K::kBlocks * kVectors; ++i) {
          float* const sum = sums[i / kVectors] + 4 * (i % kVectors);
          sum[0] += x[piece][i].x;
          sum[1] += x[piece][i].y;
          sum[2] += x[piece][i].z;
          sum[3] += x[piece][i].w;
        }
    }
    return true;
  }

  // Which of the cluster's CTAs has a warp's rows g (half 0) or g + 8, if they share rows out.
  __device__ __forceinline__ int owner(int half) const { return eighth(half) / K::kEighths; }
  __device__ __forceinline__ int eighth(int half) const { return thread / 32 * 2 + half; }

  // Adds up the pieces of K that the cluster has, of the rows that are this CTA's.
  __device__ __forceinline__ void join_rows(float (&sums)[K::kN / 2]) const {
    constexpr int kVectors = K::kN / 16;  // of a thread's row
    const auto place = [&](int from, int half) {
      const int part = (from * 2 + group) * K::kEighths + eighth(half) % K::kEighths;
      return smem + part * kVectors * (32 * 16) + thread % 32 * 16;
    };
    ptx::cluster_sync();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (owner(half) == rank) continue;
      const u32 to = place((rank - owner(half) - 1 + K::kJoined) % K::kJoined, half);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const float* const x = sums + 8 * i + 2 * half;
        const float both[4] = {x[0], x[1], x[4], x[5]};
        ptx::store_cluster(to + i * (32 * 16), owner(half), both);
      }
    }
    ptx::cluster_sync();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (owner(half) != rank) continue;
#pragma unroll 1
      for (int from = 0; from < K::kJoined - 1; ++from)  // the next CTA, and so on round
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const uint4 y = ptx::load_shared_16(place(from, half) + i * (32 * 16));
          float* const x = sums + 8 * i + 2 * half;
          x[0] += __builtin_bit_cast(float, y.x);
          x[1] += __builtin_bit_cast(float, y.y);
          x[4] += __builtin_bit_cast(float, y.z);
          x[5] += __builtin_bit_cast(float, y.w);
        }
    }
  }

  // Adds up the pieces of K that the cluster has: 64 columns or more for each CTA, whose sums come
  // to the front. They meet where operands have been, once nobody multiplies any more.
  __device__ __forceinline__ void join(float (&sums)[K::kN / 2]) const {
    constexpr int kEach = K::kN / (64 * K::kJoined);
    const auto place = [&](int from, int part) {
      return smem + ((from * kEach + part) * 2 + group) * K::kJoinedBytes + thread * 16;
    };
    ptx::cluster_sync();
    unrolled<0, K::kN / 64>([&](auto number) {
      constexpr int kSlab = decltype(number)::value, kOwner = kSlab / kEach;
      if (kOwner == rank) return;
      const u32 to = place((rank - kOwner - 1 + K::kJoined) % K::kJoined, kSlab % kEach);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        ptx::store_cluster(to + i * (128 * 16), kOwner, sums + 32 * kSlab + 4 * i);
    });
    ptx::cluster_sync();
    unrolled<kEach, K::kN / 64>([&](auto number) {
      constexpr int kSlab = decltype(number)::value;
      if (kSlab / kEach != rank) return;
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[32 * (kSlab % kEach) + i] = sums[32 * kSlab + i];
    });
#pragma unroll
    for (int from = 0; from < K::kJoined - 1; ++from)  // the next CTA, and so on round
#pragma unroll
      for (int i = 0; i < 8 * kEach; ++i) {
        const uint4 x = ptx::load_shared_16(place(from, i / 8) + i % 8 * (128 * 16));
        sums[4 * i] += __builtin_bit_cast(float, x.x);
        sums[4 * i + 1] += __builtin_bit_cast(float, x.y);
        sums[4 * i + 2] += __builtin_bit_cast(float, x.z);
        sums[4 * i + 3] += __builtin_bit_cast(float, x.w);
      }
  }
};

}  // namespace stof::gemm::sm90
