// f(x) for an activation of activation.cuh
#pragma once

#include "activation.cuh"
#include "epilogue/operands.cuh"

namespace stof::epilogue {

template <class Activation>
struct Activate {
  template <typename T>
  static __device__ __forceinline__ void apply(float (&x)[2], const Operands&, i64, int) {
    x[0] = Activation::apply(x[0]);
    x[1] = Activation::apply(x[1]);
  }
};

}  // namespace stof::epilogue
