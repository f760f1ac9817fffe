// Activations of one float, shared by GEMM epilogues and the elementwise kernel.
#pragma once

#include "ptx/math.cuh"

namespace stof::activation {

// x * Phi(x), with the Gaussian distribution function Phi.
struct Gelu {
  static __device__ __forceinline__ float apply(float x) {
    constexpr float kInverseSqrt2 = 0.70710678118654752f;
    return 0.5f * x * erfcf(x * -kInverseSqrt2);  // 1 + erf would cancel at x << 0
  }
};

// The tanh approximation 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1
// + e^(-2u)): no cancellation.
struct GeluTanh {
  static __device__ __forceinline__ float apply(float x) {
    constexpr float kMinusTwoLog2e = -2.f * 1.4426950408889634f;
    constexpr float kSqrt2OverPi = 0.79788456080286536f;
    const float u = kSqrt2OverPi * (x + 0.044715f * x * x * x);
    return x / (1.f + ptx::exp2(kMinusTwoLog2e * u));
  }
};

// x / (1 + e^-x), the sigmoid linear unit.
struct Silu {
  static __device__ __forceinline__ float apply(float x) {
    constexpr float kMinusLog2e = -1.4426950408889634f;
    return x / (1.f + ptx::exp2(kMinusLog2e * x));
  }
};

// max(x, 0); NaN stays NaN.
struct Relu {
  static __device__ __forceinline__ float apply(float x) { return x < 0.f ? 0.f : x; }
};

}  // namespace stof::activation
