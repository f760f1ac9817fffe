// How a CTA of block-wise attention is made up. The host's statement of it, and of which shapes fit
// a GPU, is in stof_cupy/jit/attention_kernels.py and stof_cupy/ops/attention_config.py.
#pragma once

namespace stof::attention {

// kWarps warps of kWarpRows query rows each walk tiles of kKeys keys, the columns of a mask's tile.
// With 32 rows a warp reads K and V from shared memory half as often as with 16, for twice the
// registers.
//
// kStages == 2: two pairs of a K and a V tile lie in shared memory, and one barrier a tile keeps
// them apart. kStages == 1: one pair, whose halves are filled in turn, with two barriers a tile.
//
// kGroups > 1: so many groups of kWarps warps share the key tiles of the same rows, each in shared
// memory of its own, and add up in the end. For problems of so few rows that an SM has one CTA.
template <int kWarps_, int kWarpRows_, int kStages_, bool kQInRegisters_, int kMinBlocks_,
          int kGroups_ = 1>
struct Shape {
  static constexpr int kWarps = kWarps_;
  static constexpr int kWarpRows = kWarpRows_;
  static constexpr int kKeys = 64;
  static constexpr int kStages = kStages_;
  static constexpr bool kQInRegisters = kQInRegisters_;
  static constexpr int kMinBlocks = kMinBlocks_;  // resident on an SM
  static constexpr int kGroups = kGroups_;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kThreads = 32 * kWarps;  // of a group
  static constexpr int kFragments = kWarpRows / 16;
  // Once Q is in registers, its place can serve as the last stage, which is filled after that.
  static constexpr bool kQInStage = kQInRegisters && kStages > 1 && kRows <= 2 * kKeys;
  static constexpr int kSmemRows = (kQInStage ? 0 : kRows) + 2 * kStages * kKeys;
  __device__ static constexpr int group_bytes(int head_dim) { return kSmemRows * head_dim * 2; }
  using Narrow = Shape<kWarps, 16, kStages, kQInRegisters, kMinBlocks, kGroups>;

  // Number of the group, and of the thread in it.
  __device__ static __forceinline__ int group() {
    return kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / kThreads;
  }
  __device__ static __forceinline__ int thread() {
    return kGroups == 1 ? static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) % kThreads;
  }

  static_assert(kStages == 1 || kStages == 2);
  static_assert(kWarpRows == 16 || kWarpRows == 32, "rows of one or two mma fragments");
};

}  // namespace stof::attention
