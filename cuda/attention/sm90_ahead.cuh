// A multiplying warpgroup that starts the scores of the next key tile before it looks at those of
// this one (Consumer does so after).
//
// One step, for key tile i, whose scores are there:
//   start S' = Q K_{i+1}^T | mask, softmax of S | wait O | P = S, rescale O | start O += P V_i
//   | wait S'
// so that both products run under the softmax, and nobody waits for one that has just begun; two
// tiles of scores take the registers for it. A row's last step starts the first scores of the next
// row, which has to be known by then: its output leaves under them.
#pragma once

#include "attention/sm90_consumer.cuh"

namespace stof::attention::sm90 {

template <class K>
struct AheadConsumer : Consumer<K> {
  using Base = Consumer<K>;
  using Base::o, Base::queries, Base::rows, Base::smem, Base::softmax, Base::tiles, Base::wait;
  using typename Base::Bits;
  using Scores = float[K::kN / 2];

  RingPosition<K::kStages> values;

  __device__ __forceinline__ AheadConsumer(const typename Base::Params& params, u32 shared,
                                           int warpgroup)
      : Base(params, shared, warpgroup) {}

  __device__ __forceinline__ void run() {
    Scores a, b;
    bool started = false;  // whether the first scores of the row are on their way
    this->begin();
    while (true) {
      const Row row = next_row();
      if (row.tiles < 0) break;
      if (row.tiles == 0) {
        wait(K::full(smem, K::kQBarriers, queries.buffer()), queries.full(), kQFull);
        this->release_q();
        this->store(softmax, rows.count, queries.count);
        rows.advance();
        queries.advance();
        continue;
      }
      if (!started) {
        start_first(a);
        ptx::wgmma_wait<0>();
        ptx::pin(a);
      }
      if (row.tiles == 1) {
        weigh_last<true>(a, 0, row.masked);
      } else {
        step<true>(a, b, 0, row.masked);
        int i = 1;
#pragma unroll 1
        for (; i + 2 < row.tiles; i += 2) {
          step(b, a, i, row.masked);
          step(a, b, i + 1, row.masked);
        }
        if (i + 1 < row.tiles) {
          step(b, a, i, row.masked);
          weigh_last(a, i + 1, row.masked);
        } else {
          weigh_last(b, i, row.masked);
        }
      }
      started = end(a);
    }
    this->release_q();
  }

  __device__ __forceinline__ Row next_row() {
    wait(K::full(smem, K::kRowBarriers, rows.buffer()), rows.full(), kRowFull);
    return Row::load(K::row_info(smem, rows.buffer()));
  }

  __device__ __forceinline__ void start_first(Scores& s) {
    wait(K::full(smem, K::kQBarriers, queries.buffer()), queries.full(), kQFull);
    wait(K::full(smem, K::kKBarriers, tiles.buffer()), tiles.full(), kKFull);
    this->multiply_qk(s);
  }

  // `kFirst`: of a row, before which nothing has been added.
  template <bool kFirst = false>
  __device__ __forceinline__ void step(Scores& now, Scores& next, int i, int masked) {
    Bits bits;
    take_bits(bits, i, masked);
    wait(K::full(smem, K::kKBarriers, tiles.buffer()), tiles.full(), kKFull);
    this->multiply_qk(next);
    weigh(now, bits, i, masked);
    if (kFirst) this->release_q();  // by now the output of the row before has left
    if (!kFirst) ptx::wgmma_wait<1>();
    take_over<kFirst>(now);
    this->start_pv(values);
    ptx::wgmma_wait<1>();
    ptx::pin(next);
  }

  // Of the last tile of a row.
  template <bool kFirst = false>
  __device__ __forceinline__ void weigh_last(Scores& s, int i, int masked) {
    Bits bits;
    take_bits(bits, i, masked);
    weigh(s, bits, i, masked);
    if (kFirst) this->release_q();
    if (!kFirst) ptx::wgmma_wait<0>();
    take_over<kFirst>(s);
  }

  // Returns whether `first` has the first scores of the next row.
  __device__ __forceinline__ bool end(Scores& first) {
    this->start_pv(values);
    softmax.finish();
    rows.advance();
    queries.advance();
    const bool more = next_row().tiles > 0;
    // ptxas has to see that no product is under way where these ways meet.
    if (more) {
      start_first(first);
      ptx::wgmma_wait<1>();
      leave();
      ptx::wgmma_wait<0>();
      ptx::pin(first);
    } else {
      ptx::wgmma_wait<0>();
      leave();
    }
    return more;
  }

  // The row before the current one.
  __device__ __forceinline__ void leave() {
    ptx::pin(o);
    this->release_v(values);
    values.advance();
    this->store(softmax, rows.count - 1, queries.count - 1);
    this->begin();
  }

  // Of the keys in work; nobody needs these any more then.
  __device__ __forceinline__ void take_bits(Bits& bits, int i, int masked) {
    if (i < masked) this->load_bits(bits, i);
    this->release_k();
    tiles.advance();
  }

  __device__ __forceinline__ void weigh(Scores& s, const Bits& bits, int i, int masked) {
    if (i < masked) bits.mask(s);
    this->template take_weights<false>(s, bits, i);
  }

  // Weights, when the products before have been added.
  template <bool kFirst>
  __device__ __forceinline__ void take_over(const Scores& s) {
    if (!kFirst) {
      ptx::pin(o);
      this->release_v(values);
      values.advance();
      this->rescale_output();
    }
    this->pack(s);
  }
};

}  // namespace stof::attention::sm90
