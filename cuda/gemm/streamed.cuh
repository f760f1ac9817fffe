// C = epilogue(A B^T) of at most sixteen rows of A for sm_90: the time is that of reading B, as in
// sixteen_rows.cuh, but B comes through shared memory, by copies that need no registers.
//
// A CTA has kColumns of the output, and all of K: nothing is added up between CTAs. Its warps have
// 64 of K in turn. Each loads what it multiplies, of these columns and of A's rows, into buffers of
// its own: one thread that loads for all would be too slow. Products are on mma.sync.
//
// With kRoom bytes for them, rows of A are normalised first, by RMSNorm: each CTA does that for
// itself, and keeps all of K of them.
//
// A kernel that is launched early may load B, if no kernel before it writes it, before those have
// ended: as much as there are buffers for, and the rest into L2.
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
#include "ptx/prefetch.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "types.cuh"
#include "vector.cuh"
#include "warp.cuh"

namespace stof::gemm {

// kLeast: bytes of shared memory that it has at least, so that an SM has no two of its CTAs.
// kStays: a CTA goes on with columns further on, as far as the grid is wide, and loads go on
// meanwhile.
template <typename T, int kRows, int kColumns, int kBuffers, class Epilogue, bool kBounded,
          int kRoom = 0, int kLeast = 0, bool kStays = false>
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

  static constexpr bool kNormed = kRoom > 0;
  static_assert(kRoom % 1024 == 0, "a swizzle atom has 1024 bytes");

  using End = FewSums<T, kTilesOfB, kBlocks, kWarps, Epilogue>;
  static constexpr int kBytesA = kNormed ? 0 : kRows * 128;  // of a load
  static constexpr int kBytesB = kTilesOfB * 8 * 128;
  static constexpr int kB = kRoom + kWarps * kBuffers * kBytesA;
  static constexpr int kSums = kB + kWarps * kBuffers * kBytesB;
  static constexpr int kBarriers = kSums + kWarps * End::kBytes;
  static constexpr int kUsed = kBarriers + kWarps * kBuffers * 8;
  static constexpr int kSmemBytes = kUsed > kLeast ? kUsed : kLeast;

  struct Params {
    ptx::TensorMap map_a, map_b;  // boxes of m x 64, and kColumns x 64
    T* c;
    const void* bias;  // see epilogue::Operands
    const void* residual;
    u32* report;  // see Waiter
    const T* a;   // and `norm`, (k,), both 16-byte aligned in their rows; if kNormed
    const T* norm;
    i64 residual_row, c_row, a_row;  // strides in elements
    int m, n, k;                     // of the output
    int pairs_residual;
    int constant;  // no kernel before writes B, bias and norm; 2: all of B may be asked for
    int early;     // the next kernel may come before those before have ended
    int once;      // L2 may forget B first
    float scale, eps;
  };

  using Position = RingPosition<kBuffers>;
  // Of a warp's loads: where in its ring, which of its turns along K, and the first column.
  struct Place {
    Position ring;
    int turn, col;
  };
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
  __device__ __forceinline__ int k(const Place& at) const { return (at.turn * kWarps + warp) * kK; }
  __device__ __forceinline__ bool there(const Place& at) const {
    return k(at) < p.k && (!kStays || at.col < p.n);
  }
  __device__ __forceinline__ int next(int col) const {
    return col + static_cast<int>(gridDim.x) * kColumns;
  }
  __device__ __forceinline__ void advance(Place& at) const {
    at.ring.advance();
    ++at.turn;
    if (kStays && k(at) >= p.k) {
      at.turn = 0;
      at.col = next(at.col);
    }
  }

  __device__ __forceinline__ void work(float* shared) const {
    if (lane == 0) {
      for (u32 i = 0; i < kBuffers; ++i) ptx::mbarrier_init(full({i}), 1);
      ptx::mbarrier_init_fence();
      ptx::prefetch(p.map_a);
      ptx::prefetch(p.map_b);
    }
    if (p.early) ptx::let_next_kernel_come();
    if (!p.constant) ptx::after_earlier_kernels();
    const Place first = {{}, 0, col};
    Place loaded = first;
    for (int i = 0; i < kBuffers; ++i) {
      if (lane == 0) {
        load_b(loaded);
        if (!p.constant) load_a(loaded);
      }
      advance(loaded);
    }
    if (lane == 0 && p.constant == 2)
      for (Place at = loaded; there(at) && at.col == col; advance(at)) ask_b(at);
    __syncwarp();
    epilogue::Operands operands = {p.bias, p.residual, p.residual_row, p.scale,
                                   p.m,    p.n,        p.n * kHalves,  p.pairs_residual};
    epilogue::Columns<Epilogue, T, kTiles> ahead;
    const auto load_columns = [&](int from) {
      ahead.load(operands, from + kColumns <= p.n,
                 [&](int i) { return from + 8 * i + lane % 4 * 2; });
    };
    load_columns(col);
    if constexpr (kNormed) load_norm();
    typename End::Residual residual;
    if (p.constant) {
      ptx::after_earlier_kernels();
      if (lane == 0) {
        Place at = first;
        for (int i = 0; i < kBuffers; ++i, advance(at)) load_a(at);
      }
      __syncwarp();
      residual.load(operands, warp, lane, col);
      operands.has_residual = true;
    }
    if constexpr (kNormed) normalise(shared);
    const Waiter<kBounded> wait(p.report);
    Place at = first;
    for (int here = col;;) {
      float sums[kTilesOfB][4] = {};
#pragma unroll 1
      for (; there(at) && (!kStays || at.col == here); advance(at), advance(loaded)) {
        wait(full(at.ring), at.ring.full(), kFull);
        multiply(sums, at);
        __syncwarp();
        if (lane == 0) {
          load_b(loaded);
          load_a(loaded);
        }
      }
      End::finish(p, operands, ahead, sums, shared, warp, warp, lane, here, residual);
      if constexpr (!kStays) return;
      here = next(here);
      if (here >= p.n) return;
      load_columns(here);
      if (p.constant) residual.load(operands, warp, lane, here);
      __syncthreads();  // before others' sums are written over
    }
  }

  // If it is there; its buffer has been read. A's rows come after it.
  __device__ __forceinline__ void load_b(const Place& at) const {
    if (!there(at)) return;
    const u32 barrier = full(at.ring);
    ptx::mbarrier_arrive_expect(barrier, (kNormed ? 0 : p.m * 128) + kBytesB);
    const ptx::L2 use = p.once ? ptx::L2::kOnce : ptx::L2::kNormal;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      ptx::tma_load(b(at.ring) + half * (kTiles * 8 * 128), p.map_b, barrier, k(at),
                    at.col + half * p.n, 0, 0, use);
  }

  __device__ __forceinline__ void load_a(const Place& at) const {
    if (kNormed || !there(at)) return;
    ptx::tma_load(a(at.ring), p.map_a, full(at.ring), k(at), 0, 0, 0, ptx::L2::kNormal);
  }

  __device__ __forceinline__ void ask_b(const Place& at) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      ptx::prefetch_l2(p.map_b, k(at), at.col + half * p.n, 0, 0);
  }

  // ---------------------------------------------------------------- rows that are normalised
  //
  // They lie in shared memory as 64 of K of all rows, the next 64 and so on, swizzled as a copy's
  // box; behind them the norm's weight. Threads have vectors of eight of K in turn.

  __device__ __forceinline__ int vectors() const { return (p.k + 63) / 64 * 8; }
  __device__ __forceinline__ u32 normalised(int row, int vector) const {
    return smem + (vector / 8 * p.m + row) * 128 + (vector % 8 ^ row % 8) * 16;
  }
  __device__ __forceinline__ u32 weight(int vector) const {
    return smem + (vectors() * p.m + vector) * 16;
  }

  // Zeros beyond K.
  __device__ __forceinline__ uint4 eight(const T* from, int vector) const {
    const int valid = p.k - 8 * vector;
    return valid >= 8 ? bits8<true>(from + 8 * vector, 8) : bits8<false>(from + 8 * vector, valid);
  }

  __device__ __forceinline__ void load_norm() const {
    for (int v = threadIdx.x; v < vectors(); v += kThreads)
      ptx::store_shared_16(weight(v), eight(p.norm, v));
  }

  // `shared` has room for what warps know of each row.
  __device__ __forceinline__ void normalise(float* shared) const {
    float squares[kRows] = {};
    for (int v = threadIdx.x; v < vectors(); v += kThreads) {
      uint4 raw[kRows] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (r < p.m) raw[r] = eight(p.a + r * p.a_row, v);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (r < p.m) {
          const auto x = Vector8<T>::of(raw[r]);
          squares[r] += x.template squares<true>(0.f, 8);
          ptx::store_shared_16(normalised(r, v), raw[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (r < p.m) {
        const float sum = warp_sum(squares[r]);
        if (lane == 0) shared[r * kWarps + warp] = sum;
      }
    __syncthreads();
    for (int r = 0; r < p.m; ++r) {
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) sum += shared[r * kWarps + i];
      const float factor = rsqrtf(sum / p.k + p.eps);
      for (int v = threadIdx.x; v < vectors(); v += kThreads) {
        const auto w = Vector8<T>::of(ptx::load_shared_16(weight(v)));
        const auto x = Vector8<T>::of(ptx::load_shared_16(normalised(r, v)));
        u32 y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          y[i] = ptx::pack<T>(x.x[2 * i] * factor * w.x[2 * i],
                              x.x[2 * i + 1] * factor * w.x[2 * i + 1]);
        ptx::store_shared_16(normalised(r, v), make_uint4(y[0], y[1], y[2], y[3]));
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void multiply(float (&sums)[kTilesOfB][4], const Place& at) const {
    // Where a lane's row of a matrix of ldmatrix is, but for which 16 bytes of it. Rows beyond the
    // last, which are not stored, are not there if kNormed.
    const int of_block = kBlocks == 2 ? lane % 16 : lane % 8;
    const int row = kNormed ? min(of_block, p.m - 1) : of_block;
    const u32 row_a = (kNormed ? smem + k(at) / 64 * p.m * 128 : a(at.ring)) + row * 128;
    const u32 row_b = b(at.ring) + lane % 8 * 128;
    const auto swizzled_a = [&](int unit) { return (unit ^ row % 8) * 16; };
    const auto swizzled = [&](int unit) { return (unit ^ lane % 8) * 16; };
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {  // of 16 of K
      u32 of_a[2][4] = {};
      if constexpr (kBlocks == 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          ptx::ldmatrix_x4(of_a[i], row_a + swizzled_a(4 * pair + 2 * i + lane / 16));
      } else {
        u32 both[4];
        ptx::ldmatrix_x4(both, row_a + swizzled_a(4 * pair + lane / 8));
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
