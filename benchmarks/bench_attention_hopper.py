"""How fast is attention on Hopper, beside what was written for Hopper?

    pytest benchmarks/bench_attention_hopper.py -m gpu --benchmark-quiet --benchmark-json=out.json
    python benchmarks/summary_hopper.py out.json

``-k table``, ``dims``, ``small`` or ``scattered`` picks a part, ``-k bf16`` or ``fp16`` a type,
``-k sliding`` a mask, ``-k 8192x128`` a size, ``--heavy`` adds the table's sequences of 32,768.
Beside each cell of scattered keys are ours with keys packed and not packed. What is compared, and
how it is timed, is as in bench_attention.py. Peers come with tools/peer_bundle.sh; compiling
FlexAttention and FlashAttention 4 takes seconds a cell where no cache has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from bench_attention import Sizes, record
from shapes import (
    ATTENTION_MASKS,
    HEAVY_ATTENTION,
    HOPPER_ATTENTION,
    HOPPER_DIMS,
    HOPPER_SCATTERED,
    HOPPER_SMALL,
)

DENSE = ("ours", "cuDNN", "FA3", "FA4")
PEERS = (*DENSE, "cuDNN-sparse", "Flex", "Flex+FA4")
SCATTERED = ("ours", "ours packed", "ours unpacked", "Flex", "Flex+FA4")
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


def cases(cells: Iterable[tuple[Any, str]], ways: tuple[str, ...]) -> list[Any]:
    """Return every way and type of some shapes (batch, heads, seq, head_dim), each with a mask."""
    return [
        pytest.param(
            (b, h, h, s, s, d),
            name,
            dtype,
            way,
            id=f"{b}x{h}x{s}x{d}-{name}-{short}-{way}",
        )
        for (b, h, s, d), name in cells
        for dtype, short in DTYPES.items()
        for way in ways
    ]


def each(cells: Iterable[tuple[Any, str]], ways: tuple[str, ...] = PEERS) -> Any:
    """Mark a benchmark with its cells."""
    return pytest.mark.parametrize(("shape", "name", "dtype", "way"), cases(cells, ways))


def grid(shapes: Any, names: tuple[str, ...] = ATTENTION_MASKS) -> list[tuple[Any, str]]:
    """Return every mask of every shape."""
    return [(shape, name) for shape in shapes for name in names]


@pytest.mark.gpu
@each(grid(HOPPER_ATTENTION))
def bench_table(benchmark: Any, shape: Sizes, name: str, dtype: str, way: str) -> None:
    record(benchmark, "table", shape, name, way, dtype)


@pytest.mark.gpu
@each(grid(HEAVY_ATTENTION))
def bench_table_heavy(benchmark: Any, shape: Sizes, name: str, dtype: str, way: str) -> None:
    record(benchmark, "table", shape, name, way, dtype)


@pytest.mark.gpu
@each(grid(HOPPER_DIMS, ("full", "causal")), DENSE)
def bench_dims(benchmark: Any, shape: Sizes, name: str, dtype: str, way: str) -> None:
    record(benchmark, "dims", shape, name, way, dtype)


@pytest.mark.gpu
@each(grid(HOPPER_SMALL))
def bench_small(benchmark: Any, shape: Sizes, name: str, dtype: str, way: str) -> None:
    record(benchmark, "small", shape, name, way, dtype)


@pytest.mark.gpu
@each(HOPPER_SCATTERED, SCATTERED)
def bench_scattered(benchmark: Any, shape: Sizes, name: str, dtype: str, way: str) -> None:
    record(benchmark, "scattered", shape, name, way, dtype)
