// One way through the key tiles of a query tile: S = Q K^T, mask, softmax, O += P V, while the tile
// after is on its way to shared memory.
#pragma once

#include "attention/load.cuh"
#include "attention/non_finite.cuh"
#include "attention/params.cuh"
#include "attention/products.cuh"
#include "attention/softmax.cuh"
#include "attention/store.cuh"
#include "attention/tiles.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::attention {

// Computes the rows of a query tile from Work::row0 on. kCareful: values that are not finite reach
// the rows that keep their keys and no others.
template <typename T, int kHeadDim, class Shape, class Scores, bool kPacked, class Work,
          bool kCareful>
struct Pass {
  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kFragments = Shape::kFragments;
  static constexpr int kKeys = Shape::kKeys;
  static constexpr int kStages = Shape::kStages;
  using Params = attention::Params<T>;
  using Products = attention::Products<T, kHeadDim, Shape>;
  using Store = attention::Store<T, kHeadDim, Shape, kPacked, Work>;
  using QTile = typename Products::QTile;
  using KvTile = typename Products::KvTile;
  template <class Tile>
  using Copy = TileCopy<Tile, Shape>;
  using Bits = KeepBits<kFragments>;
  // Scores are scaled in the FMAs of their weights, which is wrong for far origins, or before.
  static constexpr bool kFused = Scores::kPlain && !kCareful;
  static constexpr bool kRounded = Scores::kPlain && kCareful;

  const Params& p;
  Work& work;  // in shared memory, because registers are scarce
  const u32 smem;
  const Copy<KvTile> copy;
  const u16 *keys, *values;  // the thread's part of tile 0
  const int kv_length;
  const bool whole;  // whether tiles that end before the last key can be copied whole
  Products products;
  OnlineSoftmax<kFragments> softmax;
  // Whether scores are looked at first: the first key that a row keeps has no weight that fits, and
  // the tile would have to be computed again. Rows that keep none cost a look in every part tile.
  bool looking = true;

  // `shared` will be a copy of `mine`.
  __device__ __forceinline__ Pass(const Params& params, const Work& mine, Work& shared, u32 memory)
      : p(params),
        work(shared),
        smem(memory + Shape::group() * Shape::group_bytes(kHeadDim)),
        keys(copy.part(head_of_keys(mine), p.k_row)),
        values(copy.part(head_of_values(mine), p.v_row)),
        kv_length(mine.kv_length),
        whole(p.wide_k && p.wide_v && p.dim_qk % 8 == 0 && p.dim_v % 8 == 0) {
    clear_padding();
    load_q(mine);
    ptx::cp_async_commit();
  }

  __device__ __forceinline__ const u16* head_of_keys(const Work& of) const {
    return p.k + of.batch * p.k_batch + of.head / p.heads_per_kv * p.k_head;
  }
  __device__ __forceinline__ const u16* head_of_values(const Work& of) const {
    return p.v + of.batch * p.v_batch + of.head / p.heads_per_kv * p.v_head;
  }

  __device__ __forceinline__ u32 smem_q() const {
    return smem + (Shape::kQInStage ? (kStages - 1) * 2 * KvTile::kBytes : 0);
  }
  __device__ __forceinline__ u32 stage_k(int stage) const {
    return smem + (Shape::kQInStage ? 0 : QTile::kBytes) + stage * (2 * KvTile::kBytes);
  }
  __device__ __forceinline__ u32 stage_v(int stage) const {
    return stage_k(stage) + KvTile::kBytes;
  }

  // Whether any key of a tile counts: it does not lie past the last key.
  __device__ __forceinline__ bool present(const KeyTile& tile) const {
    return tile.col * kKeys < kv_length;
  }

  // Starts to load keys (0) to values (1) of a tile.
  template <int kFirst, int kLast>
  __device__ __forceinline__ void load(int stage, const KeyTile& tile) {
    if (!present(tile)) return;
    if (whole && (tile.col + 1) * kKeys <= kv_length) {
      if constexpr (kFirst == 0) copy(stage_k(stage), keys, tile.col, p.k_row, p.dim_qk / 8);
      if constexpr (kLast == 1) copy(stage_v(stage), values, tile.col, p.v_row, p.dim_v / 8);
      return;
    }
#pragma unroll 1
    for (int which = kFirst; which <= kLast; ++which) {
      const i64 row = which == 0 ? p.k_row : p.v_row, key = static_cast<i64>(tile.col) * kKeys;
      const u16* from = which == 0 ? head_of_keys(work) : head_of_values(work);
      load_tile<KvTile, kThreads>(
          stage_k(stage) + which * KvTile::kBytes,
          {from + key * row, row, 1, static_cast<int>(kv_length - key),
           which == 0 ? p.dim_qk : p.dim_v, (which == 0 ? p.wide_k : p.wide_v) != 0},
          Shape::thread());
    }
  }

  // What Copy leaves out.
  __device__ __forceinline__ void clear_padding() {
    if (p.dim_qk == kHeadDim && p.dim_v == kHeadDim) return;
    for (int i = Shape::thread(); i < 2 * kStages * kKeys * KvTile::kChunks; i += kThreads)
      ptx::store_shared_16(stage_k(0) + 16 * i, make_uint4(0, 0, 0, 0));
    __syncthreads();
  }

  __device__ __forceinline__ void load_q(const Work& of) {
    const u16* head = p.q + of.batch * p.q_batch;
    if (!kPacked && p.wide_q && !p.negative && p.dim_qk == kHeadDim &&
        of.row0 + Shape::kRows <= p.seq_q) {
      const Copy<QTile> copy_q;
      head += of.head * p.q_head + of.row0 * p.q_row;
      copy_q(smem_q(), copy_q.part(head, p.q_row), 0, p.q_row, QTile::kChunks);
      return;
    }
#pragma unroll 1
    for (int i = Shape::thread(); i < Shape::kRows * QTile::kChunks; i += kThreads) {
      const int r = i / QTile::kChunks, chunk = i % QTile::kChunks;
      const int row = of.row0 + r, query = of.query(p, row);
      const int valid = query < p.seq_q ? max(0, min(8, p.dim_qk - 8 * chunk)) : 0;
      const u16* from = p.q;
      if (valid > 0) from = head + of.head_of(p, row) * p.q_head + query * p.q_row + 8 * chunk;
      const u32 to = QTile::address(smem_q(), r, chunk);
      if (p.wide_q && !p.negative) {
        ptx::cp_async_16(to, from, 2 * valid);
      } else {
        u32 word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (e < valid) word[e / 2] |= (from[e] ^ (p.negative ? 0x8000u : 0u)) << e % 2 * 16;
        ptx::store_shared_16(to, make_uint4(word[0], word[1], word[2], word[3]));
      }
    }
  }

  // A key tile whose keys are there. `between` the two products, values have to come.
  template <class Between>
  __device__ __forceinline__ void step(const KeyTile& tile, Bits bits, int stage,
                                       const Between& between) {
    const int keys = kv_length - tile.col * kKeys;
    const bool part = (~tile.bitmap_id | (keys - kKeys)) < 0;  // a bitmap, or fewer keys
    if (keys < kKeys) bits.limit(keys, threadIdx.x % 32);
    const float factor = Scores::factor(p);
    typename Products::Scores s;
    Bits keep;
#pragma unroll 1
    while (true) {
      products.multiply(s, smem_q(), stage_k(stage));
      if constexpr (!Scores::kPlain) {
        const int thread = ptx::opaque(Shape::thread()), lane = thread % 32;
        Scores::apply(s, p, work, work.row0 + thread / 32 * Shape::kWarpRows + (lane >> 2),
                      tile.col * kKeys + 2 * (lane & 3));
      }
      if (part) bits.apply(s);
      if constexpr (kCareful) keep.read(s);
      const bool look = !kFused || looking;
      if (look) {
        const bool begun = softmax.template raise<kCareful, kFused>(s, factor, products.o);
        if (kFused) looking = !begun;
        if (kRounded) softmax.round(s, factor);
      }
      if (softmax.weigh(s, kRounded ? 1.f : factor, !look)) break;
      looking = true;
    }
    typename Products::Weights weights;
    Products::pack(weights, s);
    between();
    if constexpr (kCareful)
      set_aside_non_finite<T, KvTile, Shape>(products.o, keep, stage_v(stage));
    products.accumulate(weights, stage_v(stage));
  }

  // Groups take turns; all go the same number of steps, for the sake of the barriers.
  static constexpr int kTurns = kCareful ? 1 : Shape::kGroups;
  __device__ static __forceinline__ int turn() { return kTurns > 1 ? Shape::group() : 0; }

  __device__ static __forceinline__ FirstTiles first(const Params& p, const Work& mine) {
    const int at = mine.begin + turn();
    return {key_tile(p, at, mine.end), key_tile(p, at + kTurns, mine.end)};
  }

  // Whether sums and outputs are wrong, because an origin of the thread's rows was far.
  __device__ __forceinline__ bool run(const Work& mine, const FirstTiles& first) {
    const BitsAt<kFragments, kPacked> bits_at(p, mine, Shape::thread() / 32 * Shape::kWarpRows,
                                              threadIdx.x % 32);
    const int begin = mine.begin, end = mine.end;
    KeyTile tile = first.tile, next = first.next;
    if (threadIdx.x == 0) {
      work = mine;
      work.masked = tile.bitmap_id >= 0;  // part tiles are the first of a list
    }
    __syncthreads();
    load<0, kStages - 1>(0, tile);
    ptx::cp_async_commit();
    if constexpr (Shape::kQInRegisters) {
      ptx::cp_async_wait<1>();
      __syncthreads();
      products.keep_q(smem_q());
    }
    int stage = 0;
#pragma unroll 1
    for (int i = begin; i < end; i += kTurns) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // the keys are there, and every warp is done with the tile before
      if constexpr (kStages > 1)
        load<0, 1>(1 - stage, next);
      else
        load<1, 1>(0, tile);
      ptx::cp_async_commit();
      KeyTile after;
      const auto between = [&] {
        if constexpr (kStages == 1) {
          ptx::cp_async_wait<0>();
          __syncthreads();  // the values are there, and every warp is done with the keys
          load<0, 0>(0, next);
          ptx::cp_async_commit();
        }
        after = key_tile(p, i + turn() + 2 * kTurns, end);
      };
      if (present(tile))
        step(tile, bits_at(p, tile), stage, between);
      else
        between();
      tile = next, next = after;
      if constexpr (kStages > 1) stage = 1 - stage;
    }
    // Without tiles nothing has waited for the queries, and they are where the output goes through.
    if constexpr (!Shape::kQInRegisters) ptx::cp_async_wait<0>();
    softmax.finish();
    const bool far = kFused && softmax.far();
    if constexpr (kTurns > 1) join();
    return far;
  }

  // Adds the other groups' results to those of the first, by way of their shared memory.
  __device__ __forceinline__ void join() {
    const u32 mine = 4 * Shape::thread();
    constexpr u32 kPlane = 4 * kThreads;  // bytes of a value of each thread
    static_assert((Products::kValues + 4 * kFragments) * kPlane <= Shape::group_bytes(kHeadDim));
    __syncthreads();  // every warp is done with its tiles
    if (Shape::group() > 0) {
      u32 to = smem + mine;
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          ptx::store_shared_f32(to, softmax.origin[f][r]);
          ptx::store_shared_f32(to + kPlane, softmax.sum[f][r]);
#pragma unroll
          for (int i = 0; i < Products::kOutputs; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              ptx::store_shared_f32(to + (2 + 2 * i + e) * kPlane, products.o[f][i][2 * r + e]);
          to += (2 + 2 * Products::kOutputs) * kPlane;
        }
    }
    __syncthreads();
    if (Shape::group() > 0) return;
#pragma unroll 1
    for (int group = 1; group < Shape::kGroups; ++group) {
      u32 from = smem + group * Shape::group_bytes(kHeadDim) + mine;
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float origin = ptx::load_shared_f32(from);
          const float top = fmaxf(softmax.origin[f][r], origin);
          const float share = ptx::exp2(softmax.origin[f][r] - top);
          const float other = ptx::exp2(origin - top);
          softmax.origin[f][r] = top;
          softmax.sum[f][r] =
              fmaf(ptx::load_shared_f32(from + kPlane), other, softmax.sum[f][r] * share);
#pragma unroll
          for (int i = 0; i < Products::kOutputs; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& o = products.o[f][i][2 * r + e];
              o = fmaf(ptx::load_shared_f32(from + (2 + 2 * i + e) * kPlane), other, o * share);
            }
          from += (2 + 2 * Products::kOutputs) * kPlane;
        }
    }
  }

  // False, and nothing is stored, if that has to be done carefully: for far origins, or where keys
  // were masked, other than those past the last, which are all zeros.
  __device__ __forceinline__ bool attend(const Work& mine, const FirstTiles& first) {
    const bool far = run(mine, first), sums = Shape::group() == 0;
    const bool leaked = sums && (Scores::kMasks || work.masked) && !products.finite();
    const bool again = __syncthreads_or(!kCareful && (far || leaked));
    if (again) return false;
    if (!sums) return true;
    if (work.slices > 1)
      Store::partial(p, work, products.o, softmax);
    else
      Store::outputs(p, work, smem, products.o, softmax);
    return true;
  }
};

}  // namespace stof::attention
