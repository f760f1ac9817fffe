"""Fig. 11 of the paper: whole layer stacks beside PyTorch, which compiles them or does not.

    pytest benchmarks/bench_paper_stacks.py -m gpu --results paper_stacks_{card}.json --budget 500
    pytest benchmarks/bench_paper_stacks.py -m "not gpu" --heavy     tries this program

A cell takes a minute, nearly all of it compiling the peers: with ``--ways ours`` seconds, without
``compiled`` and ``flex`` likewise. Inductor's cache makes a second run faster, and so do masks of
one stack and size, of which one run takes all: set ``TORCHINDUCTOR_CACHE_DIR`` to keep it.
engine_measure.py says how it is measured; summary_stacks.py shows ratios to torch.compile alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_measure import WAYS, Shared
from engine_stacks import ANCHORS, GRID, Cell
from timing import note_quantiles

from stof_cupy.runtime import Options

TOGETHER = ("stack", "size")
OPTIONS = Options(tune="fast")
LARGE_FIRST = sorted(dict.fromkeys([*GRID, *ANCHORS]), key=lambda cell: -cell.batch * cell.seq)
ON_CPU = (Cell.parse("vit-b:1x128:sliding"),)


def cases(cells: Any, ways: Any) -> Any:
    """Return parameters for all ways through cells."""
    return pytest.mark.parametrize(
        ("stack", "size", "mask", "way"),
        [(*str(cell).split(":"), way) for cell in cells for way in ways],
    )


_MADE: dict[str, Shared] = {}


def shared(cell: str, device: str) -> Shared:
    """Return what the ways through a cell share; that of the cell before is given back first."""
    if cell not in _MADE:
        while _MADE:
            _MADE.popitem()[1].forget()
        _MADE[cell] = Shared(Cell.parse(cell), device)
    return _MADE[cell]


def record(benchmark: Any, made: Shared, way: str) -> None:
    """Find a way's result right, time it, and note what it took."""
    call, found = made.checked(way, OPTIONS)
    count = made.rounds(call)

    def run() -> None:
        call()
        made.wait()

    benchmark.pedantic(run, rounds=count)
    note_quantiles(benchmark)
    device = made.device_quantiles(way, call, count)
    how = {"tune": OPTIONS.tune, "fold": OPTIONS.fold_norms} if way == "ours" else {}
    benchmark.extra_info |= {"way": way, **found, **device, **made.facts, **how}


def measure(benchmark: Any, cell: str, way: str, device: str) -> None:
    """Record a way; of a peer that fails say why."""
    pytest.importorskip("torch")
    made, why = shared(cell, device), ""
    try:
        record(benchmark, made, way)
    except Exception as error:
        if way == "ours":
            raise
        why = f"{way}: {type(error).__name__}: {error}".splitlines()[0][:200]
    finally:
        made.forget()
    if why:
        pytest.skip(why)


@pytest.mark.gpu
@cases(LARGE_FIRST, WAYS)
def bench_stacks(benchmark: Any, stack: str, size: str, mask: str, way: str) -> None:
    measure(benchmark, f"{stack}:{size}:{mask}", way, "cuda")


@cases(ON_CPU, ("ours", "eager"))
def bench_stacks_cpu_heavy(benchmark: Any, stack: str, size: str, mask: str, way: str) -> None:
    measure(benchmark, f"{stack}:{size}:{mask}", way, "cpu")
