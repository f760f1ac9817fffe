// An epilogue is a list of stages, applied in order to what was summed up, before it is rounded and
// stored.
//
// A stage is a struct with
//   template <typename T> static __device__ void apply(float (&x)[2], const Operands& operands,
//                                                      i64 row, int col);
// where x are columns `col`, even, and col + 1 of a row, and T is the output type. They may lie
// outside of the output, and are not stored then: a stage that loads looks at Operands.
//
// One stage may couple columns of the output instead: it has `kApart` and couple(float (&x)[2],
// float (&y)[2], operands, row, col), where y are that many columns further on. A kernel calls
// Chain::couple for such columns, which takes both through the stages up to that one, and apply
// for the rest.
//
// One stage may fold: it has `kFolds` and apply(float (&x)[2], const float (&y)[2]), which combines
// x with y, that many columns of the output further on in B. Stages before see both, with their
// columns of B; stages after see the output. A stage that reads the residual has `kReadsResidual`,
// so that a kernel can read it ahead;
// so with `kReadsBias` and `kReadsNormed` (ahead.cuh).
#pragma once

#include "epilogue/operands.cuh"
#include "types.cuh"

namespace stof::epilogue {

template <class Stage, class = void>
constexpr bool kFolds = false;
template <class Stage>
constexpr bool kFolds<Stage, decltype(static_cast<void>(Stage::kFolds))> = true;

template <class Stage, class = void>
constexpr bool kReadsResidual = false;
template <class Stage>
constexpr bool kReadsResidual<Stage, decltype(static_cast<void>(Stage::kReadsResidual))> = true;

template <class Stage, class = void>
constexpr bool kReadsBias = false;
template <class Stage>
constexpr bool kReadsBias<Stage, decltype(static_cast<void>(Stage::kReadsBias))> = true;

template <class Stage, class = void>
constexpr bool kReadsNormed = false;
template <class Stage>
constexpr bool kReadsNormed<Stage, decltype(static_cast<void>(Stage::kReadsNormed))> = true;

template <class Stage, class = void>
constexpr int kCouples = 0;
template <class Stage>
constexpr int kCouples<Stage, decltype(static_cast<void>(Stage::kApart))> = Stage::kApart;

template <class Stage, class = void>
constexpr bool kSplitsHeads = false;
template <class Stage>
constexpr bool kSplitsHeads<Stage, decltype(static_cast<void>(Stage::kHeads))> = true;

template <class Stage, class = void>
constexpr bool kTellsStatistics = false;
template <class Stage>
constexpr bool kTellsStatistics<Stage, decltype(static_cast<void>(Stage::kStatistics))> = true;

template <typename... Stages>
struct Chain {
  static constexpr bool kResidual = (kReadsResidual<Stages> || ... || false);
  static constexpr bool kBias = (kReadsBias<Stages> || ... || false);
  static constexpr bool kNormed = (kReadsNormed<Stages> || ... || false);
  static constexpr bool kHeads = (kSplitsHeads<Stages> || ... || false);
  static constexpr bool kStatistics = (kTellsStatistics<Stages> || ... || false);
  static constexpr int kApart = (kCouples<Stages> + ... + 0);
  static constexpr int kHalves = 1 + (kFolds<Stages> + ... + 0);
  static_assert(kHalves <= 2, "one stage folds at most");
  static_assert(kApart == 0 || kHalves == 1, "or one couples");

  // The result is x[0].
  template <typename T>
  static __device__ __forceinline__ void apply(float (&x)[kHalves][2], const Operands& operands,
                                               i64 row, int col) {
    [[maybe_unused]] int halves = kHalves;
    [[maybe_unused]] bool on = kApart == 0;
    (step<T, Stages>(x, halves, on, operands, row, col), ...);
  }

  // Columns `col` and col + 1, and those kApart further on, up to where they are coupled.
  template <typename T>
  static __device__ __forceinline__ void couple(float (&x)[2], float (&y)[2],
                                                const Operands& operands, i64 row, int col) {
    bool on = true;
    (couple_step<T, Stages>(x, y, on, operands, row, col), ...);
  }

  template <typename T, class Stage>
  static __device__ __forceinline__ void couple_step(float (&x)[2], float (&y)[2], bool& on,
                                                     const Operands& operands, i64 row, int col) {
    if constexpr (kCouples<Stage> > 0) {
      Stage::couple(x, y, operands, row, col);
      on = false;
    } else if constexpr (!kFolds<Stage>) {
      if (!on) return;
      Stage::template apply<T>(x, operands, row, col);
      Stage::template apply<T>(y, operands, row, col + kApart);
    }
  }

  template <typename T, class Stage>
  static __device__ __forceinline__ void step(float (&x)[kHalves][2], int& halves, bool& on,
                                              const Operands& operands, i64 row, int col) {
    if constexpr (kFolds<Stage>) {
      Stage::apply(x[0], x[1]);
      halves = 1;
    } else if constexpr (kCouples<Stage> > 0) {
      on = true;
    } else {
      if (!on) return;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        if (half < halves) {
          Operands here = operands;
          here.half_of_b = half;
          Stage::template apply<T>(x[half], here, row, col + half * operands.cols);
        }
    }
  }
};

}  // namespace stof::epilogue
