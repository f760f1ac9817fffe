// What becomes of a warpgroup's sums in the sm_90a GEMM: added up with those of other pieces of K,
// taken through the epilogue, rounded and stored.
#pragma once

#include "gemm/sm90_shape.cuh"
#include "ptx/convert.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"

namespace stof::gemm::sm90 {

template <class K>
struct Output {
  using Params = typename K::Params;
  using T = typename K::T;
  using Sums = float[K::kBlocks][K::kN / 2];
  enum NamedBarrier { kWarpgroup = 4 };  // plus the warpgroup's number

  const Params& p;
  const u32 smem;
  const int rank, group, thread;
  const int sharer;  // which part of a tile is this warpgroup's
  const u32 memory;  // of the warpgroup
  u32 count = 0;     // buffers filled

  __device__ __forceinline__ Output(const Params& params, u32 shared, int cta, int warpgroup)
      : p(params),
        smem(shared),
        rank(cta),
        group(warpgroup),
        thread(threadIdx.x % 128),
        sharer(K::kPingPong ? 0 : warpgroup),
        memory(shared + K::kOut + warpgroup * K::kOutBytes) {}

  __device__ __forceinline__ void take(Sums& sums, const Unit& unit) {
    if constexpr (K::kSplit) {
      if (!add_up(sums, unit)) return;
    }
    if constexpr (K::kSwapped)
      store_transposed(sums, unit);
    else
      store(sums, unit);
  }

  // Shared memory has to stay until it has been read.
  __device__ __forceinline__ void finish() const {
    if (!K::kSwapped && thread == 0) ptx::bulk_wait_read();
  }

  __device__ __forceinline__ void sync() const { ptx::barrier_sync(kWarpgroup + group, 128); }

  // The first of a unit's rows of A that are this warpgroup's.
  __device__ __forceinline__ int first_row(const Unit& unit) const {
    return (unit.tile_a + rank) * K::kM + sharer * (K::kBlocks * 64);
  }

  // Adds up the pieces of K, always in the same order. Returns false if some are missing: then
  // another warpgroup, which is done later, does it.
  __device__ __forceinline__ bool add_up(Sums& sums, const Unit& unit) const {
    constexpr int kVectors = K::kN / 8;
    constexpr int kPiece = K::kBlocks * kVectors * 128;  // vectors of a warpgroup
    const int part = (unit.tile * K::kCluster + rank) * K::kSharers + sharer;
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
    sync();
    const u32 flag = smem + K::kFlags + 4 * group;
    if (thread == 0) {
      const bool last = atomicAdd(p.counters + part, 1) == p.splits - 1;
      if (last) p.counters[part] = 0;
      ptx::store_shared_4(flag, last);
    }
    sync();
    if (ptx::load_shared_4(flag) == 0) return false;
    __threadfence();
#pragma unroll
    for (int block = 0; block < K::kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < K::kN / 2; ++i) sums[block][i] = 0.f;
#pragma unroll 1
    for (int piece = 0; piece < p.splits; ++piece) {
#pragma unroll
      for (int block = 0; block < K::kBlocks; ++block)
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          // Not from L1, which may hold what was there before.
          const float4 x = __ldcg(pieces + piece * kPiece + (block * kVectors + i) * 128);
          sums[block][4 * i] += x.x;
          sums[block][4 * i + 1] += x.y;
          sums[block][4 * i + 2] += x.z;
          sums[block][4 * i + 3] += x.w;
        }
    }
    return true;
  }

  __device__ __forceinline__ void store(const Sums& sums, const Unit& unit) {
    const epilogue::Operands operands = K::operands(p);
    constexpr int kColumns = K::kN / K::kHalves;
#pragma unroll
    for (int block = 0; block < K::kBlocks; ++block) {
      const int row = first_row(unit) + 64 * block;
      if (row >= p.m) return;
#pragma unroll
      for (int slab = 0; slab < kColumns / 64; ++slab) {
        const int col = unit.tile_b * kColumns + 64 * slab;
        if (col < p.n) {
          const u32 buffer = memory + count++ % K::kBuffers * K::kBlockBytes;
          if (thread == 0) ptx::bulk_wait_read<K::kBuffers - 1>();
          sync();
          stage(sums[block], buffer, slab, row, col, operands);
          send(buffer, row, col);
        }
      }
    }
  }

  // 64 columns of the output to a buffer, in 128-byte swizzled rows, as a box expects them.
  __device__ __forceinline__ void stage(const float (&sums)[K::kN / 2], u32 buffer, int slab,
                                        int row, int col,
                                        const epilogue::Operands& operands) const {
    const int lane = thread % 32;
    const i64 own_row = row + thread / 32 * 16 + lane / 4;
    const int to_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u32 r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 8 columns and 8 rows each
        const int fragment = 8 * slab + 2 * j + i / 2;
        float x[K::kHalves][2];
#pragma unroll
        for (int half = 0; half < K::kHalves; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            x[half][e] = sums[4 * (K::kHalves * fragment + half) + 2 * (i % 2) + e];
        K::Epilogue::template apply<T>(x, operands, own_row + 8 * (i % 2),
                                       col + 16 * j + 8 * (i / 2) + 2 * (lane % 4));
        r[i] = ptx::pack<T>(x[0][0], x[0][1]);
      }
      const int chunk = (2 * j + lane / 16) ^ to_row % 8;
      ptx::stmatrix_x4(buffer + to_row * 128 + (chunk << 4), r[0], r[1], r[2], r[3]);
    }
  }

  __device__ __forceinline__ void send(u32 buffer, int row, int col) const {
    if (p.mapped_c) {
      ptx::fence_async_proxy();
      sync();
      if (thread == 0) {
        ptx::tma_store(p.map_c, buffer, col, row, 0, 0);
        ptx::bulk_commit();
      }
      return;
    }
    sync();
#pragma unroll 1
    for (int i = thread; i < 64 * 32; i += 128) {
      const int r = i / 32, pair = i % 32;
      const u32 x = ptx::load_shared_4(buffer + r * 128 + ((pair / 4 ^ r % 8) << 4) + pair % 4 * 4);
      store_pair(row + r, col + 2 * pair, x);
    }
  }

  __device__ __forceinline__ void store_pair(i64 row, int col, u32 x) const {
    if (row >= p.m || col >= p.n) return;
    T* const to = p.c + row * p.c_row + col;
    if (p.pairs_c && col + 1 < p.n) {
      *reinterpret_cast<u32*>(to) = x;
    } else {
      to[0] = T{static_cast<u16>(x & 0xffff)};
      if (col + 1 < p.n) to[1] = T{static_cast<u16>(x >> 16)};
    }
  }

  // For sums whose rows are columns of the output.
  __device__ __forceinline__ void store_transposed(const Sums& sums, const Unit& unit) const {
    const epilogue::Operands operands = K::operands(p);
    const int warp = thread / 32, lane = thread % 32;
    const auto at = [&](int row, int col) { return memory + (row * K::kPitch + col) * 4; };
    sync();  // the sums before have been read
#pragma unroll
    for (int i = 0; i < K::kN / 2; ++i)
      ptx::store_shared_4(
          at(i / 4 * 8 + lane % 4 * 2 + i % 2, warp * 16 + lane / 4 + i / 2 % 2 * 8),
          __builtin_bit_cast(u32, sums[0][i]));
    sync();
    constexpr int kPairs = 32 / K::kHalves;
    const int col = first_row(unit) / K::kHalves + 2 * lane;
    const int from = K::kHalves == 1 ? 2 * lane : lane / 4 * 16 + lane % 4 * 2;
#pragma unroll 1
    for (int i = warp; i < K::kN && lane < kPairs; i += 4) {
      const i64 row = static_cast<i64>(unit.tile_b) * K::kN + i;
      float x[K::kHalves][2];
#pragma unroll
      for (int half = 0; half < K::kHalves; ++half) {
        const uint2 both = ptx::load_shared_8(at(i, from + 8 * half));
        x[half][0] = __builtin_bit_cast(float, both.x);
        x[half][1] = __builtin_bit_cast(float, both.y);
      }
      K::Epilogue::template apply<T>(x, operands, row, col);
      store_pair(row, col, ptx::pack<T>(x[0][0], x[0][1]));
    }
  }
};

}  // namespace stof::gemm::sm90
