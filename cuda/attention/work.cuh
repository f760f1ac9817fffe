// Which query tile of which head a CTA takes, and which part of its list of key tiles.
//
// A long list is cut into slices, one a CTA, whose partial results combine.cuh adds up. Only the
// first `long_slots` query tiles of a head, the longest, can be cut, into at most `splits` slices
// of about `slice` tiles. What the host sets depends on nothing that only the GPU knows: a CTA
// whose slice turns out not to be needed returns at once.
//
// A head's items are long_slots * splits slices, slices of one tile together, and then the other
// query tiles.
#pragma once

#include "types.cuh"

namespace stof::attention {

// How many slices a list of `tiles` tiles is cut into.
template <class Params>
__device__ __forceinline__ int slices_of(const Params& p, int tiles) {
  return tiles <= p.slice + p.slice / 2 ? 1 : min(p.splits, ceil_div(tiles, p.slice));
}

template <class Params, class Shape, bool kPacked>
struct Work {
  static constexpr int kRows = Shape::kRows;
  i64 batch;
  int head;  // the first one, of packed heads
  int slot;
  int row0;  // first row of the query tile
  int kv_length;
  int begin, end;  // tiles of the list
  int split, slices;
  bool masked;  // whether the list has a part tile; set when its first entry is read

  // The query tile at a slot of a head, with its whole list.
  __device__ __forceinline__ Work(const Params& p, i64 batch, int group, int slot)
      : batch(batch), head(group * p.pack), slot(slot), split(0), slices(1), masked(false) {
    const i64 mask = p.mask_of ? p.mask_of[batch * p.mask_batch + head * p.mask_head] : 0;
    const int ratio = p.mask_rows / Shape::kRows;
    int tile = slot, row_tile = 0;
    if (!kPacked && p.row_ptr != nullptr) {
      row_tile = slot / ratio;
      if (p.order != nullptr) row_tile = p.order[mask * p.row_tiles + row_tile];
      tile = row_tile * ratio + slot % ratio;
    }
    row0 = tile * kRows;
    kv_length = p.kv_lengths ? max(0, min(p.seq_k, p.kv_lengths[batch])) : p.seq_k;
    const i64 row = mask * (p.row_tiles + 1) + row_tile;
    begin = p.row_ptr ? p.row_ptr[row] : 0;
    end = p.row_ptr ? p.row_ptr[row + 1] : ceil_div(kv_length, Shape::kKeys);
    if (slot < p.long_slots) slices = slices_of(p, end - begin);
  }

  // That of a CTA.
  __device__ static __forceinline__ Work of(const Params& p, u32 block) {
    const int items = p.slots + p.long_slots * (p.splits - 1);
    const int groups = kPacked ? p.heads / p.pack : p.heads;
    const u32 tile = block / items;
    const int item = block - tile * items, batch = tile / groups, group = tile - batch * groups;
    const bool cut = item < p.long_slots * p.splits;
    const int slot = cut ? item / p.splits : item - p.long_slots * (p.splits - 1);
    Work work(p, batch, group, slot);
    if (cut) work.split = item % p.splits;
    if (work.slices > 1) {
      const i64 tiles = work.end - work.begin;
      const int first = work.begin;
      work.begin = first + static_cast<int>(tiles * work.split / work.slices);
      work.end = first + static_cast<int>(tiles * (work.split + 1) / work.slices);
    }
    return work;
  }

  // Whether there is nothing to do: slices or rows beyond the last.
  __device__ bool none(const Params& p) const {
    return split >= slices || row0 >= p.seq_q * p.pack;
  }

  __device__ int query(const Params& p, int row) const { return kPacked ? row / p.pack : row; }
  __device__ int head_of(const Params& p, int row) const {
    return kPacked ? head + row % p.pack : head;
  }

  // Number of a partial result. Of each of its rows there are kHeadDim sums of weighted values,
  // and after those of all rows the highest score and the sum of weights.
  __device__ i64 partial(const Params& p, int split) const {
    const i64 group = batch * (p.heads / p.pack) + head / p.pack;
    return (group * p.long_slots + slot) * p.splits + split;
  }
};

}  // namespace stof::attention
