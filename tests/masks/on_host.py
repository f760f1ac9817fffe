"""Kernels of cuda/ compiled for the CPU, where their threads take turns: slow, and no GPU needed.

What it shows is that a kernel computes the right thing and that its threads meet at the same
barriers, in any order of threads between them; not that the GPU does the same.
"""

from __future__ import annotations

import ctypes
import mmap
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
from numpy.typing import NDArray

from stof_cupy.jit.source import cuda_root
from stof_cupy.jit.spec import KernelSpec

HERE = Path(__file__).parent
_LAUNCH = """
#include "on_host_ptx.hpp"
#include "{header}"
#include <atomic>
#include <csignal>
#include <thread>
#include <unistd.h>
{prelude}
using Kernel = {type};
static_assert(sizeof(Kernel::Params) == {params} && Kernel::kThreads == {threads});
static_assert(Kernel::kSmemBytes == {smem});
static Kernel::Params params;
thread_local char* smem;

// `at_once` CTAs at a time, each by a thread of the CPU.
extern "C" bool launch(const void* packed, unsigned x, unsigned y, unsigned seed,
                       unsigned at_once) {{
  std::memcpy(&params, packed, sizeof params);
  host::body = [] {{ Kernel::run(params, smem); }};
  std::vector<unsigned> order(x * y);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::atomic<unsigned> next(0);
  std::atomic<bool> ended(true);
  const auto work = [&](unsigned number) {{
    std::mt19937 random(seed + number);
    host::Cta cta({threads});
    host::cta = &cta;
    std::vector<char> memory({smem} + 1025);
    smem = memory.data() + (-reinterpret_cast<unsigned long long>(memory.data()) & 1023);
    host::shared = smem;
    host::shared_size = {smem};
    for (unsigned i; ended && (i = next++) < order.size();) {{
      blockIdx = {{order[i] % x, order[i] / x, 0}};
      std::fill_n(smem, {smem}, static_cast<char>(0xff));  // NaN
      host::start_copies({threads});
      if (!host::run_cta(random)) ended = false;
      if (host::copying()) std::abort();  // it may land on what shared memory is used for later
    }}
  }};
  // A kernel that polls memory for what never comes cannot be told to end.
  const auto before = std::signal(SIGALRM, [](int) {{ std::abort(); }});
  alarm(60);
  std::vector<std::thread> others;
  for (unsigned number = 1; number < at_once; ++number) others.emplace_back(work, number);
  work(0);
  for (std::thread& other : others) other.join();
  alarm(0);
  std::signal(SIGALRM, before);
  return ended;
}}
"""
# Undefined behaviour, shifts and overflows among it, ends the process. Fortified, longjmp refuses
# to change stacks.
_FLAGS = [
    "-std=c++17",
    "-O1",
    "-shared",
    "-fPIC",
    "-pthread",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-fsanitize=undefined",
    "-fsanitize-undefined-trap-on-error",
    "-U_FORTIFY_SOURCE",
]


def launch(
    spec: KernelSpec, grid: tuple[int, int], *, seed: int = 0, at_once: int = 1, **fields: Any
) -> None:
    """Run the kernel on NumPy arrays, whose addresses are among the fields of its params.

    CTAs and the threads in them come in an order that `seed` decides, and `at_once` CTAs at a time.
    """
    assert fields.keys() == {name for name, _ in spec.params}
    values = tuple(fields[name] for name, _ in spec.params)
    packed = np.array([values], spec.params_dtype())
    ended = _compiled(spec)(packed.ctypes.data, *grid, seed, at_once)
    assert ended, "threads wait for each other forever"


def compiler() -> str:
    """Return where the compiler is; the test is skipped where there is none."""
    found = shutil.which("g++")
    if found is None or sys.platform != "linux":
        pytest.skip("no g++ on Linux")
    return str(found)


def fenced(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy after which memory ends: to read or write beyond it ends the process."""
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    whole = np.frombuffer(memory, np.uint8)
    failed = ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + size), page, 0)
    assert not failed
    copy = whole[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@cache
def library(source: str) -> ctypes.CDLL:
    """Compile C++ that may include headers of cuda/, and those of this folder."""
    with TemporaryDirectory() as folder:
        at = Path(folder)
        shutil.copytree(cuda_root(), at / "cuda")
        # The headers here, or those that include them, have what those in PTX have.
        for header in (at / "cuda" / "ptx").glob("*.cuh"):
            if "asm" in header.read_text():
                header.write_text("")
        (at / "host.cpp").write_text(source)
        includes = [f"-I{path}" for path in (HERE, at / "cuda")]
        command = [compiler(), *_FLAGS, *includes, "host.cpp", "-o", "host.so"]
        done = subprocess.run(command, cwd=at, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(at / "host.so"))


@cache
def _compiled(spec: KernelSpec) -> Callable[..., bool]:
    source = _LAUNCH.format(
        header=spec.header,
        prelude=spec.prelude,
        type=spec.type,
        params=spec.params_dtype().itemsize,
        threads=spec.threads,
        smem=spec.smem_bytes,
    )
    function = library(source).launch
    function.restype = ctypes.c_bool
    function.argtypes = [ctypes.c_void_p, *(ctypes.c_uint,) * 4]
    called: Callable[..., bool] = function
    return called
