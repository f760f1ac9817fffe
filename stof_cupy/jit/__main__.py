"""``python -m stof_cupy.jit``: compile the catalogue, with neither a GPU nor a driver."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stof_cupy.errors import CompileError, StofError
from stof_cupy.jit import nvrtc
from stof_cupy.jit.cache import Store
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.spec import KernelSpec

__all__ = ["main"]

_ARCHS = ("80", "86", "89", "90a", "100", "120")


def main(argv: Sequence[str] | None = None, specs: Sequence[KernelSpec] | None = None) -> int:
    """Compile kernels and print a table of time, registers and shared memory.

    Parameters
    ----------
    argv : sequence of str, optional
        Default: ``sys.argv[1:]``.
    specs : sequence of KernelSpec, optional
        Default: the catalogue.

    Returns
    -------
    int
        1 if a kernel did not compile, nothing was selected, or there is no NVRTC; else 0.
    """
    args = _parser().parse_args(argv)
    if specs is None:
        from stof_cupy.jit.catalogue import catalogue

        specs = catalogue()
    try:
        library = nvrtc.load(args.library)
    except StofError as error:
        print(error, file=sys.stderr)
        return 1
    version = ".".join(map(str, library.version))
    print(f"NVRTC {version}  {library.path}")
    archs = [arch for arch in args.arch if int(arch.rstrip("af")) in library.archs]
    if left_out := [f"sm_{arch}" for arch in args.arch if arch not in archs]:
        print(f"left out: {', '.join(left_out)} (not known to NVRTC {version})")
    chosen = [
        (spec, arch)
        for spec in specs
        for arch in archs
        if spec.supports(arch) and spec.nvrtc <= library.version and args.grep.search(spec.name)
    ]
    if not chosen:
        print("nothing to compile")
        return 1
    width = max(len(spec.name) for spec, _ in chosen)
    print(f"{'kernel':{width}}  {'arch':7}  {'ms':>6}  {'registers':>9}  {'smem bytes':>10}")
    start, failures = time.perf_counter(), []
    # NVRTC is thread-safe and ctypes lets go of the interpreter lock.
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(_row, spec, arch, library, args.out) for spec, arch in chosen]
        for (spec, arch), job in zip(chosen, jobs, strict=True):
            try:
                row = job.result()
            except CompileError as error:
                failures.append(str(error))
                row = "failed"
            print(f"{spec.name:{width}}  sm_{arch:4}  {row}", flush=True)
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    ok = len(chosen) - len(failures)
    print(f"{ok} of {len(chosen)} compiled in {time.perf_counter() - start:.1f} s")
    return 1 if failures else 0


def _row(spec: KernelSpec, arch: str, library: nvrtc.Library, out: Path | None) -> str:
    """Compile one kernel and describe it."""
    start = time.perf_counter()
    if out is None:
        cubin, note = compile_cubin(spec, arch, library), ""
    else:
        entry = Store(out).get(spec, arch, library)
        cubin, note = entry.cubin, "  (was there)" if entry.hit else ""
    time_ms = (time.perf_counter() - start) * 1e3
    return f"{time_ms:6.0f}  {cubin.registers:9}  {cubin.smem_bytes:10}{note}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m stof_cupy.jit", description="Compile the catalogue."
    )
    parser.add_argument("--arch", nargs="+", default=_ARCHS, type=_arch, help="e.g. 80 90a")
    parser.add_argument("--jobs", default=2, type=_positive, help="kernels compiled at once")
    parser.add_argument("--library", type=Path, help="the libnvrtc to use")
    parser.add_argument(
        "--out", type=Path, help="keep the cubins there, in the layout of the cache"
    )
    parser.add_argument("--grep", default="", type=_pattern, help="only names that match")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def _arch(text: str) -> str:
    if not re.fullmatch(r"\d{2,3}[af]?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an architecture such as 80 or 90a")
    return text


if __name__ == "__main__":
    sys.exit(main())
