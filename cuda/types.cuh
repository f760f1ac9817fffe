// Fixed-width integers and the two 16-bit floats, without any CUDA header: every NVRTC since 12.4
// compiles this alone.
#pragma once

namespace stof {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

struct f16 {
  u16 bits;
};

struct bf16 {
  u16 bits;
};

// The bits of the exponent, all of them set in infinities and NaN.
template <typename T>
constexpr u32 kExponent = 0;
template <>
constexpr u32 kExponent<f16> = 0x7c00;
template <>
constexpr u32 kExponent<bf16> = 0x7f80;

template <typename T>
__device__ constexpr bool is_finite(T x) {
  return (x.bits & kExponent<T>) != kExponent<T>;
}

template <typename A, typename B>
__device__ constexpr auto ceil_div(A a, B b) {
  return a == 0 ? 0 : (a - 1) / b + 1;  // a + b - 1 could overflow
}

}  // namespace stof
