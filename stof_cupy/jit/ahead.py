"""Kernels compiled before they are needed, several at a time.

NVRTC compiles one kernel at a time in a process, whatever the number of threads: so it is other
processes that compile, into the cache on disk, where the kernels are found when they are loaded.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stof_cupy.jit import launch
from stof_cupy.jit.cache import Store
from stof_cupy.jit.spec import KernelSpec

__all__ = ["compile_ahead", "compiling", "main"]

_WORTH_IT = 3
"""Kernels from which on starting processes, half a second each, pays."""


def compile_ahead(
    specs: Iterable[KernelSpec], arch: str, *, jobs: int | None = None, later: bool = False
) -> int:
    """Compile what is not in the cache, and return how many kernels those were; see `compiling`."""
    with compiling(specs, arch, jobs=jobs, later=later) as count:
        return count


@contextmanager
def compiling(
    specs: Iterable[KernelSpec], arch: str, *, jobs: int | None = None, later: bool = False
) -> Iterator[int]:
    """Compile what is not in the cache while in the context, at whose end it is there.

    Gives how many kernels those are. A kernel that does not compile is left to whoever needs it,
    who is told why.

    Parameters
    ----------
    specs : iterable of KernelSpec
    arch : str
        E.g. ``"90a"``.
    jobs : int, optional
        Processes at most. Default: the CPUs that this process may use.
    later : bool
        Whether they are for runs to come, which are not to wait for a compiler: then even those are
        compiled that are sooner ready where they are loaded.
    """
    store = launch.store()
    missing = [spec for spec in dict.fromkeys(specs) if store.find(spec, arch) is None]
    count = min(jobs or _cpus(), len(missing))
    few = len(missing) < (1 if later else _WORTH_IT) or count < (1 if later else 2)
    running: list[subprocess.Popen[bytes]] = []
    if not few and sys.executable:
        try:
            for first in range(count):
                running.append(_start(store.root, arch, missing[first::count]))
        except OSError:  # no more processes
            missing = []
    # Of none that are running, kernels are compiled when they are loaded.
    try:
        yield len(missing) if running else 0
    finally:
        for process in running:
            process.wait()


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start(root: Path, arch: str, specs: Sequence[KernelSpec]) -> subprocess.Popen[bytes]:
    """Start a process that compiles `specs` into the store at `root`."""
    code = "import sys; sys.path[:] = {!r}; from stof_cupy.jit.ahead import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code.format(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if process.stdin is not None:
        try:
            process.stdin.write(pickle.dumps((root, arch, list(specs))))
            process.stdin.close()
        except BrokenPipeError:  # it ended at once: its kernels are compiled when they are loaded
            pass
    return process


def main() -> None:
    """Compile what standard input names; what the processes of `compile_ahead` run."""
    from stof_cupy.errors import StofError

    root, arch, specs = pickle.loads(sys.stdin.buffer.read())
    store = Store(root)
    for spec in specs:
        try:
            store.get(spec, arch)
        except StofError:
            continue
