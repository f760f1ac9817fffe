"""How fast is attention on the GPU, beside every other that can do the same?

    pytest benchmarks/bench_attention.py -m gpu --benchmark-quiet --benchmark-json=out.json
    python benchmarks/summary_attention.py out.json

``-k anchors``, ``small``, ``elements`` or ``decoding`` picks a part, ``-k sliding`` a mask,
``--heavy`` adds sequences of 32,768, and after ``--budget`` seconds the rest is skipped.

bfloat16 and the masks of the peers' anchors, which ours and the peers' forms of are compared
element by element; ours is compared with the float64 oracle in some rows, and the peers with ours
everywhere, before they are timed. A time is the device's, from replays of CUDA graphs on both
sides: of 20 calls where the inputs fit L2, else of one after L2 was flushed. The host's time, which
pytest-benchmark has, is that of a call and the wait for it. A peer that is not installed, or
fails, is skipped with the reason; those that torch does not bring come with tools/peer_bundle.sh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attention_cells
import attention_peers
import attention_ways
import device_time
import pytest
import reading
from attention_cells import DTYPE, Cell
from shapes import (
    ATTENTION,
    ATTENTION_MASKS,
    DECODING,
    ELEMENT_DENSITIES,
    ELEMENT_SIZES,
    HEAVY_ATTENTION,
    SMALL_ATTENTION,
)

from stof_cupy.jit import device

WAYS = ("ours", *attention_peers.PEERS)
BOTH = ("ours", "ours sm80", *attention_peers.PEERS)  # without Hopper's kernel, too
EQUAL = {"atol": 1e-2, "rtol": 2e-2}  # two results, each rounded to bfloat16
Sizes = tuple[int, int, int, int, int, int]


def cases(shapes: Any, names: tuple[str, ...]) -> list[Any]:
    """Return every way of every mask of every shape (batch, heads, seq, head_dim)."""
    return [
        pytest.param(
            (b, h, h, s, s, d),
            name,
            way,
            id=f"{b}x{h}x{s}x{d}-{name}-{way}",
        )
        for b, h, s, d in shapes
        for name in names
        for way in BOTH
    ]


def record(
    benchmark: Any, group: str, shape: Sizes, name: str, way: str, dtype: str = DTYPE
) -> None:
    """Time one way through a cell, after its result was found equal to ours."""
    cell = attention_cells.cell(shape, name, dtype)
    if way in attention_ways.WAYS:
        run, wait = our(cell, way)
        benchmark.extra_info["kernel"] = attention_ways.chosen(cell, way).name
        measured = device_time.ours(run, small=cell.small)
        if group == "decoding":  # nothing that takes every key and value can be faster
            read = device_time.ours(reading.reading(cell.k, cell.v), small=cell.small)
            benchmark.extra_info["read_p50_ms"] = read.p50
    else:
        run, wait = peer(cell, way)
        measured = device_time.theirs(run, small=cell.small)
    benchmark.pedantic(lambda: (run(), wait()), rounds=5, warmup_rounds=1)
    quantiles = {f"device_{n}_ms": getattr(measured, n) for n in ("p20", "p50", "p80")}
    moved = sum(int(x.nbytes) for x in (cell.q, cell.k, cell.v, cell.out))
    benchmark.extra_info |= {
        **{"group": group, "shape": list(shape), "mask": name, "dtype": dtype, "way": way},
        **quantiles,
        "graph": measured.graph,
        "device_rounds": measured.rounds,
        "density": cell.mask.density,
        "tflops": cell.flop / measured.p50 / 1e9,
        "gbytes_per_s": moved / measured.p50 / 1e6,
    }


def our(cell: Cell, way: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a call of ours and the wait for it; skip if this GPU or mask has no such way."""
    import cupy

    if way == "ours sm80" and device.facts().arch != "90a":
        pytest.skip("the same as ours where Hopper's kernel does not run")
    try:
        return attention_cells.ours(cell, way), cupy.cuda.Device().synchronize
    except attention_ways.NotForError as reason:
        pytest.skip(f"no kernel: {reason}")


def peer(cell: Cell, way: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a peer's call and the wait for it; skip if there is none, or it fails."""
    torch = pytest.importorskip("torch")
    want, seen = attention_peers.tensor(cell.out), None
    if cell.mask.dense is not None:  # rows that see nothing are anyone's to define
        seen = attention_peers.tensor(cell.mask.dense).any(1)
    run = agreeing(way, lambda: attention_peers.PEERS[way](cell), want, seen)
    return run, torch.cuda.synchronize


def agreeing(
    way: str, prepare: Callable[[], Callable[[], Any]], want: Any, seen: Any = None
) -> Callable[[], Any]:
    """Return a peer's call, which gives what ours does, in the rows `seen` or in all; else skip."""
    import torch

    try:
        # One mode for the check and the timing: FlexAttention is compiled anew for another.
        run = torch.no_grad()(prepare())
        got = run()
        torch.cuda.synchronize()
    except attention_ways.NotForError as reason:
        pytest.skip(f"{way}: {reason}")
    except Exception as error:  # a peer's failure is a fact about the peer
        torch.cuda.empty_cache()
        pytest.skip(f"{way}: {type(error).__name__}: {' '.join(str(error).split())[:150]}")
    if seen is not None:
        got, want = got[:, :, seen], want[:, :, seen]
    try:
        torch.testing.assert_close(got, want, **EQUAL)
    except AssertionError as error:  # ours was found equal to the oracle in some rows
        pytest.skip(f"{way}: not what ours gives: {' '.join(str(error).split())[:150]}")
    return run


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "name", "way"), cases(ATTENTION, ATTENTION_MASKS))
def bench_anchors(benchmark: Any, shape: Sizes, name: str, way: str) -> None:
    record(benchmark, "anchors", shape, name, way)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "name", "way"), cases(HEAVY_ATTENTION, ATTENTION_MASKS))
def bench_anchors_heavy(benchmark: Any, shape: Sizes, name: str, way: str) -> None:
    record(benchmark, "anchors", shape, name, way)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "name", "way"), cases(SMALL_ATTENTION, ATTENTION_MASKS))
def bench_small(benchmark: Any, shape: Sizes, name: str, way: str) -> None:
    record(benchmark, "small", shape, name, way)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "name", "way"),
    cases(
        [(1, 12, s, 64) for s in ELEMENT_SIZES], tuple(f"elements{d}" for d in ELEMENT_DENSITIES)
    ),
)
def bench_elements(benchmark: Any, shape: Sizes, name: str, way: str) -> None:
    record(benchmark, "elements", shape, name, way)


@pytest.mark.gpu
@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("shape", DECODING, ids=lambda s: "x".join(map(str, s)))
def bench_decoding(benchmark: Any, shape: Sizes, way: str) -> None:
    record(benchmark, "decoding", shape, "full", way)
