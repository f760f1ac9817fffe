"""What memory gives: the time to read arrays once, by a kernel that does nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

THREADS = 512
CTAS = 4  # of an SM

_SOURCE = r"""
extern "C" __global__ void __launch_bounds__(512)
read(const uint4* from, long long size, unsigned* out) {
  constexpr int kAtOnce = 8;  // loads of a thread that are on their way together
  unsigned all = 0;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x * kAtOnce;
  for (long long at = blockIdx.x * static_cast<long long>(blockDim.x) * kAtOnce + threadIdx.x;
       at < size; at += step) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const long long mine = at + u * blockDim.x;
      x[u] = mine < size ? from[mine] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) all ^= x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
  }
  if (all == 0x9e3779b9u) *out = all;  // or there would be nothing to read for
}
"""


@cache
def _kernel() -> Any:
    import cupy

    return cupy.RawKernel(_SOURCE, "read", backend="nvrtc", options=("-std=c++17",))


def reading(*arrays: Any) -> Callable[[], None]:
    """Return a call that reads contiguous arrays of whole 16 bytes on CuPy's current stream."""
    import cupy

    out = cupy.zeros(1, np.uint32)
    ctas = CTAS * cupy.cuda.Device().attributes["MultiProcessorCount"]

    def run() -> None:
        for array in arrays:
            size = np.int64(array.nbytes // 16)
            _kernel()((ctas,), (THREADS,), (array.data.ptr, size, out))

    return run
