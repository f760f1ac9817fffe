// f(x) y for an activation of activation.cuh, where x are the first half of B's columns and y the
// second: SwiGLU, GeGLU and their kin.
#pragma once

#include "activation.cuh"

namespace stof::epilogue {

template <class Activation>
struct Gate {
  static constexpr bool kFolds = true;

  static __device__ __forceinline__ void apply(float (&x)[2], const float (&y)[2]) {
    x[0] = Activation::apply(x[0]) * y[0];
    x[1] = Activation::apply(x[1]) * y[1];
  }
};

}  // namespace stof::epilogue
