// Block-wise sparse attention on mma.sync, for sm_80 and everything newer (STOF, arXiv 2506.06095,
// Algorithm 1).
//
// One CTA of four warps computes 64 query rows of one head; each warp owns sixteen. It walks the
// key tiles its row of the mask lists:
//   wait K | load V | S = Q K^T | load next K | mask, softmax | wait V | O += P V
// so that V travels under the first product and the next K under the softmax and the second
// product. Head dims whose output fills the registers take the columns of a tile in four passes.
#pragma once

#include "attention/softmax.cuh"
#include "mask/bitmap.cuh"
#include "ptx/convert.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "tile.cuh"
#include "types.cuh"

namespace stof::attention {

template <typename T, int kHeadDim>
struct Sm80 {
  static constexpr int kTile = 64;  // query rows and key columns of a tile: the mask's outer tile
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = kHeadDim <= 64 ? 2 : 1;
  static constexpr bool kQInRegisters = kHeadDim <= 128;  // above, O alone takes 96-128 registers
  static constexpr int kColumns = kHeadDim <= 192 ? kTile : kTile / 4;  // scores in registers
  static constexpr int kPasses = kTile / kColumns;                      // over a key tile
  using SmemTile = Tile<kTile, kHeadDim>;
  static constexpr int kSmemBytes = 3 * SmemTile::kBytes;

  struct Params {
    const u16* q;
    const u16* k;
    const u16* v;
    T* out;
    float* lse;  // (batch, heads, seq_q) contiguous, or null
    // The masks' lists (stof_cupy/masks/schedule.py), those of the distinct masks one after
    // another.
    const int* row_ptr;    // null: every key tile, unmasked
    const int* cols;       // key tile of each listed tile
    const int* bitmap_id;  // its bitmap, or -1 for a full tile
    const u64* bitmaps;
    const int* order;       // which query tile each CTA of a head takes
    const int* mask_of;     // the number of a batch and head's mask; null: number 0
    const int* kv_lengths;  // (batch,), or null: keys at and after it are masked
    const int* overflow;    // not null and not 0: the lists are cut off, and the answer is NaN
    i64 q_batch, q_head, q_row;
    i64 k_batch, k_head, k_row;
    i64 v_batch, v_head, v_row;
    i64 out_batch, out_head, out_row;
    int mask_batch, mask_head;  // strides of mask_of
    int heads, heads_per_kv;
    int seq_q, seq_k;
    int dim_qk, dim_v;
    int wide_q, wide_k, wide_v;  // rows 16-byte aligned: asynchronous copies
    int pairs_out;               // rows 4-byte aligned: two outputs a store
    float scale_log2;            // softmax scale * log2(e)
  };

  // The key tiles of one query tile, skipping those that lie past the last key.
  struct Tiles {
    const Params& p;
    int i, end, limit;

    // `row` counts the query tiles of all masks before this one, and one more for each mask.
    __device__ Tiles(const Params& params, i64 row, int kv_length) : p(params) {
      limit = ceil_div(kv_length, kTile);
      i = (p.row_ptr ? p.row_ptr[row] : 0) - 1;
      end = p.row_ptr ? p.row_ptr[row + 1] : limit;
      advance();
    }
    __device__ void advance() {
      do ++i;
      while (i < end && col() >= limit);
    }
    __device__ bool valid() const { return i < end; }
    __device__ int col() const { return p.row_ptr ? p.cols[i] : i; }
    __device__ int bitmap() const { return p.row_ptr ? p.bitmap_id[i] : -1; }
  };

  using Fragment = u32[4];
  using Scores = float[kColumns / 8][4];
  using Output = float[kHeadDim / 8][4];

  __device__ static __forceinline__ void load_q(Fragment& a, u32 smem_q, int warp, int lane,
                                                int step) {
    ptx::ldmatrix_x4(a, SmemTile::address(smem_q, 16 * warp + (lane & 15), 2 * step + (lane >> 4)));
  }

  // S = Q K^T for the warp's sixteen rows.
  __device__ static __forceinline__ void scores(Scores& s, const Fragment (&q)[kHeadDim / 16],
                                                u32 smem_q, u32 smem_k, int warp, int lane) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[j][e] = 0.f;
#pragma unroll(kQInRegisters ? kHeadDim / 16 : 2)
    for (int step = 0; step < kHeadDim / 16; ++step) {
      Fragment a;
      if constexpr (kQInRegisters) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[e] = q[step][e];
      } else {
        load_q(a, smem_q, warp, lane, step);
      }
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        Fragment b;  // {k-low, k-high} of columns 16j..16j+7, then of 16j+8..16j+15
        ptx::ldmatrix_x4(b, SmemTile::address(smem_k, 16 * j + (lane & 7) + ((lane >> 4) << 3),
                                              2 * step + ((lane >> 3) & 1)));
        ptx::mma_m16n8k16<T>(s[2 * j], a, b[0], b[1]);
        ptx::mma_m16n8k16<T>(s[2 * j + 1], a, b[2], b[3]);
      }
    }
  }

  // O += P V. The accumulators of S, packed in order, are P's operand fragments.
  __device__ static __forceinline__ void accumulate(Output& o, const Scores& p, u32 smem_v,
                                                    int lane) {
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
      const float (&lo)[4] = p[2 * step];
      const float (&hi)[4] = p[2 * step + 1];
      const Fragment a = {ptx::pack<T>(lo[0], lo[1]), ptx::pack<T>(lo[2], lo[3]),  //
                          ptx::pack<T>(hi[0], hi[1]), ptx::pack<T>(hi[2], hi[3])};
#pragma unroll
      for (int j = 0; j < kHeadDim / 16; ++j) {
        Fragment b;
        ptx::ldmatrix_x4_trans(
            b, SmemTile::address(smem_v, 16 * step + (lane & 15), 2 * j + (lane >> 4)));
        ptx::mma_m16n8k16<T>(o[2 * j], a, b[0], b[1]);
        ptx::mma_m16n8k16<T>(o[2 * j + 1], a, b[2], b[3]);
      }
    }
  }

  // An 8x8 inner tile is exactly what a warp's accumulators of eight columns cover, so each lane
  // takes two bits of the same word; they lie in the byte that is its row.
  __device__ static __forceinline__ void apply_bitmap(Scores& s, const u64* bits, int first_col,
                                                      int warp, int lane) {
    const u8* row_bytes = reinterpret_cast<const u8*>(bits) + bitmap_bit(lane >> 2, 0) / 8;
    const int shift = bitmap_bit(0, 2 * (lane & 3));
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const u32 pair = row_bytes[bitmap_word(16 * warp + 8 * r, first_col + 8 * j) * 8] >> shift;
        if (!(pair & 1)) s[j][2 * r] = kNegativeInfinity;
        if (!(pair & 2)) s[j][2 * r + 1] = kNegativeInfinity;
      }
    }
  }

  __device__ static __forceinline__ const u64* words(const Params& p, int bitmap_id) {
    return p.bitmaps + static_cast<i64>(bitmap_id) * kBitmapWords;
  }

  __device__ static __forceinline__ bool kept(const u64* bits, int row, int col) {
    return bits[bitmap_word(row, col)] >> bitmap_bit(row, col) & 1;
  }

  // The two elements of a word, those that are not finite replaced by zero.
  __device__ static __forceinline__ u32 finite_part(u32 word) {
    const T lo = {static_cast<u16>(word)}, hi = {static_cast<u16>(word >> 16)};
    return (is_finite(lo) ? word & 0x0000ffff : 0) | (is_finite(hi) ? word & 0xffff0000 : 0);
  }

  // In a product a masked value still counts, as 0 * NaN. So the values of a part tile that are not
  // finite are added here, to the rows that keep their key, and cleared before the product.
  __device__ static __forceinline__ void set_aside_non_finite(Output& o, u32 smem_v,
                                                              const u64* bits, int warp, int lane) {
    constexpr int kChunks = kTile * SmemTile::kChunks;
    bool clean = true;
    for (int i = threadIdx.x; i < kChunks; i += kThreads) {
      const uint4 v = ptx::load_shared_16(smem_v + 16 * i);
      clean = clean && finite_part(v.x) == v.x && finite_part(v.y) == v.y &&
              finite_part(v.z) == v.z && finite_part(v.w) == v.w;
    }
    if (__syncthreads_and(clean)) return;

#pragma unroll 1
    for (int key = 0; key < kTile; ++key) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!kept(bits, 16 * warp + 8 * r + (lane >> 2), key)) continue;
#pragma unroll
        for (int j = 0; j < kHeadDim / 8; ++j) {
          const u32 at = SmemTile::address(smem_v, key, j) + 4 * (lane & 3);
          const u32 odd = ptx::load_shared_4(at);
          const u32 rest = odd ^ finite_part(odd);  // what is not finite, zero elsewhere
          o[j][2 * r] += ptx::to_float(T{static_cast<u16>(rest)});
          o[j][2 * r + 1] += ptx::to_float(T{static_cast<u16>(rest >> 16)});
        }
      }
    }
    __syncthreads();  // every warp has taken them
    for (int i = threadIdx.x; i < kChunks; i += kThreads) {
      const uint4 v = ptx::load_shared_16(smem_v + 16 * i);
      ptx::store_shared_16(smem_v + 16 * i, make_uint4(finite_part(v.x), finite_part(v.y),
                                                       finite_part(v.z), finite_part(v.w)));
    }
    __syncthreads();
  }

  __device__ static __forceinline__ void apply_limit(Scores& s, int valid_cols, int lane) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (8 * j + 2 * (lane & 3) + (e & 1) >= valid_cols) s[j][e] = kNegativeInfinity;
  }

  __device__ static __forceinline__ void store(const Params& p, T* out, float* lse,
                                               const OnlineSoftmax& softmax, const Output& o,
                                               int row0, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + (lane >> 2) + 8 * r;
      if (row >= p.seq_q) continue;
      const float inverse = softmax.inverse_sum(r);
      T* to = out + row * p.out_row;
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        const int col = 8 * j + 2 * (lane & 3);
        const float x = o[j][2 * r] * inverse;
        const float y = o[j][2 * r + 1] * inverse;
        if (p.pairs_out && col + 1 < p.dim_v) {
          *reinterpret_cast<u32*>(to + col) = ptx::pack<T>(x, y);
        } else {
          if (col < p.dim_v) to[col] = ptx::from_float<T>(x);
          if (col + 1 < p.dim_v) to[col + 1] = ptx::from_float<T>(y);
        }
      }
      if (lse != nullptr && (lane & 3) == 0) lse[row] = softmax.log_sum_exp(r);
    }
  }

  // All of a query tile's output, where nothing right can be computed.
  __device__ static void store_nan(const Params& p, i64 batch, i64 head, int row0) {
    const float nan = __int_as_float(0x7fffffff);
    const int rows = min(kTile, p.seq_q - row0);
    for (int i = threadIdx.x; i < rows * p.dim_v; i += kThreads) {
      const i64 row = row0 + i / p.dim_v;
      p.out[batch * p.out_batch + head * p.out_head + row * p.out_row + i % p.dim_v] =
          ptx::from_float<T>(nan);
    }
    if (p.lse == nullptr) return;
    for (int i = threadIdx.x; i < rows; i += kThreads)
      p.lse[(batch * p.heads + head) * p.seq_q + row0 + i] = nan;
  }

  __device__ static __forceinline__ void run(const Params& p, char* smem) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int q_tiles = ceil_div(p.seq_q, kTile);
    const int slot = blockIdx.x % q_tiles;
    const int head = blockIdx.x / q_tiles % p.heads;
    const i64 batch = blockIdx.x / q_tiles / p.heads;
    const i64 mask = p.mask_of ? p.mask_of[batch * p.mask_batch + head * p.mask_head] : 0;
    const int q_tile = p.order ? p.order[mask * q_tiles + slot] : slot;
    const int row0 = q_tile * kTile;
    const int kv_length = p.kv_lengths ? max(0, min(p.seq_k, p.kv_lengths[batch])) : p.seq_k;

    if (p.overflow != nullptr && *p.overflow != 0) {
      store_nan(p, batch, head, row0);
      return;
    }

    const u32 smem_q = ptx::shared_address(smem);
    const u32 smem_k = smem_q + SmemTile::kBytes;
    const u32 smem_v = smem_k + SmemTile::kBytes;
    const i64 kv_head = head / p.heads_per_kv;
    const u16* k = p.k + batch * p.k_batch + kv_head * p.k_head;
    const u16* v = p.v + batch * p.v_batch + kv_head * p.v_head;
    const auto load_k = [&](int col) {
      const i64 first = static_cast<i64>(col) * kTile;
      load_tile<SmemTile, kThreads>(
          smem_k, {k + first * p.k_row, p.k_row, 1, static_cast<int>(kv_length - first), p.dim_qk,
                   p.wide_k != 0});
      ptx::cp_async_commit();
    };
    const auto load_v = [&](int col) {
      const i64 first = static_cast<i64>(col) * kTile;
      load_tile<SmemTile, kThreads>(
          smem_v, {v + first * p.v_row, p.v_row, 1, static_cast<int>(kv_length - first), p.dim_v,
                   p.wide_v != 0});
      ptx::cp_async_commit();
    };

    Tiles tile(p, mask * (q_tiles + 1) + q_tile, kv_length);
    load_tile<SmemTile, kThreads>(
        smem_q, {p.q + batch * p.q_batch + head * p.q_head + row0 * p.q_row, p.q_row, 1,
                 p.seq_q - row0, p.dim_qk, p.wide_q != 0});
    if (tile.valid()) load_k(tile.col());
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();

    Fragment q[kHeadDim / 16];
    if constexpr (kQInRegisters) {
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) load_q(q[step], smem_q, warp, lane, step);
    }
    OnlineSoftmax softmax;
    Output o;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] = 0.f;

    while (tile.valid()) {
      const int first_col = tile.col() * kTile;
      const int bitmap_id = tile.bitmap();
      load_v(tile.col());
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        const int offset = pass * kColumns;
        Scores s;
        scores(s, q, smem_q, SmemTile::address(smem_k, offset, 0), warp, lane);
        if (pass == kPasses - 1) {
          __syncthreads();  // every warp is done with K
          tile.advance();
          if (tile.valid()) load_k(tile.col());
        }

#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[j][e] *= p.scale_log2;
        if (bitmap_id >= 0) apply_bitmap(s, words(p, bitmap_id), offset, warp, lane);
        const int valid_cols = kv_length - first_col - offset;
        if (valid_cols < kColumns) apply_limit(s, valid_cols, lane);

        float rescale[2];
        softmax.update(s, rescale);
#pragma unroll
        for (int j = 0; j < kHeadDim / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[j][e] *= rescale[e / 2];

        if (pass == 0) {
          // Of the groups in flight V's is the older; the next K's is there if this pass began it.
          if (kPasses == 1 && tile.valid())
            ptx::cp_async_wait<1>();
          else
            ptx::cp_async_wait<0>();
          __syncthreads();  // V is there
          if (bitmap_id >= 0) set_aside_non_finite(o, smem_v, words(p, bitmap_id), warp, lane);
        }
        accumulate(o, s, SmemTile::address(smem_v, offset, 0), lane);
      }
      ptx::cp_async_wait<0>();
      __syncthreads();  // every warp is done with V, and the next K is there
    }

    softmax.finish();
    T* out = p.out + batch * p.out_batch + head * p.out_head;
    float* lse = p.lse ? p.lse + (batch * p.heads + head) * p.seq_q : nullptr;
    store(p, out, lse, softmax, o, row0 + 16 * warp, lane);
  }
};

}  // namespace stof::attention
