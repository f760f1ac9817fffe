// The parameters of the attention kernels, one struct for all variants; the host's statement is
// stof_cupy/jit/attention_kernels.py. Strides are in elements.
#pragma once

#include "types.cuh"

namespace stof::attention {

template <typename T>
struct Params {
  const u16* q;
  const u16* k;
  const u16* v;
  T* out;
  float* lse;      // (batch, heads, seq_q) contiguous, or null
  float* partial;  // of query tiles in slices, see work.cuh
  // The masks' lists (stof_cupy/masks/schedule.py), those of the distinct masks one after another.
  const int* row_ptr;     // null: every key tile, unmasked
  const int* cols;        // key tile of each listed tile
  const int* bitmap_id;   // its bitmap, or -1 for a full tile
  const u32* bitmaps;     // in accumulator order
  const int* order;       // row tiles of a mask, longest first; null: in order
  const int* mask_of;     // the number of a batch and head's mask; null: number 0
  const int* kv_lengths;  // (batch,), or null: keys at and after it are masked
  const int* overflow;    // not null and not 0: the lists are cut off, and the answer is NaN
  // Score modifications, see scores.cuh.
  const void* bias;        // broadcast to (batch, heads, seq_q, seq_k)
  const float* alibi;      // (heads,)
  const float* distances;  // (heads, 2 * reach + 1)
  const float* sinks;      // (heads,), or null
  const int* query_at;     // (seq_q,): where queries stand; null: query i at key i + seq_k - seq_q
  const int* key_at;       // (seq_k,), or null with query_at
  i64 q_batch, q_head, q_row;
  i64 k_batch, k_head, k_row;
  i64 v_batch, v_head, v_row;
  i64 out_batch, out_head, out_row;
  i64 bias_batch, bias_head, bias_row;
  int mask_batch, mask_head;      // strides of mask_of
  int mask_rows;                  // rows of a mask's tile, a multiple of the kernel's
  int row_tiles;                  // mask tiles along the queries
  int slots;                      // query tiles of a head
  int long_slots, splits, slice;  // see work.cuh
  int heads, heads_per_kv;
  int pack;  // query heads in one tile: row i is query i / pack of head i % pack
  int seq_q, seq_k;
  int dim_qk, dim_v;
  int wide_q, wide_k, wide_v, wide_out;  // rows 16-byte aligned
  int bias_col, reach;
  int negative;        // the scale is: scores are those of -q
  int early;           // row_ptr, cols, bitmap_id, order, mask_of: not written by the kernel before
  float scale_log2;    // |scale| * log2(e) > 0; with a softcap, |scale| / softcap
  float softcap_log2;  // softcap * log2(e)
};

}  // namespace stof::attention
