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

template <typename A, typename B>
__device__ constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

}  // namespace stof
