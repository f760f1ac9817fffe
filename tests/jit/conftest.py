"""A toy kernel in a directory of its own, and the NVRTC to compile it with."""

from __future__ import annotations

from pathlib import Path

import pytest

from stof_cupy.errors import MissingDependencyError
from stof_cupy.jit import nvrtc
from stof_cupy.jit.spec import KernelSpec

AXPY = """\
#pragma once
#include "detail/load.cuh"
namespace toy {
template <class T>
struct Axpy {
    struct Params {
        const T* x;
        T* y;
        long long n;
        float alpha;
        int shift;
    };
    static constexpr int kThreads = 128, kSmemBytes = 1024, kMinBlocks = 1;
    static __device__ void run(const Params& p, char* smem) {
        const long long i = blockIdx.x * (long long)kThreads + threadIdx.x;
        T* staged = reinterpret_cast<T*>(smem);
        staged[threadIdx.x] = i < p.n ? load(p.x + i) : T(0);
        __syncthreads();
        if (i < p.n) p.y[i] += p.alpha * staged[threadIdx.x] + p.shift;
    }
};
}  // namespace toy
"""

LOAD = """\
#pragma once
namespace toy {
template <class T>
__device__ T load(const T* p) { return *p; }
}  // namespace toy
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Device code with one template, ``axpy.cuh``, that includes ``detail/load.cuh``."""
    root = tmp_path / "cuda"
    (root / "detail").mkdir(parents=True)
    (root / "axpy.cuh").write_text(AXPY)
    (root / "detail" / "load.cuh").write_text(LOAD)
    return root


@pytest.fixture
def spec() -> KernelSpec:
    params = (("x", "u8"), ("y", "u8"), ("n", "i8"), ("alpha", "f4"), ("shift", "i4"))
    return KernelSpec("axpy_f32", "axpy.cuh", "toy::Axpy<float>", params, 128, 1024)


@pytest.fixture
def library() -> nvrtc.Library:
    try:
        return nvrtc.load()
    except MissingDependencyError as error:
        pytest.skip(str(error))
