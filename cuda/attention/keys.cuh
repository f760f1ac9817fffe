// Which keys a query row keeps, handed to a warp in chunks. A source is a struct template with
//   Block(params, mask, index)      // what CTA `index` of a head does: `rows` query rows row(0..),
//                                   // with all its warps each if `shared`, else a warp each
// and, for a row's keys or a warp's share of them,
//   bool valid()                    // whether there are more; the same in all lanes
//   int next(place)                 // key number `place` of the next chunk, or -1 past its end
#pragma once

#include "attention/softmax.cuh"
#include "mask/bitmap.cuh"
#include "types.cuh"

namespace stof::attention {

// A list of keys for each query row: `row_ptr` and `cols` are those of a CSR matrix (of all masks,
// one after another), `order` the query rows, the `long_rows` longest first, or null.
template <int kChunk>
struct KeyLists {
  static constexpr int kQueue = 0;

  struct Block {
    bool shared;
    int first, rows;
    const int* order;

    template <typename P>
    __device__ __forceinline__ Block(const P& p, i64 mask, int index) {
      shared = index < p.long_rows;
      first = shared ? index : p.long_rows + (index - p.long_rows) * p.block_rows;
      rows = shared ? 1 : min(p.block_rows, p.seq_q - first);
      order = p.order ? p.order + mask * p.seq_q : nullptr;
    }
    __device__ __forceinline__ int row(int i) const { return order ? order[first + i] : first + i; }
  };

  const int* keys;
  int at, end, stride, limit;

  template <typename P>
  __device__ __forceinline__ KeyLists(const P& p, i64 mask, int row, int part, int parts,
                                      int kv_length, int*, int) {
    const int* bounds = p.row_ptr + mask * (p.seq_q + 1LL) + row;
    keys = p.cols;
    at = bounds[0] + part * kChunk;
    end = bounds[1];
    stride = parts * kChunk;
    limit = kv_length;
  }
  __device__ __forceinline__ bool valid() const { return at < end; }
  __device__ __forceinline__ int next(int place) {
    const int key = place < min(kChunk, end - at) ? keys[at + place] : -1;
    at += stride;
    return key < limit ? key : -1;
  }
};

// The mask's lists of 64x64 tiles and its bitmaps of 8x8 words, as in sm80.cuh; without lists,
// every key. A warp gathers the keys of a row, tile by tile, in a ring of shared memory.
template <int kChunk>
struct TileLists {
  static constexpr int kQueue = 128;  // keys: up to kChunk - 1 are left when a tile adds 64
  static constexpr int kLong = 16;    // tiles, from which all warps share a row

  struct Block {
    bool shared;
    int first, rows;

    template <typename P>
    __device__ __forceinline__ Block(const P& p, i64 mask, int index) {
      const int q_tiles = ceil_div(p.seq_q, kBitmapTile);
      const int blocks = kBitmapTile / p.block_rows;
      const int slot = index / blocks;
      const int tile = p.order ? p.order[mask * q_tiles + slot] : slot;
      const int* bounds = p.row_ptr ? p.row_ptr + mask * (q_tiles + 1LL) + tile : nullptr;
      const int tiles = bounds ? bounds[1] - bounds[0] : ceil_div(p.seq_k, kBitmapTile);
      shared = tiles >= kLong;
      first = tile * kBitmapTile + index % blocks * p.block_rows;
      rows = max(0, min(p.block_rows, p.seq_q - first));
    }
    __device__ __forceinline__ int row(int i) const { return first + i; }
  };

  const int* cols;
  const int* bitmap_id;
  const u8* bytes;  // of the bitmaps
  int row_byte;     // the row's among those of a word column
  int* queue;
  int tile, end, stride, limit, lane;
  int head = 0, queued = 0;

  template <typename P>
  __device__ __forceinline__ TileLists(const P& p, i64 mask, int row, int part, int parts,
                                       int kv_length, int* ring, int lane_) {
    const int q_tile = row / kBitmapTile;
    const i64 list = mask * (ceil_div(p.seq_q, kBitmapTile) + 1LL) + q_tile;
    const int inside = row % kBitmapTile;
    cols = p.row_ptr ? p.cols : nullptr;
    bitmap_id = p.bitmap_id;
    bytes = reinterpret_cast<const u8*>(p.bitmaps);
    row_byte = bitmap_word(inside, 0) * 8 + bitmap_bit(inside, 0) / 8;
    tile = (p.row_ptr ? p.row_ptr[list] : 0) + part;
    end = p.row_ptr ? p.row_ptr[list + 1] : ceil_div(kv_length, kBitmapTile);
    stride = parts;
    limit = kv_length;
    queue = ring;
    lane = lane_;
    fill();
  }

  // Adds tiles until there is a chunk, or no tile left.
  __device__ __forceinline__ void fill() {
    while (queued < kChunk && tile < end) {
      const int first = (cols ? cols[tile] : tile) * kBitmapTile;
      const int id = cols ? bitmap_id[tile] : -1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = 32 * half + lane;
        bool keep = first + col < limit;
        if (id >= 0) {
          const i64 at = static_cast<i64>(id) * (kBitmapWords * 8) + bitmap_word(0, col) * 8;
          keep = keep && (bytes[at + row_byte] >> bitmap_bit(0, col) & 1) != 0;
        }
        const u32 kept = __ballot_sync(0xffffffffu, keep);
        if (keep)
          queue[(head + queued + __popc(kept & ((1u << lane) - 1))) & (kQueue - 1)] = first + col;
        queued += __popc(kept);
      }
      tile += stride;
    }
    __syncwarp();
  }
  __device__ __forceinline__ bool valid() const { return queued > 0; }
  __device__ __forceinline__ int next(int place) {
    const int count = min(kChunk, queued);
    const int key = place < count ? queue[(head + place) & (kQueue - 1)] : -1;
    head += count;
    queued -= count;
    __syncwarp();  // every lane has its key: its place may be written
    fill();
    return key;
  }
};

}  // namespace stof::attention
