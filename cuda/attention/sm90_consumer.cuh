// A multiplying warpgroup of the sm_90a attention: 64 query rows of the CTA's tile.
//
// One step, for key tile i (FlashAttention-3):
//   start S = Q K_i^T | start O += P V_{i-1} | wait S | mask, softmax | wait O | P = S, rescale O
// so that the second product runs under the softmax. Between the first two a warpgroup holds the
// turn: the others' softmax then runs under its products. Where the warpgroup's queries see only
// one half of a tile's keys, as at the edge of a band, the step is one of that half, and where they
// see none it is left out (kHalves).
//
// What is changed here: wgmma reads and writes registers while the code goes on. Any access to S, O
// or P that is not ordered by the waits makes ptxas serialise everything (C75xx in its log, an
// error in stof_cupy/jit/compile.py).
#pragma once

#include "attention/sm90_epilogue.cuh"
#include "attention/sm90_mask.cuh"
#include "attention/sm90_scores.cuh"
#include "attention/sm90_shape.cuh"
#include "attention/sm90_softmax.cuh"
#include "pipeline.cuh"
#include "ptx/convert.cuh"
#include "ptx/opaque.cuh"
#include "ptx/operand.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"

namespace stof::attention::sm90 {

template <class K>
struct Consumer {
  using Params = typename K::Params;
  using T = typename K::T;
  static_assert(MaskBits<K::kN>::kWords == K::kMaskWords);

  // Wide outputs are rescaled while S is computed, because O's registers and P's together leave no
  // room later.
  static constexpr bool kRescaleFirst = K::kDimV > 128;
  static_assert(!kRescaleFirst || !K::kHalves, "a first tile that is passed over leaves no factor");
  static constexpr bool kTurns = K::kWarpgroups > 1 && K::kOverlap;
  enum Part { kLeft, kRight, kWhole, kNone };              // of a tile's keys
  static constexpr int kRightHalf = K::kN / 2 * 128 / 16;  // where it begins, in an operand's units
  enum NamedBarrier { kTurn = 1, kWarpgroup = 8 };         // each plus the warpgroup's number

  const Params& p;
  const u32 smem;
  const int group;   // which warpgroup
  const int thread;  // of the warpgroup
  const bool leader;
  const u64 operand_q, operand_k, operand_v;
  const Waiter<K::kBounded> wait;
  RingPosition<K::kRows> rows;
  RingPosition<K::kStages> tiles;  // keys; values follow one step behind

  float o[K::kDimV / 2];
  u32 weights[K::kN / 4];  // P, packed: the scores' registers in order are its operand
  int part = kWhole;       // of the keys that they are of
  float rescale[2];
  OnlineSoftmax softmax;

  __device__ __forceinline__ Consumer(const Params& params, u32 shared, int warpgroup)
      : p(params),
        smem(shared),
        group(warpgroup),
        thread(threadIdx.x % 128),
        leader(thread == 0),
        operand_q(ptx::operand_k_major(shared + K::kQ + warpgroup * 64 * 128)),
        operand_k(ptx::operand_k_major(shared + K::kK)),
        operand_v(ptx::operand_n_major(shared + K::kV, K::kSlabBytesKv)),
        wait(params.report) {}

  __device__ __forceinline__ void run() {
    if (kTurns && group == 0) ptx::barrier_arrive(kTurn, 256);  // the first turn is its own
    while (true) {
      wait(K::full(smem, K::kRowBarriers, rows.buffer()), rows.full(), kRowFull);
      const Row row = Row::load(K::row_info(smem, rows.buffer()));
      if (row.tiles < 0) break;
      wait(K::full(smem, K::kQBarriers, queries().buffer()), queries().full(), kQFull);
      begin();
      if (row.tiles > 0) first();
#pragma unroll 1
      for (int i = 1; i < row.masked; ++i) step<true>(i);
#pragma unroll 1
      for (int i = max(1, row.masked); i < row.tiles; ++i) step<false>(i);
      if (row.tiles > 0) last();
      store();
      rows.advance();
    }
  }

  // Each row has a buffer for queries.
  __device__ __forceinline__ RingPosition<K::kQueries> queries() const { return {rows.count}; }

  __device__ __forceinline__ void begin() {
    softmax = OnlineSoftmax{};
#pragma unroll
    for (int i = 0; i < K::kDimV / 2; ++i) o[i] = 0.f;
  }

  // A row's first tile, in the same way whether it is masked or not: the code runs once a row.
  __device__ __forceinline__ void first() {
    wait(K::full(smem, K::kKBarriers, tiles.buffer()), tiles.full(), kKFull);
    part = part_of_tile();
    if (part == kWhole) {
      first_of<K::kN>();
    } else if constexpr (K::kHalves) {
      if (part != kNone) return first_of<K::kN / 2>();
      release_k();
    }
  }

  template <int kKeys>
  __device__ __forceinline__ void first_of() {
    float s[kKeys / 2];
    MaskBits<kKeys> bits;
    multiply_qk(s, part);
    load_bits(bits, 0, part);
    const auto making = begin_scores();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    if (!K::kTerms) release_k();
    take_weights<true, true>(s, bits, 0, making);
    pack(s);
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(int i) {
    if constexpr (!K::kOverlap) return step_in_sequence<kMasked>(i);
    const RingPosition<K::kStages> before = tiles;
    tiles.advance();
    wait(K::full(smem, K::kKBarriers, tiles.buffer()), tiles.full(), kKFull);
    const int now = kMasked ? part_of_tile() : kWhole;
    if (now == kWhole)
      step_of<kMasked, K::kN>(i, before, kWhole);
    else if constexpr (kMasked && K::kHalves)
      now == kNone ? pass(before) : step_of<kMasked, K::kN / 2>(i, before, now);
  }

  // A step of a tile of which the warpgroup's queries see nothing: only that before is finished.
  __device__ __forceinline__ void pass(RingPosition<K::kStages> before) {
    release_k();
    if (kTurns) ptx::barrier_sync(kTurn + group, 256);
    if (kRescaleFirst) rescale_output();
    start_pv(before);
    part = kNone;
    if (kTurns) ptx::barrier_arrive(kTurn + (group + 1) % K::kWarpgroups, 256);
    rescale[0] = rescale[1] = 1.f;
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    release_v(before);
  }

  // The code of a half is short: its scores are looked at, so that nothing has to be mended.
  template <bool kMasked, int kKeys>
  __device__ __forceinline__ void step_of(int i, RingPosition<K::kStages> before, int now) {
    float s[kKeys / 2];
    MaskBits<kKeys> bits;
    if (kTurns) ptx::barrier_sync(kTurn + group, 256);
    multiply_qk(s, now);
    if (kRescaleFirst) rescale_output();
    start_pv(before);
    part = now;
    if (kTurns) ptx::barrier_arrive(kTurn + (group + 1) % K::kWarpgroups, 256);
    if (kMasked) load_bits(bits, i, now);
    const auto making = begin_scores();
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    if (!K::kTerms) release_k();
    take_weights<kMasked, kKeys != K::kN>(s, bits, i, making);
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    release_v(before);
    pack(s);
    if (!kRescaleFirst) rescale_output();
  }

  // The same with one product after the other, for CTAs that share an SM and its registers: one's
  // softmax runs under another's products.
  template <bool kMasked>
  __device__ __forceinline__ void step_in_sequence(int i) {
    if (kRescaleFirst) rescale_output();
    start_pv(tiles);
    finish_pv();
    float s[K::kN / 2];
    MaskBits<K::kN> bits;
    wait(K::full(smem, K::kKBarriers, tiles.buffer()), tiles.full(), kKFull);
    multiply_qk(s, kWhole);
    if constexpr (kMasked) load_bits(bits, i, kWhole);
    const auto making = begin_scores();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    if (!K::kTerms) release_k();
    take_weights<kMasked>(s, bits, i, making);
    pack(s);
    if (!kRescaleFirst) rescale_output();
  }

  __device__ __forceinline__ void last() {
    if (kRescaleFirst) rescale_output();
    start_pv(tiles);
    softmax.finish();
    finish_pv();
  }

  // Each way has its own product from fence to commit: a branch in between would make ptxas end a
  // group there, and who waits for the scores would wait for the first of these products too.
  __device__ __forceinline__ void start_pv(RingPosition<K::kStages> position) {
    wait(K::full(smem, K::kVBarriers, position.buffer()), position.full(), kVFull);
    const u64 v = operand_v + position.buffer() * (K::kBytesV / 16);
    if (!K::kHalves || part == kWhole)
      multiply_pv<K::kN>(v);
    else if (part != kNone)
      multiply_pv<K::kN / 2>(v + part * kRightHalf);
    else
      multiply_pv<0>(v);  // the waits count groups
  }

  // Of the tile whose keys came last, before those of another.
  __device__ __forceinline__ void finish_pv() {
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    release_v(tiles);
    tiles.advance();
  }

  // Which keys of the tile that has come the warpgroup's queries may see.
  __device__ __forceinline__ int part_of_tile() const {
    if constexpr (!K::kHalves) return kWhole;
    const u32 without = ptx::load_shared_4(K::places(smem, tiles.buffer())) >> 2 * group & 3;
    return without == 0 ? kWhole : without == 1 ? kRight : without == 2 ? kLeft : kNone;
  }

  // S = Q K^T
  template <int kCount>
  __device__ __forceinline__ void multiply_qk(float (&s)[kCount], int of) const {
    const u64 q = operand_q + queries().buffer() * (K::kBufferQ / 16);
    const u64 k = operand_k + tiles.buffer() * (K::kBytesK / 16) + of % 2 * kRightHalf;
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < K::kDimQk / 16; ++i)
      ptx::Wgmma<T, 2 * kCount>::qk(s, q + i / 4 * (K::kSlabBytesQ / 16) + i % 4 * 2,
                                    k + i / 4 * (K::kSlabBytesKv / 16) + i % 4 * 2, i > 0);
    ptx::wgmma_commit();
    ptx::pin(s);
  }

  // O += P V
  template <int kKeys>
  __device__ __forceinline__ void multiply_pv(u64 v) {
    ptx::pin(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      ptx::Wgmma<T, K::kDimV>::pv(o, weights + 4 * i, v + i * (16 * 128 / 16));
    ptx::wgmma_commit();
    ptx::pin(o);
  }

  template <int kKeys>
  __device__ __forceinline__ void load_bits(MaskBits<kKeys>& bits, int i, int of) {
    const Row row = Row::load(K::row_info(smem, rows.buffer()));  // again, to spare registers
    if (i < row.parts) {
      const u32 slot = smem + K::kBitmaps + tiles.buffer() * K::kBitmapBytes;
      const u32 own = slot + (group * 128 + thread) * (4 * K::kMaskWords);
      if constexpr (kKeys == K::kN)
        bits.load(own);
      else
        bits.load_half(own, of);
    } else {
      bits.keep_all();
    }
    if (i == row.masked - 1) bits.cut(row.limit - of % 2 * kKeys, thread % 4);
  }

  // What makes scores of the products that come; where rows lie behind the end, of the last one.
  __device__ __forceinline__ auto begin_scores() const {
    if constexpr (K::kTerms) {
      const Row row = Row::load(K::row_info(smem, rows.buffer()));
      const int query = row.q_tile * K::kM + group * 64 + thread / 32 * 16 + thread % 32 / 4;
      const TwoRows at{row.batch, row.head, {min(query, p.seq_q - 1), min(query + 8, p.seq_q - 1)}};
      const u32 places = K::places(smem, tiles.buffer());
      if constexpr (K::kByDistance)
        return ScoresByDistance<K>::begin(p, at, places, thread);
      else
        return ScoresOfTile<K>::begin(p, at, places, thread);
    } else {
      return 0;
    }
  }

  // Products to weights. With kLooked, the scores are looked at before them in any case.
  template <bool kMasked, bool kLooked = false, int kKeys, class With>
  __device__ __forceinline__ void take_weights(float (&s)[kKeys / 2], const MaskBits<kKeys>& bits,
                                               int tile, With making) {
    if constexpr (K::kTerms) {
      making.make(s, p, K::places(smem, tiles.buffer()), thread);
      release_k();
    }
    if (kMasked) bits.mask(s);
    float added[4];
    if constexpr (K::kByDistance) {
      weigh<kLooked>(s, added, tile, making.makes(), making.scale, making.shift);
    } else if constexpr (K::kTerms) {
      softmax.raise(s, 1.f, rescale);
      softmax.weigh(s, 1.f, added);
    } else {
      weigh<kLooked>(s, added, tile, false, p.factor);
    }
    softmax.add(added);
  }

  // Scores are what `s` has times `scale`, plus a row's `shift` if there is one. They are looked at
  // first with kLooked, where `made`, as then they could not be computed again, and where origins
  // ask for it; else if weights have to be mended.
  template <bool kLooked, int kCount, typename... Shift>
  __device__ __forceinline__ void weigh(float (&s)[kCount], float (&added)[4], int tile, bool made,
                                        float scale, Shift&... shift) {
    rescale[0] = rescale[1] = 1.f;
    const bool looked = kLooked || made || softmax.unsettled();
    if (looked) {
      softmax.raise(s, scale, rescale, shift...);
      softmax.scale_if_far(s, scale, shift...);
    }
    softmax.weigh(s, scale, added, shift...);
    if constexpr (kLooked) {
    } else if (!looked && !softmax.fit(added)) {
      if (softmax.finite(added)) {
        softmax.lower(s, added, rescale);
      } else {
        ptx::wgmma_wait<0>();  // there are not enough registers beside P
        ptx::pin(o);
        const u32 info = K::row_info(smem, rows.buffer());
        Epilogue<K>{p, 0, group, thread}.score_again(s, info, tile);
        softmax.raise(s, scale, rescale, shift...);
        softmax.scale_if_far(s, scale, shift...);
        softmax.weigh(s, scale, added, shift...);
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void pack(const float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) weights[i] = ptx::pack<T>(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void rescale_output() {
    if (!__any_sync(0xffffffff, rescale[0] != 1.f || rescale[1] != 1.f)) return;
#pragma unroll
    for (int i = 0; i < K::kDimV / 2; ++i) o[i] *= rescale[i / 2 % 2];
  }

  // Every warp reads of the bitmap that comes with the keys, so each has to say that it is done.
  __device__ __forceinline__ void release_k() {
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(K::empty(smem, K::kKBarriers, tiles.buffer()));
  }

  __device__ __forceinline__ void release_v(RingPosition<K::kStages> position) {
    if (leader) ptx::mbarrier_arrive(K::empty(smem, K::kVBarriers, position.buffer()));
  }

  __device__ __forceinline__ void sync_warpgroup() { ptx::barrier_sync(kWarpgroup + group, 128); }

  __device__ __forceinline__ void store() {
    // Again, not to keep it in registers.
    const Row row = Row::load(K::row_info(smem, rows.buffer()));
    const int first_row = row.q_tile * K::kM + group * 64;
    Epilogue<K> epilogue{p, smem + K::kQ + queries().buffer() * K::kBufferQ, group, thread};
    bool finite = true;
    if (row.partial >= 0) {
      finite = epilogue.store_partial(o, softmax, row);
    } else {
      float share[2] = {1.f, 1.f}, sink = kNegativeInfinity;
      if (p.sinks != nullptr) {
        sink = p.sinks[row.head];
#pragma unroll
        for (int r = 0; r < 2; ++r) share[r] = softmax.admit(r, sink_log2(sink));
      }
      epilogue.store_lse(softmax, sink, first_row, row);
#pragma unroll
      for (int r = 0; r < 2; ++r) share[r] = row.poison ? kNaN : share[r] * softmax.inverse_sum(r);
#pragma unroll
      for (int i = 0; i < K::kDimV / 2; ++i) o[i] *= share[i / 2 % 2];
      sync_warpgroup();  // nobody reads the queries any more
      finite = epilogue.stage(o);
    }
    // Of a masked key, a value that is not finite has still come through, as 0 * NaN.
    if ((K::Scores::kMasks || row.masked > 0) && !finite) {
      const Epilogue<K> here{p, epilogue.buffer, group, ptx::opaque(thread)};
      here.compute_again(first_row, row);
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(K::staged(smem, queries().buffer(), group));
  }
};

}  // namespace stof::attention::sm90
