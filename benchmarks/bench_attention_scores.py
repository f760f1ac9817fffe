"""How fast is attention whose scores have a softcap, ALiBi or T5's relative bias?

    pytest benchmarks/bench_attention_scores.py -m gpu --results attention_scores_{card}.json

``-k relative`` picks a modification, ``-k sliding`` a mask, ``-k 2048`` a size. What is compared,
and how it is timed, is as in bench_attention.py. FlexAttention is autotuned, half a minute a cell.
"""

from __future__ import annotations

from typing import Any

import attention_peers
import device_time
import pytest
import score_cells
from bench_attention import Sizes, agreeing
from shapes import SCORES_ATTENTION, SCORES_MASKS

WAYS = ("ours", *score_cells.PEERS)


def record(benchmark: Any, shape: Sizes, name: str, term: str, way: str) -> None:
    """Time one way through a cell, after its result was found equal to ours."""
    torch = pytest.importorskip("torch")
    made = score_cells.modified(shape, name, term)
    if way == "ours":
        run, timed = score_cells.ours(made), device_time.ours
    else:
        run = agreeing(way, lambda: score_cells.PEERS[way](made), attention_peers.tensor(made.out))
        timed = device_time.theirs
    measured = timed(run, small=made.cell.small)
    benchmark.pedantic(lambda: (run(), torch.cuda.synchronize()), rounds=5, warmup_rounds=1)
    quantiles = {f"device_{n}_ms": getattr(measured, n) for n in ("p20", "p50", "p80")}
    benchmark.extra_info |= {
        **{"shape": list(shape), "mask": name, "term": term, "way": way},
        **quantiles,
        "graph": measured.graph,
        "device_rounds": measured.rounds,
        "density": made.cell.mask.density,
        "tflops": made.cell.flop / measured.p50 / 1e9,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("term", score_cells.TERMS)
@pytest.mark.parametrize("name", SCORES_MASKS)
@pytest.mark.parametrize(
    "shape",
    [(b, h, h, s, s, d) for b, h, s, d in SCORES_ATTENTION],
    ids=["x".join(map(str, shape)) for shape in SCORES_ATTENTION],
)
def bench_scores(benchmark: Any, shape: Sizes, name: str, term: str, way: str) -> None:
    record(benchmark, shape, name, term, way)
