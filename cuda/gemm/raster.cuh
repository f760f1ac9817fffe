// The order in which tiles of C are computed.
#pragma once

#include "types.cuh"

namespace stof::gemm {

struct TilePlace {
  int row, col;
};

// Tile `index` of rows x cols, such that tiles computed at the same time share rows of A and
// columns of B in L2: groups of `group` rows, and in them column after column.
__device__ __forceinline__ TilePlace raster(int index, int rows, int cols, int group) {
  const int number = index / (group * cols);
  const int in_group = index - number * group * cols;
  const int first = number * group;
  const int height = min(group, rows - first);
  return {first + in_group % height, in_group / height};
}

}  // namespace stof::gemm
