// Reading the arrays and scalars that a formula names.
#pragma once

#include "mask/bits.cuh"
#include "mask/formula.cuh"
#include "mask/node.cuh"
#include "types.cuh"

namespace stof::mask {

// An element as formulas compute with it: an int where all values fit one, else an i64 or a double.
template <typename T>
struct Element {
  using Type = i64;
  __device__ static i64 value(T x) { return static_cast<i64>(x); }
};

template <typename T>
struct SmallElement {
  using Type = int;
  __device__ static int value(T x) { return x; }
};
template <>
struct Element<bool> : SmallElement<bool> {};
template <>
struct Element<signed char> : SmallElement<signed char> {};
template <>
struct Element<unsigned char> : SmallElement<unsigned char> {};
template <>
struct Element<short> : SmallElement<short> {};
template <>
struct Element<unsigned short> : SmallElement<unsigned short> {};
template <>
struct Element<int> : SmallElement<int> {};

template <>
struct Element<double> {
  using Type = double;
  __device__ static double value(double x) { return x; }
};
template <>
struct Element<float> {
  using Type = double;
  __device__ static double value(float x) { return widen(x); }
};
template <>
struct Element<f16> {
  using Type = double;
  __device__ static double value(f16 x) { return half_value(x.bits); }
};
template <>
struct Element<bf16> {
  using Type = double;
  __device__ static double value(bf16 x) {
    return widen(float_of_bits(static_cast<u32>(x.bits) << 16));
  }
};

// An element that nobody writes while the kernel runs, so that it need not be read again.
template <typename T>
__device__ __forceinline__ T unchanging(u64 address) {
#ifdef __CUDACC__
  T x;
  if constexpr (sizeof(T) == 1) {
    const u8 bits = __ldg(reinterpret_cast<const u8*>(address));
    memcpy(&x, &bits, 1);
  } else if constexpr (sizeof(T) == 2) {
    const u16 bits = __ldg(reinterpret_cast<const u16*>(address));
    memcpy(&x, &bits, 2);
  } else if constexpr (sizeof(T) == 4) {
    const u32 bits = __ldg(reinterpret_cast<const u32*>(address));
    memcpy(&x, &bits, 4);
  } else {
    const u64 bits = __ldg(reinterpret_cast<const u64*>(address));
    memcpy(&x, &bits, 8);
  }
  return x;
#else
  return *reinterpret_cast<const T*>(address);
#endif
}

// Element `index` of an array; 0 beyond it. Loads something in any case: a load under no condition
// can be moved out of a loop.
template <typename T>
__device__ __forceinline__ typename Element<T>::Type at(const Array& array, int index) {
  const bool inside = static_cast<u32>(index) < array.reach;
  const i64 offset = static_cast<i64>(inside ? index : 0) * array.stride;
  const typename Element<T>::Type x = Element<T>::value(unchanging<T>(array.data + offset));
  return inside ? x : 0;
}
template <typename T>
__device__ __forceinline__ typename Element<T>::Type at(const Array& array, i64 index) {
  const bool inside = static_cast<u64>(index) < static_cast<u64>(array.size);
  const i64 offset = (inside ? index : 0) * array.stride;
  const typename Element<T>::Type x = Element<T>::value(unchanging<T>(array.data + offset));
  return inside ? x : 0;
}

template <typename T>
__device__ __forceinline__ T scalar(const Array& scalar) {
  union {
    u64 from;
    T to;
  } same = {scalar.data};
  return same.to;
}

}  // namespace stof::mask
