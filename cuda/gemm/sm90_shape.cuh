// Sizes, parameters and shared memory of the sm_90a GEMM.
#pragma once

#include "epilogue/operands.cuh"
#include "gemm/raster.cuh"
#include "ptx/tma.cuh"
#include "types.cuh"

namespace stof::gemm::sm90 {

// What a wait that took too long was for (Waiter).
enum Wait { kFull = 1, kEmpty, kResidual, kStatistics };

// A piece of work: a tile, or if kSplit some of the steps along K of one.
struct Unit {
  int tile_a, tile_b;
  int first, steps;         // along K
  int tile, split, pieces;  // the tile's number, and which of how many pieces
};

// Where a cluster is in its work: the next unit, and in a stream the next step and the last.
struct Work {
  int unit, step, end;
};

// Tiles are kM rows of A times kN columns of B. Two warpgroups multiply: if kPingPong, each has a
// tile of its own, and one's epilogue runs under the other's products; else they share a tile, one
// above the other. kCluster CTAs have tiles above each other, and each loads a part of B for all.
//
// kTransposedA: A is contiguous along M, and kTransposedB: B is contiguous along N; else along K.
// If kSwapped, A has the columns of the output and B its rows: for few rows, because a product has
// 64 rows at least and may have 8 columns. If kSplit, K is cut into pieces, and who is done last
// adds them up. If kAcross is not 0, as many CTAs of a cluster have all columns of a row, and the
// rows are normalised (sm90_norm.cuh). If kJoined is more than 1, as many CTAs of a cluster have a
// piece of K each, and a cluster has one tile: they share out its columns, 64 or more for each, or
// if it has fewer its rows.
template <typename T_, int kM_, int kN_, int kStages_, bool kPingPong_, int kCluster_,
          bool kTransposedA_, bool kTransposedB_, class Epilogue_, bool kSwapped_, bool kSplit_,
          int kAcross_, bool kBounded_, int kJoined_>
struct Shape {
  using T = T_;
  using Epilogue = Epilogue_;
  static constexpr int kM = kM_;
  static constexpr int kN = kN_;
  static constexpr int kK = 64;  // the 128 bytes that a swizzled box is wide
  static constexpr int kStages = kStages_;
  static constexpr bool kPingPong = kPingPong_;
  static constexpr int kCluster = kCluster_;
  static constexpr bool kTransposedA = kTransposedA_;
  static constexpr bool kTransposedB = kTransposedB_;
  static constexpr bool kSwapped = kSwapped_;
  static constexpr bool kSplit = kSplit_;
  static constexpr int kAcross = kAcross_;
  static constexpr int kJoined = kJoined_;
  static constexpr bool kByRows = kJoined > 1 && kN < 64 * kJoined;
  static constexpr int kCtas = kAcross > 0 ? kAcross : kCluster * kJoined;  // of a cluster
  static constexpr bool kBounded = kBounded_;

  static constexpr int kThreads = 128 * 3;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharers = kPingPong ? 1 : 2;    // warpgroups that work on a tile
  static constexpr int kBlocks = kM / (64 * kSharers);  // products of 64 rows that each has of it
  static constexpr int kHalves = Epilogue::kHalves;
  // A fold takes its two halves from groups of 8 columns in turn, as the tensor map gives them, so
  // that both are in one thread.
  static constexpr bool kFoldedA = kSwapped && kHalves > 1;
  static constexpr bool kFoldedB = !kSwapped && kHalves > 1;
  static_assert(!(kFoldedA && kTransposedA) && !(kFoldedB && kTransposedB));
  static_assert(kM % (64 * kSharers) == 0 && kN % 8 == 0);
  static_assert(!kTransposedB || kN % 64 == 0, "slabs are 64 wide");
  // The output leaves in slabs of 64 columns. Where these do not divide it the last one begins in
  // the one before, and has kAgain of its columns again.
  static constexpr int kColumns = kN / kHalves, kSlabs = ceil_div(kColumns, 64);
  static constexpr int kAgain = kSlabs * 64 - kColumns;
  static_assert(kSwapped ? kBlocks == 1 : kN % kHalves == 0 && kAgain % 16 == 0 && kColumns >= 64);
  static_assert(kSwapped || kAgain == 0 ||
                (kHalves == 1 && kAcross_ == 0 && kJoined_ == 1 && Epilogue::kApart == 0 &&
                 !Epilogue::kStatistics && !Epilogue::kHeads));
  // Coupled columns are in one thread; swapped ones in what a warpgroup transposes.
  static constexpr int kApart = Epilogue::kApart;
  static_assert(kApart == 0 || (kSwapped ? 64 : kN) % (2 * kApart) == 0);
  static_assert(kAcross_ == 0 || (kApart == 0 && !Epilogue::kStatistics && !Epilogue::kHeads));
  static_assert(kHalves == 1 || !Epilogue::kStatistics);
  static_assert(kCluster == 1 || kN % (16 * kCluster) == 0, "parts of B are whole swizzle atoms");

  // The launch gives every thread 168 registers, which the loading warpgroup hands to the others.
  static constexpr int kRegistersOfLoader = 40;
  static constexpr int kRegisters = 232;

  static constexpr int kBlockBytes = 64 * 128;  // 64 rows, or of a transposed operand 64 of K
  static constexpr int kBytesA = kM * 128;
  static constexpr int kBytesB = kN * 128;

  // How the output leaves: as 64 x 64 through buffers, while the next is computed, and the residual
  // comes in through them before; if kSwapped, transposed as floats.
  static constexpr bool kReadsAhead = Epilogue::kResidual && !kSwapped && !kByRows;
  static constexpr int kBuffers = kReadsAhead || kAcross > 0 ? 4 : 2;
  static_assert(kAcross == 0 || kBlocks <= 2);
  static_assert(kAcross == 0 ||
                (kHalves == 1 && kN <= 64 * kBuffers && kCluster == 1 && !kSwapped && !kSplit));
  static constexpr int kJoinedBytes = 64 * 64 * 4;  // of a warpgroup's sums for 64 columns
  static_assert(kJoined == 1 ||
                (kAcross == 0 && kCluster == 1 && kBlocks == 1 && kHalves == 1 && kApart == 0 &&
                 (kByRows || kN % (64 * kJoined) == 0) && !kPingPong && !kSwapped && !kSplit &&
                 kN / 64 * 2 * kJoinedBytes <= kStages * (kBytesA + kBytesB)));
  // Of a warpgroup's rows, eight at a time, so many are a CTA's.
  static constexpr int kEighths = 8 / kJoined;
  static_assert(!kByRows || (8 % kJoined == 0 && kN % 64 == 0 && !Epilogue::kStatistics));
  static constexpr int kPitch = 64 + 4;  // floats; so that a warp's stores hit all banks
  static constexpr int kOutBytes =       // of a warpgroup
      kByRows    ? 0
      : kSwapped ? (kN * kPitch * 4 + 1023) / 1024 * 1024
                 : kBuffers * kBlockBytes;

  static constexpr int kA = 0;
  static constexpr int kB = kA + kStages * kBytesA;
  static constexpr int kOut = kB + kStages * kBytesB;
  static constexpr int kBarriers = kOut + 2 * kOutBytes;
  static constexpr int kAheadBarriers = kBarriers + 2 * 8 * kStages;
  static constexpr int kFlags = kAheadBarriers + (kReadsAhead ? 2 * 8 * kBuffers : 0);
  static constexpr int kToldBarriers = kFlags + 8;  // a word for each warpgroup
  static constexpr int kStatisticsAt = kToldBarriers + (kAcross > 0 ? 2 * 2 * 8 : 0);
  static constexpr int kSmemBytes = kStatisticsAt + 2 * 2 * kAcross * 64 * 8;

  // The first column of a slab of the output, in its tile.
  __device__ static __forceinline__ constexpr int slab(int i) {
    return kAgain > 0 && i == kSlabs - 1 ? kColumns - 64 : 64 * i;
  }

  __device__ static __forceinline__ u32 full(u32 smem, u32 stage) {
    return smem + kBarriers + 16 * stage;
  }
  __device__ static __forceinline__ u32 empty(u32 smem, u32 stage) { return full(smem, stage) + 8; }
  // What a warpgroup has for output on its way.
  __device__ static __forceinline__ u32 out(u32 smem, int group) {
    return smem + kOut + group * kOutBytes;
  }
  // Of a warpgroup's buffer: the residual is there.
  __device__ static __forceinline__ u32 ahead(u32 smem, int group, u32 buffer) {
    return smem + kAheadBarriers + 8 * (group * kBuffers + buffer);
  }

  // Whether a warpgroup has been told by all of the cluster, in turn in one of two places, and what
  // CTA `from` has told: two floats for each of 64 rows.
  __device__ static __forceinline__ u32 told(u32 smem, int place, int group) {
    return smem + kToldBarriers + 8 * (2 * place + group);
  }
  __device__ static __forceinline__ u32 statistics(u32 smem, int place, int group, int from) {
    return smem + kStatisticsAt + ((2 * place + group) * kAcross + from) * (64 * 8);
  }

  struct Params {
    ptx::TensorMap map_a, map_b;  // boxes of kM x 64, and of what a CTA loads of kN x 64
    ptx::TensorMap map_c;         // boxes of 64 x 64; if mapped_c
    ptx::TensorMap map_residual;  // boxes of 64 x 64; if mapped_residual
    T* c;
    const void* bias;  // see epilogue::Operands
    const void* residual;
    const void* norm_weight;  // (n,) of the output's type, 4-byte aligned; if kAcross
    const void* norm_bias;    // null for RMSNorm
    float* partial;  // if kSplit: what warpgroups have summed up, in the order of their registers
    int* counters;   // if kSplit: for each tile and warpgroup 0; and 0 again after the kernel
    u32* report;     // see Waiter
    const float* row_statistics;  // see epilogue::Operands
    const float* column_sums;
    const int* positions;
    const float* frequency;
    float* statistics;        // (m, ceil(n / 64), 2), if Statistics are told
    i64 residual_row, c_row;  // strides in elements
    i64 c_batch, c_head;      // of heads
    int m, n, k;              // of the output
    int tiles_a, tiles_b;     // clusters of tiles along A, tiles along B
    int group;                // see raster
    int splits, split_steps;  // most pieces of K; their steps, fewer in the last; if kSplit
    int stream, whole;        // 0, or each cluster's steps of what comes after so many whole tiles
    int mapped_c, mapped_residual;
    int pairs_c, pairs_residual;  // rows are 4-byte aligned
    int turned, half, head_dim, seq;
    float scale, eps, magnitude;
  };

  __device__ static __forceinline__ Work work(const Params& p) {
    const int cluster = blockIdx.x / kCtas;
    Work w = {cluster, 0, 0};
    if (kSplit && p.stream > 0) {
      w.step = cluster * p.stream;
      w.end = min(w.step + p.stream, (p.tiles_a * p.tiles_b - p.whole) * ceil_div(p.k, kK));
    }
    return w;
  }

  // The next unit of a cluster, if there is one.
  __device__ static __forceinline__ bool next(const Params& p, Work& w, int rank, Unit& u) {
    const int all = ceil_div(p.k, kK), tiles = p.tiles_a * p.tiles_b;
    const bool streams = kSplit && p.stream > 0;
    u.split = 0;
    u.pieces = kSplit && !streams ? p.splits : 1;
    u.first = 0;
    u.steps = all;
    if constexpr (kJoined > 1) {
      u.first = rank * p.split_steps;
      u.steps = min(p.split_steps, all - u.first);
    }
    if (w.unit < (streams ? p.whole : tiles * u.pieces)) {
      u.tile = w.unit / u.pieces;
      if constexpr (kSplit) {
        u.split = w.unit % u.pieces;
        if (!streams) u.first = u.split * p.split_steps;
        if (!streams) u.steps = min(p.split_steps, all - u.first);
      }
      w.unit += gridDim.x / kCtas;
    } else {
      if (!streams || w.step >= w.end) return false;
      const int tile = w.step / all;
      u.tile = p.whole + tile;
      u.first = w.step % all;
      u.steps = min(all - u.first, w.end - w.step);
      // The clusters of a tile's first and last step.
      const int from = tile * all / p.stream, to = (tile * all + all - 1) / p.stream;
      u.split = static_cast<int>(blockIdx.x) / kCtas - from;
      u.pieces = to - from + 1;
      w.step += u.steps;
    }
    const TilePlace place = raster(u.tile, p.tiles_a, p.tiles_b, p.group);
    u.tile_a = place.row * kCluster + (kCluster > 1 ? rank : 0);
    u.tile_b = place.col + (kAcross > 0 ? rank : 0);
    return true;
  }

  __device__ static __forceinline__ epilogue::Operands operands(const Params& p) {
    return epilogue::operands_of<kHalves>(p);
  }
};

}  // namespace stof::gemm::sm90
