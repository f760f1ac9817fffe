"""What tests of masks on the GPU share: comparison with the CPU, guarded memory, captured work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import MaskError
from stof_cupy.masks import BsrMask, MaskStack, Pattern

POISON = 0xA5
GUARD = 4096
"""Bytes before and after each guarded allocation; a multiple of what CuPy aligns to."""


def counts(mask: BsrMask | MaskStack) -> dict[str, int]:
    """Return the least capacity for a mask: its listed and its part tiles, over all leading axes.

    Equal tiles and equal masks are stored once on the CPU, and counted once for each place here.
    """
    if isinstance(mask, BsrMask):
        return {"tiles": mask.ntiles, "bitmaps": int((mask.bitmap_id >= 0).sum())}
    each = [counts(mask.masks[number]) for number in mask.mask_of.ravel()]
    return {name: sum(one[name] for one in each) for name in ("tiles", "bitmaps")}


def room(shape: tuple[int, ...]) -> dict[str, int]:
    """Return a capacity that any mask ``(*lead, queries, keys)`` fits into."""
    rows, cols = (-(-size // 64) for size in shape[-2:])
    most = int(np.prod(shape[:-2])) * rows * cols
    return {"tiles": most, "bitmaps": most}


def download(mask: Any) -> BsrMask | MaskStack:
    """Return a mask from the GPU: canonical, and a stack if it has leading axes."""
    mask.check()
    got = mask.to("cpu")
    assert isinstance(got, MaskStack if mask.lead else BsrMask)
    assert got.shape == mask.shape
    for one in got.masks if isinstance(got, MaskStack) else (got,):
        one.check_format()
    return got


def check_array(mask: Any, expected: np.ndarray) -> None:
    """The mask on the GPU is exactly `expected`."""
    got = download(mask)
    assert mask.shape == expected.shape and mask.lead == expected.shape[:-2]
    np.testing.assert_array_equal(got.toarray(), expected)
    assert got.equals(BsrMask(expected) if expected.ndim == 2 else MaskStack.from_dense(expected))


def check_same(pattern: Pattern) -> None:
    """Built on the GPU, with a measured and an exactly stated capacity, it is the CPU's mask."""
    on_cpu = pattern.tobsr()
    for capacity in ({}, counts(on_cpu)):
        mask = pattern.to("cuda", **capacity)
        assert mask.shape == pattern.shape and mask.lead == ()
        assert download(mask).equals(on_cpu), f"{pattern} with capacity {capacity}"


def check_overflow(mask: Any, needed: int, stated: int) -> None:
    """All that looks at a mask that did not fit names both numbers."""
    for look in (mask.check, lambda: mask.to("cpu")):
        with pytest.raises(MaskError) as caught:
            look()
        numbers = re.findall(r"\d+", str(caught.value).replace(",", ""))
        assert {str(needed), str(stated)} <= set(numbers), str(caught.value)


class Guards:
    """An allocator of CuPy that lays known bytes around, and into, every allocation."""

    def __init__(self) -> None:
        import cupy

        self.pool = cupy.cuda.MemoryPool()
        self.blocks: list[tuple[Any, int]] = []

    def allocate(self, size: int) -> Any:
        memory = self.pool.malloc(size + 2 * GUARD)
        memory.memset_async(POISON, size + 2 * GUARD)
        self.blocks.append((memory, size))  # kept alive: no block is used twice
        return memory + GUARD

    def contents(self) -> list[np.ndarray]:
        """Return the bytes of all blocks; those around them are as they were laid."""
        import cupy

        found = []
        for memory, size in self.blocks:
            whole = cupy.ndarray((size + 2 * GUARD,), np.uint8, memptr=memory).get()
            before, inside, after = np.split(whole, (GUARD, GUARD + size))
            assert (before == POISON).all(), f"written before an allocation of {size} bytes"
            assert (after == POISON).all(), f"written beyond an allocation of {size} bytes"
            found.append(inside)
        return found


@contextmanager
def guarded() -> Iterator[Guards]:
    """Let CuPy allocate between guards."""
    import cupy

    guards = Guards()
    with cupy.cuda.using_allocator(guards.allocate):
        yield guards


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Capture a call in a CUDA graph, and return what replays it and waits.

    Capturing is strict: an allocation by the driver, or waiting for the GPU, is an error.
    """
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        try:
            call()
        finally:
            graph = stream.end_capture()

    def replay() -> None:
        cupy.cuda.Device().synchronize()  # what was written to the arrays on another stream
        graph.launch(stream)
        stream.synchronize()

    return replay


@cache
def _spin() -> Any:
    import cupy

    source = r"""
    extern "C" __global__ void spin(unsigned long long nanoseconds) {
        unsigned long long start, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
        do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
    }
    """
    return cupy.RawKernel(source, "spin")


def occupy(milliseconds: int) -> None:
    """Keep the current stream busy, so that it is seen whether the host waits for it."""
    _spin()((1,), (1,), (np.uint64(milliseconds * 10**6),))
