// What becomes of a warpgroup's sums in the sm_90a GEMM: added up with those of other pieces of K
// (sm90_pieces.cuh), taken through the epilogue, rounded and stored.
#pragma once

#include "epilogue/ahead.cuh"
#include "gemm/result.cuh"
#include "gemm/sm90_blocks.cuh"
#include "gemm/sm90_norm.cuh"
#include "gemm/sm90_pieces.cuh"
#include "gemm/sm90_shape.cuh"
#include "gemm/sm90_transposed.cuh"
#include "ptx/convert.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "unroll.cuh"

namespace stof::gemm::sm90 {

template <class K>
struct Output {
  using Params = typename K::Params;
  using T = typename K::T;
  using Sums = float[K::kBlocks][K::kN / 2];
  // Whether the bias of 64 columns is loaded while those before are stored, as there are registers.
  static constexpr bool kEarly = K::Epilogue::kBias && !K::Epilogue::kResidual &&
                                 !K::Epilogue::kNormed && !K::Epilogue::kStatistics &&
                                 K::kApart == 0 && !K::kSwapped && K::kAcross == 0 && !K::kByRows;

  // What the epilogue of a thread's pairs in 64 x 64 reads of their columns and rows: of kEach
  // pairs at a time, as there are registers.
  struct Ahead {
    static constexpr int kEach = K::Epilogue::kNormed && K::kBlocks * K::kN > 256 ? 2 : 8;

    epilogue::Columns<typename K::Epilogue, T, kEach> columns;
    epilogue::Rows<typename K::Epilogue, 2> rows;

    __device__ __forceinline__ void load(const epilogue::Operands& operands, const Output& output,
                                         int row, int col) {
      load_columns(operands, output, col, 0);
      rows.load(operands, [&](int i) { return static_cast<i64>(row + output.row_of(i)); });
    }

    // Of pair `from` and those after it.
    __device__ __forceinline__ void load_columns(const epilogue::Operands& operands,
                                                 const Output& output, int col, int from) {
      const int first = col + 8 * from + output.thread % 4 * 2;
      columns.load(operands, col + 64 <= operands.cols, [&](int i) { return first + 8 * i; });
    }
  };

  const Params& p;
  const u32 smem;
  const int rank, group, thread;
  const int sharer;  // which part of a tile is this warpgroup's
  Buffers<K> buffers;
  RowStatistics<K> statistics;
  Ahead ahead;  // of the 64 columns that are stored next

  __device__ __forceinline__ Output(const Params& params, u32 shared, int cta, int warpgroup)
      : p(params),
        smem(shared),
        rank(cta),
        group(warpgroup),
        thread(threadIdx.x % 128),
        sharer(K::kPingPong ? 0 : warpgroup),
        buffers{params, shared, warpgroup, thread, Waiter<K::kBounded>(params.report)},
        statistics{params, shared, cta, warpgroup, thread, buffers.wait} {}

  __device__ __forceinline__ void take(Sums& sums, const Unit& unit) {
    if constexpr (K::kSplit) {
      if (unit.pieces > 1 && !pieces().add_up(sums, unit)) return;
    }
    if constexpr (K::kJoined > 1 && !K::kByRows) pieces().join(sums[0]);
    if constexpr (K::kApart > 0 && !K::kSwapped) couple(sums, unit);
    if constexpr (K::kByRows)
      store_rows(sums[0], unit);
    else if constexpr (K::kAcross > 0)
      store_normalised(sums, unit);
    else if constexpr (K::kSwapped)
      Transposed<K>{p, group, thread, buffers.memory}.store(sums[0], unit, first_row(unit));
    else
      store(sums, unit);
  }

  __device__ __forceinline__ Pieces<K> pieces() const {
    return {p, smem, rank, group, thread, sharer};
  }

  // Shared memory has to stay until it has been read.
  __device__ __forceinline__ void finish() const {
    if (!K::kSwapped && thread == 0) ptx::bulk_wait_read();
  }

  // The first of a unit's rows of A that are this warpgroup's.
  __device__ __forceinline__ int first_row(const Unit& unit) const {
    return unit.tile_a * K::kM + sharer * (K::kBlocks * 64);
  }

  // Takes columns that are coupled through the epilogue as far as that.
  __device__ __forceinline__ void couple(Sums& sums, const Unit& unit) const {
    const epilogue::Operands operands = K::operands(p);
    constexpr int kApart = K::kApart / 8;  // fragments of 8 columns
    unrolled<0, K::kBlocks * K::kN / 16>([&](auto number) {
      constexpr int kBlock = decltype(number)::value / (K::kN / 16);
      constexpr int kPair = decltype(number)::value % (K::kN / 16);
      constexpr int kFragment = kPair / kApart * (2 * kApart) + kPair % kApart;
      float (&x)[K::kN / 2] = sums[kBlock];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = 4 * kFragment + 2 * r, other = at + 4 * kApart;
        float first[2] = {x[at], x[at + 1]}, second[2] = {x[other], x[other + 1]};
        const int row = first_row(unit) + 64 * kBlock + row_of(r);
        const int col = unit.tile_b * K::kN + 8 * kFragment + thread % 4 * 2;
        K::Epilogue::template couple<T>(first, second, operands, row, col);
        x[at] = first[0];
        x[at + 1] = first[1];
        x[other] = second[0];
        x[other + 1] = second[1];
      }
    });
  }

  // Which row of 64 is this thread's, of its first or the other.
  __device__ __forceinline__ int row_of(int r) const {
    return thread / 32 * 16 + thread % 32 / 4 + 8 * r;
  }

  __device__ __forceinline__ Blocks blocks(const Unit& unit) const {
    constexpr int kEach = K::kSlabs / K::kJoined;
    const int row = first_row(unit);
    const int col = unit.tile_b * K::kColumns + (K::kJoined > 1 ? rank * (64 * kEach) : 0);
    return {row, col, min(K::kBlocks, ceil_div(max(0, p.m - row), 64)),
            min(kEach, ceil_div(max(0, p.n - col), 64))};
  }

  // Loads what the epilogue reads for a unit's first 64 columns.
  __device__ __forceinline__ void load_ahead(const Unit& unit) {
    if constexpr (kEarly) {
      const Blocks all = blocks(unit);
      if (all.down > 0 && all.across > 0) ahead.load(K::operands(p), *this, all.row, all.col);
    }
  }

  // Starts to read the residual of a unit, as far as there are buffers for it. If kSplit, that is
  // done when it is known who needs it.
  __device__ __forceinline__ void read_ahead(const Unit& unit) const {
    if constexpr (K::kReadsAhead && !K::kSplit) buffers.read_first(blocks(unit));
  }

  __device__ __forceinline__ void store(const Sums& sums, const Unit& unit) {
    const epilogue::Operands operands = K::operands(p);
    const Blocks all = blocks(unit);
    const u32 before = buffers.count;
    if constexpr (K::kReadsAhead && K::kSplit) buffers.read_first(all);
    u32 again[K::kAgain / 16 + 1][4];  // one more, as there are no empty arrays
    unrolled<0, K::kBlocks * K::kSlabs>([&](auto i) {
      constexpr int kDown = decltype(i)::value / K::kSlabs;
      constexpr int kAcross = decltype(i)::value % K::kSlabs;
      if (kDown >= all.down || kAcross >= all.across) return;
      const int row = all.row + 64 * kDown, col = all.col + K::slab(kAcross);
      const u32 number = buffers.number(), buffer = buffers.address(number);
      if constexpr (!kEarly) ahead.load(operands, *this, row, col);
      buffers.make_ready(buffer, number, row, col);
      Ahead next;
      const auto load_next = [&] {
        if (!kEarly) return;
        if (kAcross + 1 < all.across)
          next.load(operands, *this, row, all.col + K::slab(kAcross + 1));
        else if (kDown + 1 < all.down)
          next.load(operands, *this, row + 64, all.col);
      };
      stage<kAcross>(sums[kDown], buffer, row, col, operands, ahead, again, load_next);
      if constexpr (kEarly) ahead = next;
      buffers.send(buffer, row, col);
      ++buffers.count;
      if constexpr (K::kReadsAhead) buffers.read_next(all, before);
    });
  }

  // Adds up the rows that are this CTA's of those of its cluster, and stores them from registers:
  // there are few.
  __device__ __forceinline__ void store_rows(float (&sums)[K::kN / 2], const Unit& unit) const {
    pieces().join_rows(sums);
    constexpr int kPairs = K::kN / 8;
    const epilogue::Operands operands = K::operands(p);
    const int first = unit.tile_b * K::kN, col = first + thread % 4 * 2;
    const bool whole = first + K::kN <= p.n;
    epilogue::Columns<typename K::Epilogue, T, kPairs> columns;
    columns.load(operands, whole, [&](int i) { return col + 8 * i; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (pieces().owner(half) != rank) continue;
      const i64 row = first_row(unit) + row_of(half);
      epilogue::Rows<typename K::Epilogue, 1> rows;
      rows.load(operands, [&](int) { return row; });
      u32 residual[kPairs] = {};
      if constexpr (K::Epilogue::kResidual)
        epilogue::load_residual<T>(residual, operands, row, col, whole);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        float x[1][2] = {{sums[4 * i + 2 * half], sums[4 * i + 2 * half + 1]}};
        epilogue::Operands here = operands;
        columns.give(here, i);
        rows.give(here, 0);
        if constexpr (K::Epilogue::kResidual) {
          here.has_residual = true;
          here.residual_pair = residual[i];
        }
        K::Epilogue::template apply<T>(x, here, row, col + 8 * i);
        store_pair<K::Epilogue::kHeads, T>(p, row, col + 8 * i, ptx::pack<T>(x[0][0], x[0][1]));
      }
    }
  }

  // How many 64 rows there are is the same in all CTAs of the cluster. What they tell of the first
  // comes while the second have their bias and residual added, that of the second while the first
  // are sent.
  __device__ __forceinline__ void store_normalised(Sums& sums, const Unit& unit) {
    using Rows = typename RowStatistics<K>::Rows;
    const Blocks all = blocks(unit);
    if (all.down == 0) return;
    const u32 before = buffers.count;
    const int cols = min(K::kN, p.n - all.col);
    if (!(K::kReadsAhead && p.mapped_residual)) {
      if (thread == 0) ptx::bulk_wait_read();
      buffers.sync();
    }
    Rows first, second;
    add(sums[0], all, 0);
    statistics.compute(first, sums[0], cols);
    statistics.tell(first);
    if constexpr (K::kBlocks > 1) {
      if (all.down > 1) {
        if constexpr (K::kReadsAhead) buffers.read_rest(all, before);
        add(sums[1], all, 1);
        statistics.compute(second, sums[1], cols);
      }
    }
    statistics.combine(first);
    if constexpr (K::kBlocks > 1)
      if (all.down > 1) statistics.tell(second);
    send(sums[0], first, all, 0);
    if constexpr (K::kBlocks > 1) {
      if (all.down > 1) {
        statistics.combine(second);
        send(sums[1], second, all, 1);
      }
    }
  }

  // Takes 64 rows of the CTA's columns through the epilogue.
  __device__ __forceinline__ void add(float (&x)[K::kN / 2], const Blocks& all, int down) const {
    const epilogue::Operands operands = K::operands(p);
    const int row = all.row + 64 * down;
#pragma unroll
    for (int across = 0; across < K::kN / 64; ++across) {
      if (across >= all.across) continue;
      const u32 behind = down * all.across + across;
      const u32 number = buffers.number(behind), buffer = buffers.address(number);
      if constexpr (K::kReadsAhead) {
        if (p.mapped_residual) {
          buffers.wait_for(number, behind);
        } else {
          if (down > 0) buffers.sync();  // all have read what was there
          buffers.fill(buffer, row, all.col + 64 * across);
          buffers.sync();
        }
      }
      Ahead read;
      read.load(operands, *this, row, all.col + 64 * across);
#pragma unroll
      for (int i = 0; i < 16; ++i) {  // pairs; four at a time, as they are staged, are spilled
        float (&pair)[1][2] = *reinterpret_cast<float (*)[1][2]>(&x[32 * across + 2 * i]);
        u32 residual = 0;
        if constexpr (K::kReadsAhead)
          residual =
              ptx::load_shared_4(buffers.place(buffer, row_of(i % 2), 4 * (i / 2) + thread % 4));
        apply(pair, operands, read, residual, row, all.col + 64 * across, i / 2, i % 2);
      }
    }
  }

  // Normalises 64 rows, which have all been added, and sends them.
  __device__ __forceinline__ void send(const float (&x)[K::kN / 2],
                                       const typename RowStatistics<K>::Rows& rows,
                                       const Blocks& all, int down) {
    const int row = all.row + 64 * down;
#pragma unroll
    for (int across = 0; across < K::kN / 64; ++across) {
      if (across >= all.across) continue;
      if (down > 0) buffers.wait_sent();
      __syncwarp();  // its residual has been read
      const u32 buffer = buffers.address(buffers.number());
      const int col = all.col + 64 * across;
      u32 weight[8], shift[8] = {};
      load_norm(weight, p.norm_weight, col);
      if (p.norm_bias) load_norm(shift, p.norm_bias, col);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        u32 r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 32 * across + 8 * j + 4 * (i / 2) + 2 * (i % 2);
          r[i] = normalised(x[at], x[at + 1], rows.mean[i % 2], rows.scale[i % 2],
                            weight[2 * j + i / 2], shift[2 * j + i / 2]);
        }
        buffers.put(buffer, j, r);
      }
      buffers.send(buffer, row, col);
      ++buffers.count;
    }
  }

  // This thread's pairs of 64 columns.
  __device__ __forceinline__ void load_norm(u32 (&x)[8], const void* from, int col) const {
    const int first = col + thread % 4 * 2;
    epilogue::load_pairs(x, static_cast<const T*>(from), p.n, col + 64 <= p.n,
                         [&](int i) { return first + 8 * i; });
  }

  __device__ static __forceinline__ u32 normalised(float x, float y, float mean, float scale,
                                                   u32 weights, u32 shifts) {
    float weight[2] = {0.f, 0.f}, shift[2] = {0.f, 0.f};
    epilogue::add_packed<T>(weight, weights);
    epilogue::add_packed<T>(shift, shifts);
    return ptx::pack<T>(fmaf((x - mean) * scale, weight[0], shift[0]),
                        fmaf((y - mean) * scale, weight[1], shift[1]));
  }

  // 64 columns of the output to a buffer, over the residual. Those that the last slab has again are
  // as the one before has rounded them: where the result takes the residual's place, what was read
  // of the residual here may be the result.
  template <int kSlab, class Next>
  __device__ __forceinline__ void stage(const float (&sums)[K::kN / 2], u32 buffer, int row,
                                        int col, const epilogue::Operands& operands, Ahead& ahead,
                                        u32 (&again)[K::kAgain / 16 + 1][4],
                                        const Next& next) const {
    constexpr int kAgain = K::kAgain / 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j == 2) next();
      if (kSlab == K::kSlabs - 1 && j < kAgain) {
        buffers.put(buffer, j, again[j]);
        continue;
      }
      if (j > 0 && 2 * j % Ahead::kEach == 0) ahead.load_columns(operands, *this, col, 2 * j);
      u32 r[4], residual[4] = {};
      if constexpr (K::kReadsAhead) buffers.get(buffer, j, residual);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 8 columns and 8 rows each
        const int fragment = K::slab(kSlab) / 8 + 2 * j + i / 2;
        float x[K::kHalves][2];
#pragma unroll
        for (int half = 0; half < K::kHalves; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            x[half][e] = sums[4 * (K::kHalves * fragment + half) + 2 * (i % 2) + e];
        apply(x, operands, ahead, residual[i], row, col, 2 * j + i / 2, i % 2);
        r[i] = ptx::pack<T>(x[0][0], x[0][1]);
        if (kSlab == K::kSlabs - 2 && j >= 4 - kAgain) again[j - (4 - kAgain)][i] = r[i];
      }
      buffers.put(buffer, j, r);
    }
    if constexpr (K::Epilogue::kStatistics) {
      __syncwarp();  // a warp's rows are its own
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        u32 pairs[8];
#pragma unroll
        for (int i = 0; i < 8; ++i)
          pairs[i] = ptx::load_shared_4(buffers.place(buffer, row_of(r), 4 * i + thread % 4));
        tell_statistics<T, 4>(p, pairs, row + row_of(r), col, thread % 4);
      }
    }
  }

  // The epilogue of this thread's pair in 8 columns of a block, of the first 8 rows or the others
  // of the warp's sixteen.
  __device__ __forceinline__ void apply(float (&x)[K::kHalves][2],
                                        const epilogue::Operands& operands, const Ahead& ahead,
                                        u32 residual, int row, int col, int columns, int r) const {
    const int in_row = row_of(r);
    const int pair = 4 * columns + thread % 4;
    epilogue::Operands here = operands;
    ahead.columns.give(here, columns % Ahead::kEach);
    ahead.rows.give(here, r);
    if constexpr (K::kReadsAhead) {
      here.has_residual = true;
      here.residual_pair = residual;
    }
    K::Epilogue::template apply<T>(x, here, row + in_row, col + 2 * pair);
  }
};

}  // namespace stof::gemm::sm90
