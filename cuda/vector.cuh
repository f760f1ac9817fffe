// Eight consecutive 16-bit elements as floats: one 16-byte access where rows allow it, single ones
// elsewhere.
#pragma once

#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof {

template <typename T>
struct Vector8 {
  float x[8];

  __device__ static __forceinline__ Vector8 of(uint4 raw) {
    Vector8 v;
    const u32 word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v.x[2 * i] = ptx::to_float(T{static_cast<u16>(word[i] & 0xffff)});
      v.x[2 * i + 1] = ptx::to_float(T{static_cast<u16>(word[i] >> 16)});
    }
    return v;
  }

  // Elements from `valid` on are 0.
  __device__ static __forceinline__ Vector8 load(const T* from, int valid, bool wide) {
    Vector8 v;
    if (wide && valid >= 8) {
      v = of(*reinterpret_cast<const uint4*>(from));
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v.x[i] = i < valid ? ptx::to_float(from[i]) : 0.f;
    }
    return v;
  }

  __device__ __forceinline__ void store(T* to, int valid, bool wide) const {
    if (wide && valid >= 8) {
      *reinterpret_cast<uint4*>(to) =
          make_uint4(ptx::pack<T>(x[0], x[1]), ptx::pack<T>(x[2], x[3]), ptx::pack<T>(x[4], x[5]),
                     ptx::pack<T>(x[6], x[7]));
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i < valid) to[i] = ptx::from_float<T>(x[i]);
    }
  }
};

}  // namespace stof
