"""Kernels of cuda/ compiled for the CPU, where their threads take turns: slow, and no GPU needed.

What it shows is that a kernel computes the right thing and that its threads meet at the same
barriers, in any order of threads between them; not that the GPU does the same.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from stof_cupy.jit.source import cuda_root
from stof_cupy.jit.spec import KernelSpec

HERE = Path(__file__).parent
STORE = HERE.parents[1] / ".pytest_cache" / "on_host"
"""What was compiled, for all processes and later runs: a folder for each state of the headers."""

_NAMES = ("on_host.hpp", "on_host_cta.hpp", "on_host_mma.hpp", "on_host.cpp")
_SHARED = tuple(HERE / name for name in _NAMES)
_FIRST = (HERE / "on_host_ptx.hpp", HERE.parent / "ops" / "on_hopper.hpp")
"""What sources begin with, precompiled; the rest of each is a .cpp of the same name."""
_KEPT = 24 * 3600  # seconds that a folder stays which nobody uses

_LAUNCH = """
#include "on_host_ptx.hpp"
#include "{header}"
{prelude}
using Kernel = {type};
static_assert(sizeof(Kernel::Params) == {params} && Kernel::kThreads == {threads});
static_assert(Kernel::kSmemBytes == {smem});
static Kernel::Params params;

extern "C" long long launch(const void* packed, unsigned x, unsigned y, unsigned seed,
                            unsigned at_once) {{
  std::memcpy(&params, packed, sizeof params);
  const auto run = [] {{ Kernel::run(params, host::shared); }};
  return host::launch({{run, {threads}, {smem}, {waits}}}, x, y, seed, at_once);
}}
"""
# Undefined behaviour, shifts and overflows among it, ends the process. Fortified, longjmp refuses
# to change stacks. To optimise more takes longer than it saves: most kernels run once or twice.
_FLAGS = [
    "-std=c++17",
    "-Og",
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
_ONCE = ["-c", "-O3"]
"""More of them for what is compiled once."""


Written: TypeAlias = "tuple[NDArray[Any], NDArray[Any], NDArray[Any]]"
"""An array, and what is in it until a CTA has waited for earlier kernels, and then."""


def launch(
    spec: KernelSpec,
    grid: tuple[int, int],
    *,
    seed: int = 0,
    at_once: int = 1,
    earlier: Sequence[Written] = (),
    **fields: Any,
) -> int:
    """Run the kernel on NumPy arrays, whose addresses are among the fields of its params.

    CTAs and the threads in them come in an order that `seed` decides, and `at_once` CTAs at a time:
    one, if there is something that `earlier` kernels write. Returned is how many products of
    mma.sync their warps made.
    """
    assert fields.keys() == {name for name, _ in spec.params}
    assert at_once == 1 or not earlier
    values = tuple(fields[name] for name, _ in spec.params)
    packed = np.array([values], spec.params_dtype())
    run = _compiled(spec)
    with writing(run.made, earlier):
        products = run(packed.ctypes.data, *grid, seed, at_once)
    assert products >= 0, "threads wait for each other forever"
    return products


@contextmanager
def writing(made: ctypes.CDLL, earlier: Sequence[Written]) -> Iterator[None]:
    """Let kernels of a library meanwhile wait for earlier ones that write."""
    tell = made.earlier_writes
    tell.argtypes, tell.restype = [*(ctypes.c_void_p,) * 3, ctypes.c_size_t], None
    for array, before, after in earlier:
        assert array.nbytes == before.nbytes == after.nbytes
        assert all(each.flags.c_contiguous for each in (array, before, after))
        tell(*(each.ctypes.data for each in (array, before, after)), array.nbytes)
    yield
    tell(None, None, None, 0)


def compiler() -> str:
    """Return where the compiler is; the test is skipped where there is none."""
    found = shutil.which("g++")
    if found is None or sys.platform != "linux":
        pytest.skip("no g++ on Linux")
    return str(found)


def fenced(array: NDArray[Any], *, before: bool = False) -> NDArray[Any]:
    """Return a copy after which memory ends: to read or write beyond it ends the process.

    With `before`, one before which it begins.
    """
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, page + size + page)
    whole = np.frombuffer(memory, np.uint8)
    for fence in (0, page + size):
        failed = ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + fence), page, 0)
        assert not failed
    start = page if before else page + size - array.nbytes
    copy = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@cache
def library(source: str) -> ctypes.CDLL:
    """Compile C++ that begins with one of the headers of tests; it may include those of cuda/."""
    folder = _headers()
    name = hashlib.sha256(source.encode()).hexdigest()[:32]
    made = folder / f"{name}.so"
    with _alone(folder / f"{name}.lock"):
        if not made.exists():
            (folder / f"{name}.cpp").write_text(source)
            (first,) = (each.stem for each in _FIRST if each.name in source)
            _compile(made, f"{name}.cpp", f"{first}.o", "on_host.o")
    return ctypes.CDLL(str(made))


@cache
def _headers() -> Path:
    """Return the folder that has the headers as they are now, those of tests precompiled."""
    state = hashlib.sha256(repr(_FLAGS + _ONCE).encode() + _run(compiler(), "--version").encode())
    sources = [*_SHARED, *_FIRST, *(path.with_suffix(".cpp") for path in _FIRST)]
    for path in (*sorted(cuda_root().rglob("*.cuh")), *sources):
        state.update(str(path).encode() + path.read_bytes())
    folder = STORE / state.hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / "lock"):
        if not (folder / "ready").exists():
            shutil.copytree(cuda_root(), folder / "cuda", dirs_exist_ok=True)
            # The headers here, or those that include them, have what those in PTX have.
            for header in (folder / "cuda" / "ptx").glob("*.cuh"):
                if "asm" in header.read_text():
                    header.write_text("")
            for path in sources:
                shutil.copy(path, folder)
            # Before there are precompiled headers, which g++ takes though they are of another -O.
            for path in sources:
                if path.suffix == ".cpp":
                    _compile(folder / f"{path.stem}.o", *_ONCE, path.name)
            for header in _FIRST:
                # A header by itself is a warning, of `#pragma once` in what is no header.
                _compile(folder / f"{header.name}.gch", "-w", "-x", "c++-header", header.name)
        (folder / "ready").touch()
    for other in STORE.iterdir():
        used = other / "ready"
        if used.exists() and time.time() - used.stat().st_mtime > _KEPT:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _compile(into: Path, *what: str) -> None:
    """Compile in the folder of `into`, which is there as a whole afterwards."""
    with TemporaryDirectory(dir=into.parent) as aside:
        made = Path(aside) / "made"
        _run(compiler(), *_FLAGS, "-I.", "-Icuda", *what, "-o", str(made), cwd=into.parent)
        made.replace(into)


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let no other process in until this one is done."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _compiled(spec: KernelSpec) -> Any:
    """Return what launches it, and as `made` the library that it is from."""
    source = _LAUNCH.format(
        header=spec.header,
        prelude=spec.prelude,
        type=spec.type,
        params=spec.params_dtype().itemsize,
        threads=spec.threads,
        smem=spec.smem_bytes,
        waits=str(spec.waits).lower(),
    )
    made = library(source)
    function = made.launch
    function.restype = ctypes.c_longlong
    function.argtypes = [ctypes.c_void_p, *(ctypes.c_uint,) * 4]
    function.made = made
    return function
