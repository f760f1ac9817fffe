"""Kernels of cuda/ compiled for the CPU, where their threads take turns: slow, and no GPU needed.

What it shows is that a kernel computes the right thing and that its threads meet at the same
barriers, in any order of threads between them; not that the GPU does the same.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from stof_cupy.jit.source import cuda_root
from stof_cupy.jit.spec import KernelSpec

HERE = Path(__file__).parent
_LAUNCH = """
#include "on_host_ptx.hpp"
#include "{header}"
using Kernel = {type};
static_assert(sizeof(Kernel::Params) == {params} && Kernel::kThreads == {threads});
static_assert(Kernel::kSmemBytes == {smem});
static Kernel::Params params;
alignas(1024) static char smem[{smem} + 1];

extern "C" bool launch(const void* packed, unsigned x, unsigned y, unsigned seed) {{
  std::memcpy(&params, packed, sizeof params);
  host::body = [] {{ Kernel::run(params, smem); }};
  host::shared = smem;
  host::shared_size = {smem};
  std::mt19937 random(seed);
  for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x) {{
      std::memset(smem, 0xff, sizeof smem);  // NaN
      host::start_copies({threads});
      if (!host::run_cta({threads}, random)) return false;
    }}
  return true;
}}
"""
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas")
# Undefined behaviour, shifts and overflows among it, ends the process.
_STRICT = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")


def launch(spec: KernelSpec, grid: tuple[int, int], **fields: Any) -> None:
    """Run the kernel on NumPy arrays, whose addresses are among the fields of its params."""
    assert fields.keys() == {name for name, _ in spec.params}
    values = tuple(fields[name] for name, _ in spec.params)
    packed = np.array([values], spec.params_dtype())
    assert _compiled(spec)(packed.ctypes.data, *grid, 0), "threads wait for each other forever"


@cache
def _compiled(spec: KernelSpec) -> Callable[..., bool]:
    compiler = shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no g++ on Linux")
    source = _LAUNCH.format(
        header=spec.header,
        type=spec.type,
        params=spec.params_dtype().itemsize,
        threads=spec.threads,
        smem=spec.smem_bytes,
    )
    with TemporaryDirectory() as folder:
        at = Path(folder)
        shutil.copytree(cuda_root(), at / "cuda")
        # These headers are PTX; on_host_ptx.hpp has what they have.
        for header in (at / "cuda" / "ptx").glob("*.cuh"):
            header.write_text("")
        (at / "kernel.cpp").write_text(source)
        includes = [f"-I{path}" for path in (HERE, at / "cuda")]
        command = [compiler, *_FLAGS, *_STRICT, *includes, "kernel.cpp", "-o", "kernel.so"]
        done = subprocess.run(command, cwd=at, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        function = ctypes.CDLL(str(at / "kernel.so")).launch
    function.restype = ctypes.c_bool
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint]
    called: Callable[..., bool] = function
    return called
