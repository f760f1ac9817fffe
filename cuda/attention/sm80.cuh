// Block-wise sparse attention on mma.sync, for sm_80 and everything newer (STOF, arXiv 2506.06095,
// Algorithm 1).
//
// A CTA computes a tile of query rows of one head, or of a few that share their keys; each of its
// warps owns 16 or 32 rows. It walks the key tiles that its row of the mask lists: S = Q K^T, mask,
// softmax, O += P V, while the tiles after it are on their way to shared memory.
//
// A masked value still counts in a product, as 0 * NaN. Whether that has happened shows in the
// result, so nothing is looked for on the way: a query tile whose result is not finite is computed
// again, carefully.
#pragma once

#include "attention/load.cuh"
#include "attention/params.cuh"
#include "attention/scores.cuh"
#include "attention/shape.cuh"
#include "attention/softmax.cuh"
#include "attention/tiles.cuh"
#include "attention/work.cuh"
#include "ptx/convert.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kHeadDim, class Shape, class Scores = attention::Scores<>,
          bool kPacked = false>
struct Sm80 {
  static constexpr int kThreads = Shape::kThreads;
  static constexpr int kMinBlocks = Shape::kMinBlocks;
  static constexpr int kFragments = Shape::kFragments;
  static constexpr int kKeys = Shape::kKeys;
  static constexpr int kStages = Shape::kStages;
  static constexpr int kPitch = kHeadDim * 2;  // bytes
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kColumns = kKeys / 8;  // mma tiles along the keys
  static constexpr int kOutputs = kHeadDim / 8;
  static constexpr int kTileBytes = Shape::kSmemRows * kPitch;
  static constexpr int kListAt = kTileBytes + 128;  // behind the Item
  static constexpr int kBitsAt = kListAt + 64;
  static constexpr int kBitRows =
      kPacked ? 64 : Shape::kRows;  // a mask's tile, or what is needed of it
  static constexpr int kBitsBytes = kBitRows * kKeys / 8;
  static constexpr int kSmemBytes = kBitsAt + kStages * kBitsBytes;
  using Params = attention::Params<T>;
  using Work = attention::Work<Params, Shape, kPacked>;
  using QTile = Tile<Shape::kRows, kHeadDim>;
  using KvTile = Tile<kKeys, kHeadDim>;
  using Softmax = OnlineSoftmax<kFragments>;
  using Bits = KeepBits<kFragments>;
  // Entries of the list are fetched so many tiles before their own: an entry has to be there before
  // the loads of its tile begin.
  static constexpr int kAhead = kStages > 1 ? 2 * (kStages - 1) : 2;
  using List = KeyTiles<Params, kAhead <= 3 ? 4 : 8>;
  static_assert(kAhead < 8 && List::kBytes <= kBitsAt - kListAt);
  using Fragment = u32[4];
  using ScoreTile = float[kFragments][kColumns][4];
  using Weights = u32[kFragments][kColumns / 2][4];
  using Output = float[kFragments][kOutputs][4];

  // The keys or values of a head.
  struct Source {
    const u16* first;
    i64 row;  // stride
    int dim;
    int wide;
  };

  // What a CTA is about; in shared memory, because registers are scarce.
  struct Item : Work {
    Source kv[2];
  };

  // Computing one query tile. kCareful: values that are not finite reach the rows that keep their
  // keys and no others.
  template <bool kCareful>
  struct Pass {
    const Params& p;
    const Item& work;
    const u32 smem;
    Fragment q[kFragments][Shape::kQInRegisters ? kSteps : 1];
    Output o;
    Softmax softmax;

    // What follows from a thread's number is computed anew where it is used, which costs less than
    // the registers.
    __device__ static __forceinline__ int thread() { return ptx::opaque(threadIdx.x); }
    __device__ static __forceinline__ int lane() { return thread() % 32; }
    __device__ static __forceinline__ int warp_row() { return thread() / 32 * Shape::kWarpRows; }

    __device__ __forceinline__ Pass(const Params& params, const Item& item, u32 shared)
        : p(params), work(item), smem(shared) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int j = 0; j < kOutputs; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[f][j][e] = 0.f;
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

    // Keys (0) or values (1) of a tile.
    __device__ __forceinline__ void load(int which, int stage, int col) {
      const Source& source = work.kv[which];
      const u32 to = stage_k(stage) + which * KvTile::kBytes;
      const u16* from = source.first + static_cast<i64>(col) * kKeys * source.row;
      const int rows = work.kv_length - col * kKeys;
      if (rows >= kKeys && source.wide && source.dim % 8 == 0)
        WholeTile<KvTile, kThreads>::load(to, from, source.row, source.dim / 8);
      else
        load_tile<KvTile, kThreads>(to, {from, source.row, 1, rows, source.dim, source.wide != 0});
    }
    __device__ __forceinline__ void load_bits(int stage, int bitmap_id) {
      if (bitmap_id < 0) return;
      const int row = kPacked ? 0 : work.row0 % p.mask_rows;
      const i64 rows = static_cast<i64>(bitmap_id) * p.mask_rows + row;
      for (int i = thread(); i < kBitsBytes / 16; i += kThreads)
        ptx::cp_async_16(smem + kBitsAt + stage * kBitsBytes + 16 * i,
                         p.bitmaps + 2 * rows + 4 * i);
    }
    __device__ __forceinline__ void load(int stage, const KeyTile& tile) {
      if (beyond(tile.col)) return;
#pragma unroll 1
      for (int which = 0; which < 2; ++which) load(which, stage, tile.col);
      load_bits(stage, tile.bitmap_id);
    }

    // What WholeTile leaves out.
    __device__ __forceinline__ void clear_padding() {
      if (p.dim_qk == kHeadDim && p.dim_v == kHeadDim) return;
      for (int i = thread(); i < 2 * kStages * kKeys * KvTile::kChunks; i += kThreads)
        ptx::store_shared_16(stage_k(0) + 16 * i, make_uint4(0, 0, 0, 0));
      __syncthreads();
    }

    __device__ __forceinline__ void load_q() {
      for (int i = thread(); i < Shape::kRows * QTile::kChunks; i += kThreads) {
        const int r = i / QTile::kChunks, chunk = i % QTile::kChunks;
        const int row = work.row0 + r;
        const int valid = work.query(p, row) < p.seq_q ? max(0, min(8, p.dim_qk - 8 * chunk)) : 0;
        const u16* from = p.q;
        if (valid > 0)
          from += work.batch * p.q_batch + work.head_of(p, row) * p.q_head +
                  work.query(p, row) * p.q_row + 8 * chunk;
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

    __device__ __forceinline__ u32 address_q() const {
      const int lane = this->lane();
      return QTile::address(smem_q(), warp_row() + (lane & 15), lane >> 4);
    }

    __device__ __forceinline__ void keep_q() {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int f = 0; f < kFragments; ++f)
          ptx::ldmatrix_x4(q[f][step], QTile::further(address_q(), 2 * step) + f * 16 * kPitch);
    }

    // S = Q K^T for the warp's rows.
    __device__ __forceinline__ void multiply(ScoreTile& s, int stage) {
      const int lane = this->lane();
      const u32 at =
          KvTile::address(stage_k(stage), (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
      const u32 at_q = address_q();
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[f][j][e] = 0.f;
#pragma unroll(Shape::kQInRegisters ? kSteps : 2)
      for (int step = 0; step < kSteps; ++step) {
        if constexpr (!Shape::kQInRegisters) {
#pragma unroll
          for (int f = 0; f < kFragments; ++f)
            ptx::ldmatrix_x4(q[f][0], QTile::further(at_q, 2 * step) + f * 16 * kPitch);
        }
#pragma unroll
        for (int j = 0; j < kColumns / 2; ++j) {
          Fragment b;  // {k-low, k-high} of columns 16j..16j+7, then of 16j+8..16j+15
          ptx::ldmatrix_x4(b, KvTile::further(at, 2 * step) + j * 16 * kPitch);
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            const Fragment& a = q[f][Shape::kQInRegisters ? step : 0];
            ptx::mma_m16n8k16<T>(s[f][2 * j], a, b[0], b[1]);
            ptx::mma_m16n8k16<T>(s[f][2 * j + 1], a, b[2], b[3]);
          }
        }
      }
    }

    // The accumulators of S, packed in order, are P's operand fragments.
    __device__ static __forceinline__ void pack(Weights& a, const ScoreTile& s) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float (&from)[4] = s[f][2 * i + e / 2];
            a[f][i][e] = ptx::pack<T>(from[e % 2 * 2], from[e % 2 * 2 + 1]);
          }
    }

    // O += P V.
    __device__ __forceinline__ void accumulate(const Weights& a, int stage) {
      const int lane = this->lane();
      const u32 at = KvTile::address(stage_v(stage), lane & 15, lane >> 4);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i)
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          Fragment b;
          ptx::ldmatrix_x4_trans(b, KvTile::further(at, 2 * j) + i * 16 * kPitch);
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            ptx::mma_m16n8k16<T>(o[f][2 * j], a[f][i], b[0], b[1]);
            ptx::mma_m16n8k16<T>(o[f][2 * j + 1], a[f][i], b[2], b[3]);
          }
        }
    }

    // The two elements of a word, those that are not finite replaced by zero.
    __device__ static __forceinline__ u32 finite_part(u32 word) {
      const T lo = {static_cast<u16>(word)}, hi = {static_cast<u16>(word >> 16)};
      return (is_finite(lo) ? word & 0x0000ffff : 0) | (is_finite(hi) ? word & 0xffff0000 : 0);
    }

    // Values of a tile that are not finite are added here, to the rows that keep their key, and
    // cleared before the product.
    __device__ __forceinline__ void set_aside_non_finite(const Bits& bits, int stage) {
      const u32 smem_v = stage_v(stage);
      const int lane = this->lane();
      u64 keep[kFragments][2];  // of each of a thread's rows, a bit for each key
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int r = 0; r < 2; ++r) keep[f][r] = bits.row(f, r, lane);
#pragma unroll
      for (int first = 0; first < kOutputs; first += 2)  // more at a time would take registers
#pragma unroll 1
        for (int key = 0; key < kKeys; ++key)
#pragma unroll
          for (int j = first; j < first + 2; ++j) {
            const u32 odd = ptx::load_shared_4(KvTile::address(smem_v, key, j) + 4 * (lane & 3));
            const u32 rest = odd ^ finite_part(odd);  // what is not finite, zero elsewhere
            const float lo = ptx::to_float(T{static_cast<u16>(rest)});
            const float hi = ptx::to_float(T{static_cast<u16>(rest >> 16)});
#pragma unroll
            for (int f = 0; f < kFragments; ++f)
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                if (!(keep[f][r] >> key & 1)) continue;
                o[f][j][2 * r] += lo;
                o[f][j][2 * r + 1] += hi;
              }
          }
      __syncthreads();  // every warp has taken them
#pragma unroll 1
      for (int i = thread(); i < kKeys * KvTile::kChunks; i += kThreads) {
        const uint4 x = ptx::load_shared_16(smem_v + 16 * i);
        ptx::store_shared_16(smem_v + 16 * i, make_uint4(finite_part(x.x), finite_part(x.y),
                                                         finite_part(x.z), finite_part(x.w)));
      }
      __syncthreads();
    }

    // Key tile i of the list, whose keys are there. `between` the two products, values have to
    // come.
    template <class Between>
    __device__ __forceinline__ void step(const List& list, int i, int stage,
                                         const Between& between) {
      ScoreTile s;
      multiply(s, stage);
      const KeyTile tile = list[i];  // not before: registers
      const int lane = this->lane();
      const int keys = work.kv_length - tile.col * kKeys;
      Scores::apply(s, p, work, work.row0 + warp_row() + (lane >> 2),
                    tile.col * kKeys + 2 * (lane & 3));
      if (tile.bitmap_id >= 0 || keys < kKeys) {
        Bits bits;
        if (tile.bitmap_id >= 0)
          bits.template load<kPacked>(p, work, smem + kBitsAt + stage * kBitsBytes, warp_row(),
                                      lane);
        else
          bits.fill();
        bits.limit(keys, lane);
        bits.apply(s);
      }
      Bits keep;
      if constexpr (kCareful) keep.read(s);
      const float factor = Scores::factor(p);
      softmax.template raise<kCareful>(s, factor, o);
      softmax.weigh(s, factor);
      Weights weights;
      pack(weights, s);
      between();
      if constexpr (kCareful) set_aside_non_finite(keep, stage);
      accumulate(weights, stage);
    }

    // Whether no key of a tile counts: it lies past the last key.
    __device__ __forceinline__ bool beyond(int col) const {
      return col >= ceil_div(work.kv_length, kKeys);
    }

    __device__ __forceinline__ void run() {
      const List list{p, smem + kListAt};
      const int end = work.end;
      clear_padding();
      load_q();
      ptx::cp_async_commit();
      int i = work.begin;
      if constexpr (kStages > 1) {
        int stage = 0;
#pragma unroll 1
        for (int j = 0; j < kAhead; ++j) list.fetch(i + j, end);
#pragma unroll 1
        for (; stage < kStages - 1; ++stage) {
          if (i + stage < end) load(stage, list.read(i + stage));
          ptx::cp_async_commit();
        }
        if constexpr (Shape::kQInRegisters) {
          ptx::cp_async_wait<kStages - 1>();
          __syncthreads();
          keep_q();
        }
        stage = 0;
#pragma unroll 1
        for (; i < end; ++i) {
          ptx::cp_async_wait<kStages - 2>();
          __syncthreads();  // the tile is there, and every warp is done with the one before
          const int coming = i + kStages - 1;
          if (coming < end) load(stage == 0 ? kStages - 1 : stage - 1, list[coming]);
          list.fetch(i + kAhead, end);
          ptx::cp_async_commit();
          if (!beyond(list[i].col)) step(list, i, stage, [] {});
          stage = stage + 1 == kStages ? 0 : stage + 1;
        }
      } else {
        for (int j = 0; j < kAhead; ++j) list.fetch(i + j, end);
        const auto load_k = [&](const KeyTile& tile) {
          load(0, 0, tile.col);
          load_bits(0, tile.bitmap_id);
        };
        if (i < end) load_k(list.read(i));
        ptx::cp_async_commit();
        if constexpr (Shape::kQInRegisters) {
          ptx::cp_async_wait<0>();
          __syncthreads();
          keep_q();
        }
#pragma unroll 1
        for (; i < end; ++i) {
          ptx::cp_async_wait<0>();
          __syncthreads();  // K is there, and every warp is done with V
          const KeyTile tile = list[i];
          const bool skipped = beyond(tile.col);
          if (!skipped) load(1, 0, tile.col);
          list.fetch(i + kAhead, end);
          ptx::cp_async_commit();
          const auto load_next = [&] {
            ptx::cp_async_wait<0>();
            __syncthreads();  // V is there, and every warp is done with K
            if (i + 1 < end) load_k(list[i + 1]);
            ptx::cp_async_commit();
          };
          if (skipped)
            load_next();
          else
            step(list, i, 0, load_next);
        }
      }
      softmax.finish();
    }

    // Whether all of a thread's outputs are finite.
    __device__ __forceinline__ bool finite() const {
      float zero = 0.f;
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int j = 0; j < kOutputs; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) zero = fmaf(o[f][j][e], 0.f, zero);
      return zero == 0.f;
    }

    // Stores the warp's rows, by way of its part of shared memory from `smem` on, which nobody else
    // uses any more.
    __device__ __forceinline__ void store() {
      const int lane = this->lane(), row0 = work.row0 + warp_row();
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = 16 * f + 8 * r + (lane >> 2);
          const int query = work.query(p, row0 + at), head = work.head_of(p, row0 + at);
          const bool valid = query < p.seq_q;
          const float sink = valid && p.sinks ? p.sinks[head] * kLog2e : kNegativeInfinity;
          const RowResult row(softmax.origin[f][r], softmax.sum[f][r], sink);
          if (valid && p.lse && (lane & 3) == 0)
            p.lse[(work.batch * p.heads + head) * p.seq_q + query] = row.lse;
          const u32 to = QTile::address(smem, warp_row() + at, 0) + 4 * (lane & 3);
#pragma unroll
          for (int j = 0; j < kOutputs; ++j)
            ptx::store_shared_4(
                QTile::further(to, j),
                ptx::pack<T>(o[f][j][2 * r] * row.factor, o[f][j][2 * r + 1] * row.factor));
        }
      __syncwarp();
      for (int i = lane; i < Shape::kWarpRows * QTile::kChunks; i += 32) {
        const int at = i / QTile::kChunks, chunk = i % QTile::kChunks;
        const int query = work.query(p, row0 + at);
        const int valid = p.dim_v - 8 * chunk;
        if (query >= p.seq_q || valid <= 0) continue;
        const uint4 x = ptx::load_shared_16(QTile::address(smem, warp_row() + at, chunk));
        T* to = p.out + work.batch * p.out_batch + work.head_of(p, row0 + at) * p.out_head +
                query * p.out_row + 8 * chunk;
        if (p.wide_out && valid >= 8) {
          *reinterpret_cast<uint4*>(to) = x;
        } else {
          const u32 word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (e < valid) to[e] = {static_cast<u16>(word[e / 2] >> e % 2 * 16)};
        }
      }
    }

    // A slice's result, see Work::partial.
    __device__ __forceinline__ void store_partial() {
      const int lane = this->lane();
      float* to = p.partial + work.partial(p, work.split) * (Shape::kRows * (kHeadDim + 2));
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = warp_row() + 16 * f + 8 * r + (lane >> 2);
#pragma unroll
          for (int j = 0; j < kOutputs; ++j)
            *reinterpret_cast<float2*>(to + row * kHeadDim + 8 * j + 2 * (lane & 3)) =
                make_float2(o[f][j][2 * r], o[f][j][2 * r + 1]);
          if ((lane & 3) == 0)
            *reinterpret_cast<float2*>(to + Shape::kRows * kHeadDim + 2 * row) =
                make_float2(softmax.origin[f][r], softmax.sum[f][r]);
        }
    }

    // Whether keys were masked in any tile, of which those with a bitmap are the first. Keys past
    // the last are all zeros.
    __device__ __forceinline__ bool masked() const {
      if (Scores::kMasks) return true;
      return p.row_ptr != nullptr && work.begin < work.end && p.bitmap_id[work.begin] >= 0;
    }

    // False, and nothing is stored, if that has to be done carefully.
    __device__ __forceinline__ bool attend() {
      run();
      const bool again = __syncthreads_or(!kCareful && masked() && !finite());
      if (again) return false;
      if (work.slices > 1)
        store_partial();
      else
        store();
      return true;
    }
  };

  // All of a query tile's output, where nothing right can be computed.
  __device__ static void store_nan(const Params& p, const Work& work) {
    const float nan = __int_as_float(0x7fffffff);
    for (int i = threadIdx.x; i < Shape::kRows * p.dim_v; i += kThreads) {
      const int row = work.row0 + i / p.dim_v, col = i % p.dim_v;
      const i64 query = work.query(p, row), head = work.head_of(p, row);
      if (query >= p.seq_q) break;
      p.out[work.batch * p.out_batch + head * p.out_head + query * p.out_row + col] =
          ptx::from_float<T>(nan);
      if (p.lse != nullptr && col == 0)
        p.lse[(work.batch * p.heads + head) * p.seq_q + query] = nan;
    }
  }

  __device__ static __forceinline__ void run(const Params& p, char* memory) {
    Item& item = *reinterpret_cast<Item*>(memory + kTileBytes);
    static_assert(sizeof(Item) <= kListAt - kTileBytes);
    const Work work = Work::of(p, blockIdx.x);
    if (work.none(p)) return;
    if (threadIdx.x == 0) {
      const i64 kv_head = work.head / p.heads_per_kv;
      item = {work,
              {{p.k + work.batch * p.k_batch + kv_head * p.k_head, p.k_row, p.dim_qk, p.wide_k},
               {p.v + work.batch * p.v_batch + kv_head * p.v_head, p.v_row, p.dim_v, p.wide_v}}};
    }
    __syncthreads();
    if (p.overflow != nullptr && *p.overflow != 0) {
      if (work.split == 0) store_nan(p, work);
      return;
    }
    const u32 smem = ptx::shared_address(memory);
    if (Pass<false>(p, item, smem).attend()) return;
    Pass<true>(p, item, ptx::opaque(smem)).attend();
  }
};

}  // namespace stof::attention
