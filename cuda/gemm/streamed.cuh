// C = epilogue(A B^T) of at most sixteen rows of A for sm_90: the time is that of reading B, as in
// sixteen_rows.cuh, but B comes through shared memory, by copies that need no registers.
//
// A CTA has kColumns of the output, and all of K: nothing is added up between CTAs. Its warps have
// 64 of K in turn. Each loads what it multiplies, of these columns and of A's rows, into buffers of
// its own: one thread that loads for all would be too slow. Products are on mma.sync.
//
// If no kernel before this one writes B, as much of it as there are buffers for is loaded before
// those have ended, and the next kernel may come as soon as all CTAs of this one are there.
//
// Sums are in fp32, in an order that depends on nothing but K.
#pragma once

#include "epilogue/ahead.cuh"
#include "epilogue/stages.cuh"
#include "gemm/few_sums.cuh"
#include "pipeline.cuh"
#include "ptx/grid.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "types.cuh"

namespace stof::gemm {

// kLeast: bytes of shared memory that it has at least, so that an SM has no two of its CTAs.
template <typename T, int kRows, int kColumns, int kBuffers, class Epilogue, bool kBounded,
          int kLeast = 0>
struct Streamed {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kMinBlocks = 2;  // another kernel's, which are there when these end
  static constexpr int kK = 64;         // the 128 bytes that a swizzled box is wide
  static constexpr int kHalves = Epilogue::kHalves;
  static constexpr int kTiles = kColumns / 8;  // of the output
  static constexpr int kTilesOfB = kTiles * kHalves;
  static constexpr int kBlocks = kRows / 8;
  static_assert(kRows == 8 || kRows == 16);
  static_assert(kColumns % 8 == 0, "a swizzle atom has 8 rows");

  using End = FewSums<T, kTilesOfB, kBlocks, kWarps, Epilogue>;
  static constexpr int kBytesA = kRows * 128;
  static constexpr int kBytesB = kTilesOfB * 8 * 128;
  static constexpr int kB = kWarps * kBuffers * kBytesA;
  static constexpr int kSums = kB + kWarps * kBuffers * kBytesB;
  static constexpr int kBarriers = kSums + kWarps * End::kBytes;
  static constexpr int kUsed = kBarriers + kWarps * kBuffers * 8;
  static constexpr int kSmemBytes = kUsed > kLeast ? kUsed : kLeast;

  struct Params {
    ptx::TensorMap map_a, map_b;  // boxes of m x 64, and kColumns x 64
    T* c;
    const void* bias;  // see epilogue::Operands
    const void* residual;
    u32* report;              // see Waiter
    i64 residual_row, c_row;  // strides in elements
    int m, n, k;              // of the output
    int pairs_residual;
    int constant;  // no kernel before writes B and bias
    float scale;
  };

  using Position = RingPosition<kBuffers>;
  enum Wait { kFull = 1 };  // see Waiter

  const Params& p;
  const u32 smem;
  const int warp, lane;
  const int col;

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const Streamed self = {p, ptx::shared_address(memory), warp, lane,
                           static_cast<int>(blockIdx.x) * kColumns};
    self.work(reinterpret_cast<float*>(memory + kSums));
  }

  __device__ __forceinline__ u32 a(Position at) const {
    return smem + (warp * kBuffers + at.buffer()) * kBytesA;
  }
  __device__ __forceinline__ u32 b(Position at) const {
    return smem + kB + (warp * kBuffers + at.buffer()) * kBytesB;
  }
  __device__ __forceinline__ u32 full(Position at) const {
    return smem + kBarriers + (warp * kBuffers + at.buffer()) * 8;
  }
  // Of K, the warp's `at`-th turn.
  __device__ __forceinline__ int k(Position at) const {
    return (static_cast<int>(at.count) * kWarps + warp) * kK;
  }

  __device__ __forceinline__ void work(float* shared) const {
    if (lane == 0) {
      for (u32 i = 0; i < kBuffers; ++i) ptx::mbarrier_init(full({i}), 1);
      ptx::mbarrier_init_fence();
      ptx::prefetch(p.map_a);
      ptx::prefetch(p.map_b);
    }
    if (p.constant)
      ptx::let_next_kernel_come();
    else
      ptx::after_earlier_kernels();
    if (lane == 0)
      for (Position at; at.count < kBuffers; at.advance()) {
        load_b(at);
        if (!p.constant) load_a(at);
      }
    epilogue::Operands operands = {p.bias, p.residual, p.residual_row, p.scale,
                                   p.m,    p.n,        p.n * kHalves,  p.pairs_residual};
    epilogue::Columns<Epilogue, T, kTiles> ahead;
    ahead.load(operands, col + kColumns <= p.n, [&](int i) { return col + 8 * i + lane % 4 * 2; });
    if (p.constant) {
      ptx::after_earlier_kernels();
      if (lane == 0)
        for (Position at; at.count < kBuffers; at.advance()) load_a(at);
    }
    __syncwarp();
    typename End::Residual residual;
    residual.load(operands, warp, lane, col);
    operands.has_residual = true;
    float sums[kTilesOfB][4] = {};
    const Waiter<kBounded> wait(p.report);
#pragma unroll 1
    for (Position at; k(at) < p.k; at.advance()) {
      wait(full(at), at.full(), kFull);
      multiply(sums, at);
      __syncwarp();
      if (lane == 0) {
        load_b({at.count + kBuffers});
        load_a({at.count + kBuffers});
      }
    }
    End::finish(p, operands, ahead, sums, shared, warp, warp, lane, col, residual);
  }

  // If there is so much of K; its buffer has been read. A's rows come after it.
  __device__ __forceinline__ void load_b(Position at) const {
    if (k(at) >= p.k) return;
    ptx::mbarrier_arrive_expect(full(at), p.m * 128 + kBytesB);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      ptx::tma_load(b(at) + half * (kTiles * 8 * 128), p.map_b, full(at), k(at), col + half * p.n,
                    0, 0, ptx::L2::kNormal);
  }

  __device__ __forceinline__ void load_a(Position at) const {
    if (k(at) >= p.k) return;
    ptx::tma_load(a(at), p.map_a, full(at), k(at), 0, 0, 0, ptx::L2::kNormal);
  }

  __device__ __forceinline__ void multiply(float (&sums)[kTilesOfB][4], Position at) const {
    // Where a lane's row of a matrix of ldmatrix is, but for which 16 bytes of it.
    const u32 row_a = a(at) + (kBlocks == 2 ? lane % 16 : lane % 8) * 128;
    const u32 row_b = b(at) + lane % 8 * 128;
    const auto swizzled = [&](int unit) { return (unit ^ lane % 8) * 16; };
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {  // of 16 of K
      u32 of_a[2][4] = {};
      if constexpr (kBlocks == 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          ptx::ldmatrix_x4(of_a[i], row_a + swizzled(4 * pair + 2 * i + lane / 16));
      } else {
        u32 both[4];
        ptx::ldmatrix_x4(both, row_a + swizzled(4 * pair + lane / 8));
#pragma unroll
        for (int i = 0; i < 4; ++i) of_a[i / 2][i % 2 * 2] = both[i];
      }
#pragma unroll
      for (int tile = 0; tile < kTilesOfB; ++tile) {
        u32 of_b[4];
        ptx::ldmatrix_x4(of_b, row_b + tile * (8 * 128) + swizzled(4 * pair + lane / 8));
        ptx::mma_m16n8k16<T>(sums[tile], of_a[0], of_b[0], of_b[1]);
        ptx::mma_m16n8k16<T>(sums[tile], of_a[1], of_b[2], of_b[3]);
      }
    }
  }
};

}  // namespace stof::gemm
