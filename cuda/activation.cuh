// Activations of one float, shared by GEMM epilogues and the elementwise kernel.
#pragma once

#include "ptx/math.cuh"

namespace stof::activation {

// x * Phi(x), with the Gaussian distribution function Phi = erfc(-x / sqrt 2) / 2.
//
// erfc(z) = t exp(P(t) - z^2) for z >= 0, with t = 1 / (1 + z / 2) and a polynomial P that was
// fitted for a relative error of 1e-5 at all z: an absolute one would show at x << 0.
struct Gelu {
  static __device__ __forceinline__ float apply(float x) {
    constexpr float kLog2e = 1.4426950408889634f;
    constexpr float kHalfInverseSqrt2 = 0.35355339059327376f;
    const float size = fminf(fabsf(x), 100.f);  // no 0 * inf
    const float t = ptx::reciprocal(fmaf(size, kHalfInverseSqrt2, 1.f));
    float power = 0.22720676f * kLog2e;
    power = fmaf(power, t, -0.70466660f * kLog2e);
    power = fmaf(power, t, 0.46961100f * kLog2e);
    power = fmaf(power, t, 0.25690424f * kLog2e);
    power = fmaf(power, t, 1.01744121f * kLog2e);
    power = fmaf(power, t, -1.26649328f * kLog2e - 1.f);  // halved
    power = fmaf(size * size, -0.5f * kLog2e, power);
    const float tail = t * ptx::exp2(power);  // Phi(-|x|)
    return fmaf(-size, tail, ptx::or_zero(x));
  }
};

// The tanh approximation 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1
// + e^(-2u)): no cancellation.
struct GeluTanh {
  static __device__ __forceinline__ float apply(float x) {
    constexpr float kMinusTwoLog2e = -2.f * 1.4426950408889634f;
    constexpr float kSqrt2OverPi = 0.79788456080286536f;
    const float slope =
        fmaf(x * x, kMinusTwoLog2e * kSqrt2OverPi * 0.044715f, kMinusTwoLog2e * kSqrt2OverPi);
    return x * ptx::reciprocal(1.f + ptx::exp2(x * slope));
  }
};

// x / (1 + e^-x)
struct Silu {
  static __device__ __forceinline__ float apply(float x) {
    return x * ptx::reciprocal(1.f + ptx::exp2(x * -1.4426950408889634f));
  }
};

struct Relu {
  static __device__ __forceinline__ float apply(float x) { return ptx::or_zero(x); }
};

}  // namespace stof::activation
