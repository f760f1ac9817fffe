// The 64 x 64 blocks of the output on their way through a warpgroup's shared memory in the sm_90a
// GEMM: the residual comes into a buffer, the result takes its place there, and leaves.
#pragma once

#include "epilogue/operands.cuh"
#include "gemm/result.cuh"
#include "gemm/sm90_pieces.cuh"
#include "gemm/sm90_shape.cuh"
#include "pipeline.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"

namespace stof::gemm::sm90 {

// The 64 x 64 blocks of a unit that lie in the output, row after row.
struct Blocks {
  int row, col;      // of the first, in the output
  int down, across;  // how many
};

// Of a warpgroup.
template <class K>
struct Buffers {
  using T = typename K::T;

  const typename K::Params& p;
  const u32 smem;
  const int group, thread;
  const Waiter<K::kBounded> wait;
  const u32 memory = K::out(smem, group);
  u32 count = 0;  // blocks sent

  __device__ __forceinline__ void sync() const { sync_warpgroup(group); }

  // The buffer of the block that is sent next, or of one so many behind it, and where it is.
  __device__ __forceinline__ u32 number(u32 behind = 0) const {
    return (count + behind) % K::kBuffers;
  }
  __device__ __forceinline__ u32 address(u32 number) const {
    return memory + number * K::kBlockBytes;
  }

  // Where a pair of columns of a row is in a buffer: in 128-byte swizzled rows, as a box has them.
  __device__ static __forceinline__ u32 place(u32 buffer, int row, int pair) {
    return buffer + row * 128 + ((pair / 4 ^ row % 8) << 4) + pair % 4 * 4;
  }

  // Starts to read the residual of a unit's first blocks, as far as there are buffers for it.
  __device__ __forceinline__ void read_first(const Blocks& all) const {
    if (thread != 0 || !p.mapped_residual) return;
    ptx::bulk_wait_read();
#pragma unroll 1
    for (int i = 0; i < K::kBuffers; ++i) read_block(all, count, i);
  }

  // Starts to read the residual of a unit's i-th block, where `before` were stored before the unit.
  __device__ __forceinline__ void read_block(const Blocks& all, u32 before, int i) const {
    if (i >= all.down * all.across) return;
    const u32 number = (before + i) % K::kBuffers;
    const u32 barrier = K::ahead(smem, group, number);
    ptx::mbarrier_arrive_expect(barrier, K::kBlockBytes);
    ptx::tma_load(address(number), p.map_residual, barrier, all.col + K::slab(i % all.across),
                  all.row + i / all.across * 64, 0, 0, ptx::L2::kNormal);
  }

  // Reads on into the buffer of the block before the last one, which has left, or is about to.
  __device__ __forceinline__ void read_next(const Blocks& all, u32 before) const {
    if (thread != 0 || !p.mapped_residual) return;
    const int next = static_cast<int>(count - before) - 2 + K::kBuffers;
    if (next < K::kBuffers) return;
    ptx::bulk_wait_read<1>();
    read_block(all, before, next);
  }

  // Reads on, of a unit none of which was sent, where the residual has been read by all.
  __device__ __forceinline__ void read_rest(const Blocks& all, u32 before) const {
    if (!p.mapped_residual) return;
    sync();
    if (thread != 0) return;
#pragma unroll 1
    for (int i = K::kBuffers; i < all.down * all.across; ++i) read_block(all, before, i);
  }

  // Waits until the buffer that is sent next may be written.
  __device__ __forceinline__ void wait_sent() const {
    if (thread == 0) ptx::bulk_wait_read<K::kBuffers - 1>();
    sync();
  }

  // Waits for the residual of the next block, or of one behind it.
  __device__ __forceinline__ void wait_for(u32 number, u32 behind = 0) const {
    wait(K::ahead(smem, group, number), (count + behind) / K::kBuffers & 1, kResidual);
  }

  // Waits until the next block may be staged: the buffer is free, and has the residual.
  __device__ __forceinline__ void make_ready(u32 buffer, u32 number, int row, int col) const {
    if (K::kReadsAhead && p.mapped_residual) {
      wait_for(number);
      return;
    }
    if (thread == 0) ptx::bulk_wait_read<K::kBuffers - 1>();
    sync();
    if constexpr (K::kReadsAhead) {
      fill(buffer, row, col);
      sync();
    }
  }

  // The residual, where there is no tensor map of it.
  __device__ __forceinline__ void fill(u32 buffer, int row, int col) const {
#pragma unroll 4
    for (int i = thread; i < 64 * 32; i += 128) {
      const int r = i / 32, pair = i % 32;
      u32 x = 0;
      if (row + r < p.m) {
        const T* const from = static_cast<const T*>(p.residual) +
                              static_cast<i64>(row + r) * p.residual_row + col + 2 * pair;
        x = epilogue::load_pair(from, p.n - col - 2 * pair, p.pairs_residual != 0);
      }
      ptx::store_shared_4(place(buffer, r, pair), x);
    }
  }

  // Where this lane's 16 bytes of 16 columns are.
  __device__ __forceinline__ u32 columns(u32 buffer, int j) const {
    const int row = thread / 32 * 16 + thread % 16;
    return place(buffer, row, 4 * (2 * j + thread % 32 / 16));
  }

  // 16 columns of a warp's rows, from a buffer and to it. All lanes have read what is overwritten:
  // what they write depends on it.
  __device__ __forceinline__ void get(u32 buffer, int j, u32 (&r)[4]) const {
    ptx::ldmatrix_x4(r, columns(buffer, j));
  }
  __device__ __forceinline__ void put(u32 buffer, int j, const u32 (&r)[4]) const {
    ptx::stmatrix_x4(columns(buffer, j), r[0], r[1], r[2], r[3]);
  }

  // Of a buffer to where it belongs in the output.
  __device__ __forceinline__ void send(u32 buffer, int row, int col) const {
    if (p.mapped_c) {
      ptx::fence_async_proxy();
      sync();
      if (thread == 0) {
        if constexpr (K::Epilogue::kHeads)
          ptx::tma_store(p.map_c, buffer, col % p.head_dim, row % p.seq, col / p.head_dim,
                         row / p.seq);
        else
          ptx::tma_store(p.map_c, buffer, col, row, 0, 0);
        ptx::bulk_commit();
      }
      return;
    }
    sync();
#pragma unroll 1
    for (int i = thread; i < 64 * 32; i += 128) {
      const int r = i / 32, pair = i % 32;
      store_pair<K::Epilogue::kHeads, T>(p, row + r, col + 2 * pair,
                                         ptx::load_shared_4(place(buffer, r, pair)));
    }
    if constexpr (K::kReadsAhead) {  // before the residual of another block is copied here
      ptx::fence_async_proxy();
      sync();
    }
  }
};

}  // namespace stof::gemm::sm90
