// Descriptors of matrices in shared memory, for wgmma (sm_90a).
//
// Matrices lie in slabs of 64 elements (128 bytes) of the contiguous axis, which is
// where a 128-byte swizzled TMA box of that width puts them: `[slab][row][64]`, aligned to 1024
// bytes.
#pragma once

#include "types.cuh"

namespace stof::ptx {

// Contiguous along the 16 that are summed over (Q and K). Add 2 for the next 16 of a slab.
__device__ __forceinline__ u64 operand_k_major(u32 address) {
  return u64{(address & 0x3ffff) >> 4} | u64{1} << 16 | u64{1024 >> 4} << 32 | u64{1} << 62;
}

// Contiguous along N (V), or along the 64 rows of A; slabs are `slab_bytes` apart. Add 128 for the
// next 16 rows.
__device__ __forceinline__ u64 operand_n_major(u32 address, u32 slab_bytes) {
  return u64{(address & 0x3ffff) >> 4} | u64{slab_bytes >> 4} << 16 | u64{1024 >> 4} << 32 |
         u64{1} << 62;
}

}  // namespace stof::ptx
