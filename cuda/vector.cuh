// Eight consecutive 16-bit elements as floats: one 16-byte access where rows allow it, single ones
// elsewhere.
#pragma once

#include "ptx/convert.cuh"
#include "types.cuh"

namespace stof {

// The bits of 8 elements, of which if kWide all or none are `valid`; others are 0.
template <bool kWide, typename T>
__device__ __forceinline__ uint4 bits8(const T* from, int valid) {
  if constexpr (kWide) {
    if (valid <= 0) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(from);
  } else {
    u32 word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < valid) word[i / 2] |= static_cast<u32>(from[i].bits) << i % 2 * 16;
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
}

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

  __device__ __forceinline__ float sum() const {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += x[i];
    return sum;
  }

  // Of the distances from `mean`, of elements before `valid`; if kWide all 8 are, or none.
  template <bool kWide>
  __device__ __forceinline__ float squares(float mean, int valid) const {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float away = x[i] - mean;
      if (kWide || i < valid) sum += away * away;
    }
    return valid > 0 ? sum : 0.f;
  }

  // Mean and deviation become 0 and 1, and then those of a norm.
  __device__ __forceinline__ Vector8 normalised(float mean, float scale, const Vector8& weight,
                                                const Vector8& bias) const {
    Vector8 v;
#pragma unroll
    for (int i = 0; i < 8; ++i) v.x[i] = fmaf((x[i] - mean) * scale, weight.x[i], bias.x[i]);
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
