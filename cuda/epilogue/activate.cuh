// f(x) for an activation of activation.cuh
#pragma once

#include "activation.cuh"
#include "epilogue/operands.cuh"

namespace stof::epilogue {

template <class Activation>
struct Activate {
  template <typename T>
  static __device__ __forceinline__ float apply(float x, const Operands&, int, int) {
    return Activation::apply(x);
  }
};

}  // namespace stof::epilogue
