"""How long until the first result, how long does an import take, and how much is installed?

    pytest benchmarks/bench_paper_start.py --benchmark-json=out.json

A first result is attention under a window of 32 over 1024 tokens, in a process of its own, from its
start to its end: "cold" with nothing in the cache, "warm" with the kernels there. Where torch is
installed, the same by FlexAttention under torch.compile, with an empty cache and with a full one.
Whole stacks likewise, ours alone: engine_first.py says what their processes time. Sizes are of the
files that the installed packages list, with all that they require.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paper_layers import backends
from timing import note_quantiles

ROOT = Path(__file__).resolve().parents[1]
OURS = """
import sys
import numpy as np
from stof_cupy import attention, masks
mask = masks.sliding_window(1024, window=32).tobsr()
q = np.zeros((1, 12, 1024, 64), np.float32)
if sys.argv[1] == "cuda":
    import cupy
    q = cupy.asarray(q, np.float16)
out = attention(q, q, q, mask)
print(float(out.sum()))
"""
TORCH = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
mask = create_block_mask(lambda b, h, q, k: (q - k).abs() <= 32, None, None, 1024, 1024, "cuda")
q = torch.zeros(1, 12, 1024, 64, dtype=torch.float16, device="cuda")
with torch.no_grad():
    print(float(torch.compile(flex_attention, dynamic=False)(q, q, q, block_mask=mask).sum()))
"""
CACHES = (
    *("STOF_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
)
CORE = ("numpy", "scipy", "ml_dtypes")
CUDA = ("cupy-cuda12x", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
INSTALLS = {"stof_cupy": CORE, "stof_cupy on CUDA": (*CORE, *CUDA), "torch": ("torch",)}
IMPORTS = {
    "nothing": "pass",
    "stof_cupy": "import stof_cupy",
    **{name: f"import {name}" for name in ("numpy", "cupy", "torch")},
}


def process(*args: str, **environment: str) -> str:
    """Return what a Python of its own prints; skip if it fails for want of a package."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if "ModuleNotFoundError" in run.stderr:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    return run.stdout


def caches(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds all caches in a folder."""
    return {name: str(folder / name) for name in CACHES}


@pytest.mark.parametrize("package", IMPORTS)
def bench_import(benchmark: Any, package: str) -> None:
    """A process that imports one package, or nothing, and ends."""
    benchmark.pedantic(lambda: process("-c", IMPORTS[package]), rounds=5, warmup_rounds=1)
    note_quantiles(benchmark)


FIRST = [
    backends("numpy", "warm", "ours"),  # nothing is compiled: there is no cold
    *(backends("cuda", state, way) for state in ("cold", "warm") for way in ("ours", "Flex")),
]


@pytest.mark.parametrize(("backend", "state", "way"), FIRST)
def bench_first_result(
    benchmark: Any, backend: str, state: str, way: str, tmp_path_factory: Any
) -> None:
    code = OURS if way == "ours" else TORCH
    used = tmp_path_factory.mktemp("cache")

    def setup() -> tuple[tuple[Path], dict[str, Any]]:
        return (tmp_path_factory.mktemp("cache") if state == "cold" else used,), {}

    def run(cache: Path) -> None:
        process("-c", code, backend, **caches(cache))

    try:
        if state == "warm":
            run(used)
        benchmark.pedantic(run, setup=setup, rounds=3)
    except RuntimeError as error:
        if way == "ours":
            raise
        pytest.skip(f"{way}: {str(error).strip().splitlines()[-1][:150]}")
    note_quantiles(benchmark)
    benchmark.extra_info["way"] = way


STACKS = {
    "numpy": ("vit-b:1x128:full",),
    "cuda": ("bert-base:8x512:longformer", "gpt2:16x2048:full", "llama-1b:1x8192:sliding"),
}


def first_stack(backend: str, cell: str, tune: str, cache: Path) -> dict[str, float]:
    """Return what the process of a stack says."""
    program = str(ROOT / "benchmarks" / "engine_first.py")
    told = process(program, cell, tune, backend, **caches(cache))
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


_FILLED: dict[tuple[str, ...], tuple[Path, dict[str, float]]] = {}


def from_empty(*what: str, folders: Any) -> tuple[Path, dict[str, float]]:
    """Return a cache that a process has filled, which is done once, and what it said."""
    if what not in _FILLED:
        cache = folders.mktemp("cache")
        _FILLED[what] = cache, first_stack(*what, cache)
    return _FILLED[what]


@pytest.mark.parametrize(
    ("backend", "cell", "tune", "state"),
    [
        backends(backend, cell, "fast", state)
        for backend, cells in STACKS.items()
        for cell in cells
        for state in ("empty", "second")
    ],
)
def bench_first_stack(
    benchmark: Any, backend: str, cell: str, tune: str, state: str, tmp_path_factory: Any
) -> None:
    """The time is that of the process, which makes its weights; what counts is what it says."""

    def run() -> dict[str, float]:
        cache, empty = from_empty(backend, cell, tune, folders=tmp_path_factory)
        return empty if state == "empty" else first_stack(backend, cell, tune, cache)

    if state == "second":
        from_empty(backend, cell, tune, folders=tmp_path_factory)
    found = benchmark.pedantic(run, rounds=1)
    note_quantiles(benchmark)
    benchmark.extra_info |= {"way": "ours", **found}


@pytest.mark.parametrize("package", INSTALLS)
def bench_install(benchmark: Any, package: str) -> None:
    """The size is what counts; the time is that of adding it up."""
    roots = INSTALLS[package]
    packages = {name: size for root in roots for name, size in closure(root)}
    if not packages:
        pytest.skip(f"{package} is not installed")
    if package.startswith("stof_cupy"):
        sources = [*(ROOT / "stof_cupy").rglob("*.py"), *(ROOT / "cuda").rglob("*.cuh")]
        packages["stof_cupy"] = sum(path.stat().st_size for path in sources)
    benchmark.pedantic(lambda: [list(closure(root)) for root in roots], rounds=1)
    benchmark.extra_info |= {
        "mib": sum(packages.values()) / 2**20,
        "parts": {name: round(size / 2**20, 2) for name, size in sorted(packages.items())},
    }


def closure(root: str) -> Iterator[tuple[str, int]]:
    """Yield what is installed of a package and all that it requires, with bytes."""
    from packaging.requirements import Requirement

    waiting, seen = [root], set()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        paths = [Path(str(file.locate())) for file in found.files or ()]
        yield name, sum(path.stat().st_size for path in paths if path.is_file())
        for text in found.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
