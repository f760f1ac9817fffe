// Loops that are unrolled whatever their size, so that what they index stays in registers: before
// NVRTC 12.8 a pragma does not do that to large ones.
#pragma once

namespace stof {

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Calls body(Constant<i>()) for i from kFirst up to kEnd.
template <int kFirst, int kEnd, class Body>
__device__ __forceinline__ void unrolled(const Body& body) {
  if constexpr (kFirst < kEnd) {
    body(Constant<kFirst>());
    unrolled<kFirst + 1, kEnd>(body);
  }
}

}  // namespace stof
