// Values that are not finite, of keys that some rows mask: 0 * NaN would reach these.
#pragma once

#include "attention/tiles.cuh"
#include "ptx/convert.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "types.cuh"

namespace stof::attention {

// The two elements of a word, those that are not finite replaced by zero.
template <typename T>
__device__ __forceinline__ u32 finite_part(u32 word) {
  const T lo = {static_cast<u16>(word)}, hi = {static_cast<u16>(word >> 16)};
  return (is_finite(lo) ? word & 0x0000ffff : 0) | (is_finite(hi) ? word & 0xffff0000 : 0);
}

template <typename T>
__device__ __forceinline__ bool has_non_finite(u32 word) {
  return finite_part<T>(word) != word;
}

// Adds the values of a tile that are not finite to the rows that keep their key, and clears them
// before the product. All of a CTA's threads take part.
template <typename T, class KvTile, class Shape, int kFragments, int kOutputs>
__device__ __forceinline__ void set_aside_non_finite(float (&o)[kFragments][kOutputs][4],
                                                     const KeepBits<kFragments>& bits, u32 smem_v) {
  constexpr int kKeys = KvTile::kRows, kThreads = Shape::kThreads;
  const int thread = ptx::opaque(Shape::thread()), lane = thread % 32;
  bool odd = false;
#pragma unroll 4
  for (int i = thread; i < kKeys * KvTile::kChunks; i += kThreads) {
    const uint4 x = ptx::load_shared_16(smem_v + 16 * i);
    odd = odd || has_non_finite<T>(x.x) || has_non_finite<T>(x.y) || has_non_finite<T>(x.z) ||
          has_non_finite<T>(x.w);
  }
  if (!__syncthreads_or(odd)) return;
#pragma unroll
  for (int first = 0; first < kOutputs; first += 2)  // more at a time would take registers
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      u32 keep[kFragments];  // bits 0 and 16: whether a thread's rows keep the key
#pragma unroll
      for (int f = 0; f < kFragments; ++f) keep[f] = bits.of(f, key, lane);
#pragma unroll
      for (int j = first; j < first + 2; ++j) {
        const u32 odd = ptx::load_shared_4(KvTile::address(smem_v, key, j) + 4 * (lane & 3));
        const u32 rest = odd ^ finite_part<T>(odd);  // what is not finite, zero elsewhere
        const float lo = ptx::to_float(T{static_cast<u16>(rest)});
        const float hi = ptx::to_float(T{static_cast<u16>(rest >> 16)});
#pragma unroll
        for (int f = 0; f < kFragments; ++f)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (!(keep[f] >> 16 * r & 1)) continue;
            o[f][j][2 * r] += lo;
            o[f][j][2 * r + 1] += hi;
          }
      }
    }
  __syncthreads();  // every warp has taken them
#pragma unroll 1
  for (int i = thread; i < kKeys * KvTile::kChunks; i += kThreads) {
    const uint4 x = ptx::load_shared_16(smem_v + 16 * i);
    ptx::store_shared_16(smem_v + 16 * i, make_uint4(finite_part<T>(x.x), finite_part<T>(x.y),
                                                     finite_part<T>(x.z), finite_part<T>(x.w)));
  }
  __syncthreads();
}

}  // namespace stof::attention
