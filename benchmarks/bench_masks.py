"""How long does a mask take to build, and how much memory beyond the mask itself?

    pytest benchmarks/bench_masks.py --benchmark-json=out.json
    pytest benchmarks/bench_masks.py -m gpu --benchmark-json=out.json

The masks of the peers' anchors (w=256, g=64, blocks of 64, documents of about 512 tokens, a tenth
of all blocks) and some of other kinds. A timed call starts from a function's arguments and ends
with the tiles; random draws are arguments. On NumPy peak memory is measured in a run of its own.

On the GPU arrays that a function takes there lie there, and a timed call waits for the device:
with stated capacity, with a measured one, a rebuild, and the replay of a captured rebuild; of the
last two the time between CUDA events is noted too. Where torch is installed, FlexAttention's
compiled ``create_block_mask`` makes the same masks in the same process (flex_masks.py), once it was
found to list the same blocks of 128.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import isqrt
from typing import Any, NamedTuple

import flex_masks
import numpy as np
import pytest
from shapes import (
    BLOCK,
    DENSE_MASK_MOST,
    DEVICE_MASK_NAMES,
    GLOBAL,
    LONG_MASK,
    MASK_NAMES,
    MASK_SIZES,
    TOP,
    WINDOW,
)
from timing import note_device_time, note_quantiles, peak_mib

from stof_cupy import masks

Make = Callable[[], masks.Pattern]
FORMULA = "i >= j && doc[i] == doc[j]"


class Draws(NamedTuple):
    """What is random in the anchors' masks, drawn in their order."""

    scattered: Any
    documents: Any
    tenth: Any

    @classmethod
    def of(cls, s: int) -> Draws:
        rng, blocks = np.random.default_rng(0), s // BLOCK
        return cls(
            rng.random((blocks, blocks)) < 3 / blocks,
            np.sort(rng.integers(0, s // 512, s)),
            (rng.random((blocks, blocks)) < 0.1) | np.eye(blocks, dtype=bool),
        )


def builders(s: int) -> dict[str, Make]:
    """Return a function for each name that makes the pattern from its arguments."""
    scattered, documents, tenth = Draws.of(s)
    scattered_at, tenth_at = scattered.nonzero(), tenth.nonzero()
    near = partial(masks.sliding_window, s, window=WINDOW)
    height = 2 ** (isqrt(s).bit_length() - 1)
    return {
        "causal": partial(masks.causal, s),
        "sliding": near,
        "causal-sliding": partial(near, causal=True),
        "longformer": partial(masks.longformer, s, window=WINDOW, global_tokens=GLOBAL),
        "bigbird": lambda: masks.bigbird(s, random_blocks=0) | masks.blocks((s, s), *scattered_at),
        "document": partial(masks.document_ids, documents, causal=True),
        "block10": partial(masks.blocks, (s, s), *tenth_at),
        "dilated": partial(masks.dilated, s, window=64, dilation=8),
        "strided": partial(masks.strided, s, stride=512),
        "image": partial(masks.neighborhood, (height, s // height), window=13),
        "predicate": lambda: masks.predicate((s, s), _even, within=near()),
    }


def _even(q: Any, k: Any) -> Any:
    return (q + k) & 1 == 0


def record(benchmark: Any, make: Make) -> None:
    """Time the build of a mask, and note its size and the peak of memory."""
    mask = benchmark.pedantic(lambda: make().tobsr(), rounds=10, warmup_rounds=1)
    note_mask(benchmark, mask)
    benchmark.extra_info["peak_mib"] = peak_mib(lambda: make().tobsr())
    note_quantiles(benchmark)


def note_mask(benchmark: Any, mask: masks.BsrMask) -> None:
    """Note how large a mask is."""
    benchmark.extra_info |= {
        "tiles": mask.ntiles,
        "part_tiles": len(mask.part_col_idx),
        "bitmaps": len(mask.bitmaps),
        "density": mask.density,
        "mask_mib": mask.nbytes / 2**20,
    }


@pytest.mark.parametrize("s", MASK_SIZES)
@pytest.mark.parametrize("name", MASK_NAMES)
def bench_build(benchmark: Any, name: str, s: int) -> None:
    record(benchmark, builders(s)[name])


def bench_build_long(benchmark: Any) -> None:
    s, window, tokens = LONG_MASK["s"], LONG_MASK["window"], LONG_MASK["tokens"]
    record(benchmark, lambda: masks.longformer(s, window=window, global_tokens=tokens))


class OnDevice(NamedTuple):
    """A mask on the GPU: how it is made, the arrays for it that lie there, and what it is."""

    name: str
    make: Make
    arrays: dict[str, Any]
    mask: masks.BsrMask

    @property
    def capacity(self) -> dict[str, int]:
        """Return what it fits into exactly."""
        return {"tiles": self.mask.ntiles, "bitmaps": len(self.mask.part_col_idx)}


@lru_cache(maxsize=1)
def on_device(name: str, s: int) -> OnDevice:
    """Return a mask; the cases of one come one after another."""
    import cupy

    draws, blocks = Draws.of(s), s // BLOCK
    arrays: dict[str, Any] = {}
    if name in ("document", "formula", "formula-within"):
        arrays["documents"] = cupy.asarray(draws.documents)
    elif name == "dense":
        arrays["dense"] = dense_longformer(s)
    elif name == "topk":
        scores = np.random.default_rng(0).standard_normal((blocks, blocks), np.float32)
        arrays["scores"] = cupy.asarray(scores)
    elif name in ("bigbird", "block10"):
        arrays["layout"] = cupy.asarray(draws.scattered if name == "bigbird" else draws.tenth)
    ids = arrays.get("documents")
    formula = partial(masks.predicate, (s, s), FORMULA, arrays={"doc": ids})
    make = {
        **builders(s),
        "document": partial(masks.document_ids, ids, causal=True),
        "bigbird": lambda: masks.bigbird(s, random_blocks=0) | masks.block_layout(arrays["layout"]),
        "block10": lambda: masks.block_layout(arrays["layout"]),
        "formula": formula,
        "formula-within": lambda: formula(within=masks.causal(s)),
        "dense": lambda: masks.dense(arrays["dense"]),
        "topk": lambda: masks.score_blocks(arrays["scores"], top=blocks // TOP),
    }[name]
    return OnDevice(name, make, arrays, make().to("cuda").to("cpu"))


def dense_longformer(s: int) -> Any:
    """Return the longformer mask as a bool array on the GPU."""
    import cupy

    at = cupy.arange(s, dtype=np.int32)
    dense = cupy.empty((s, s), bool)
    for rows in range(0, s, 1024):
        part = slice(rows, rows + 1024)
        dense[part] = abs(at[part, None] - at) <= WINDOW
    dense[:GLOBAL] = dense[:, :GLOBAL] = True
    return dense


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """Return the replay, on the current stream, of a captured call."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        try:
            run()
        finally:
            graph = stream.end_capture()
    launch: Callable[[], None] = graph.launch
    return launch


def record_on_device(benchmark: Any, run: Callable[[], Any]) -> None:
    """Time a call and the wait for the GPU at its end."""
    import cupy

    device = cupy.cuda.Device()

    def waited() -> None:
        run()
        device.synchronize()

    benchmark.pedantic(waited, rounds=30, warmup_rounds=3)
    note_quantiles(benchmark)


def ours(benchmark: Any, case: OnDevice, way: str) -> None:
    """Time one of our four ways to the lists."""
    if way in ("stated", "measured"):
        capacity = case.capacity if way == "stated" else {}
        record_on_device(benchmark, lambda: case.make().to("cuda", **capacity))
        return
    built = case.make().to("cuda", **case.capacity)
    benchmark.extra_info["device_mib"] = built.nbytes / 2**20
    run = built.rebuild if way == "rebuild" else captured(built.rebuild)
    record_on_device(benchmark, run)
    note_device_time(benchmark, run)


def flex(benchmark: Any, case: OnDevice, way: str) -> None:
    """Time FlexAttention's builder, after it was found to list what we do."""
    queries = case.mask.shape[0]
    with flex_masks.builder(case.name, queries, case.arrays, hold=way == "flex") as build:
        got, expected = flex_masks.listed(build()), blocks(case.mask, 2)
        assert np.array_equal(got, expected), "its blocks of 128 are not those that ours cover"
        benchmark.extra_info["blocks"] = len(got)
        record_on_device(benchmark, build)


def blocks(mask: masks.BsrMask, tiles: int) -> Any:
    """Return rows and columns of squares of so many tiles a side that hold a listed one."""
    rows = np.repeat(np.arange(len(mask.load_row_ptr) - 1), np.diff(mask.load_row_ptr))
    keys = np.unique(rows // tiles << 32 | mask.load_col_idx // tiles)
    return np.stack((keys >> 32, keys & 0xFFFFFFFF), 1)


WAYS = {
    **dict.fromkeys(("stated", "measured", "rebuild", "replay"), ours),
    **dict.fromkeys(("flex", "flex-flag"), flex),
}
"""Ours, and FlexAttention's builder compiled once and by its own flag ``_compile``."""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("way", "name", "s"),
    [
        pytest.param(way, name, s, id=f"{name}-{s}-{way}")
        for s in MASK_SIZES
        for name in DEVICE_MASK_NAMES
        if name != "dense" or s <= DENSE_MASK_MOST
        for way in WAYS
    ],
)
def bench_device_build(benchmark: Any, way: str, name: str, s: int) -> None:
    if WAYS[way] is flex:
        pytest.importorskip("torch")
    case = on_device(name, s)
    note_mask(benchmark, case.mask)
    WAYS[way](benchmark, case, way)
