"""Sequences of 10 to 502 tokens: packed into one run, padded to 512, and one by one.

    make bench-gpu BENCH=ragged
    pytest benchmarks/bench_ragged.py -m "not gpu"          small, on the CPU

BERT's shapes with random weights, bfloat16 on a GPU. Lengths are drawn so that their mean is half
of what is padded to; batches of other lengths come in turn; the ids lie where the model runs, and a
time is that of a run and the wait for it; ``in_a_row_ms`` is that of a run among others that are
waited for once. What is packed is one run with a mask of documents; padded, a run is told the
lengths; one by one, there are as many runs as sequences; more lengths than the 32 recordings that
are kept, so that most are launched operator by operator. Results are found equal to those one by
one before anything is timed: ``error`` is the root mean square of what they are off, over that of
the result.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pytest
from shapes import RAGGED
from timing import note_quantiles

from stof_cupy import TransformerEngine, models

SHORTEST, LONGEST, PADDED = 10, 502, 512
DTYPES = {"numpy": "float32", "cuda": "bfloat16"}
ERROR = {"numpy": 1e-4, "cuda": 2e-2}
ROUNDS = {"ours packed": 40, "ours padded": 40, "ours one by one": 8}
"""Of calls that are timed, and the ways; on NumPy one of each batch."""
WARM = 6  # runs of each batch after the one that is checked: whatever is to be recorded is
SHAPES = {"minilm": (6, 384, 12, 1536), "bert-base": (12, 768, 12, 3072)}
"""Layers, width, heads, and width of the MLP."""
CASES = [
    pytest.param(
        backend, model, way, id=f"{backend}-{model}-{way}",
        marks=pytest.mark.gpu if backend == "cuda" else (),
    )
    for backend, (names, _, _) in RAGGED.items()
    for model in names
    for way in ROUNDS
]  # fmt: skip


class Runs:
    """A model, its batches, and the ways to run one.

    Parameters
    ----------
    backend, model : str
    """

    def __init__(self, backend: str, model: str) -> None:
        layers, hidden, heads, inner = SHAPES[model]
        config = {
            "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
            "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
            "intermediate_size": inner, "vocab_size": 30522, "max_position_embeddings": PADDED,
            "type_vocab_size": 2,
        }  # fmt: skip
        self.engine = TransformerEngine(
            models.random_weights(config), config=config, backend=backend, dtype=DTYPES[backend]
        )
        self.wait: Callable[[], Any] = lambda: None
        place: Callable[[Any], Any] = np.asarray
        if backend == "cuda":
            import cupy

            place, self.wait = cupy.asarray, cupy.cuda.get_current_stream().synchronize
        _, size, count = RAGGED[backend]
        rng, self.batches, self.lengths = np.random.default_rng(0), [], []
        for _ in range(count):
            lengths = rng.integers(SHORTEST, LONGEST + 1, size, np.int32)
            ids = rng.integers(1000, 30000, (size, PADDED), np.int32)
            ids[np.arange(PADDED) >= lengths[:, None]] = 0
            listed = [place(row[:n]) for row, n in zip(ids, lengths, strict=True)]
            self.batches.append((listed, place(ids), place(lengths)))
            self.lengths.append(lengths)

    def __call__(self, way: str, batch: Any) -> Any:
        """Run a batch; return a sequence's result in each."""
        listed, ids, lengths = batch
        if way == "ours packed":
            return self.engine.run(listed)
        if way == "ours padded":
            return self.engine.run(ids, lengths=lengths)
        return [self.engine.run(each[None])[0] for each in listed]

    @cached_property
    def alone(self) -> list[Any]:
        """The results of each batch, one by one."""
        every = (self("ours one by one", batch) for batch in self.batches)
        return [[_on_host(each) for each in batch] for batch in every]

    def error(self, way: str) -> float:
        """Return by how much a batch's results differ from those one by one, of all at most."""
        found = []
        for batch, alone in zip(self.batches, self.alone, strict=True):
            pairs = list(zip(map(_on_host, self(way, batch)), alone, strict=True))
            off = sum(float(np.square(got[: len(want)] - want).sum()) for got, want in pairs)
            found.append((off / sum(float(np.square(want).sum()) for want in alone)) ** 0.5)
        return max(found)


def _on_host(x: Any) -> Any:
    return (x if isinstance(x, np.ndarray) else x.get()).astype(np.float32)


@lru_cache(maxsize=1)
def runs(backend: str, model: str) -> Runs:
    """Return the last model that was asked for, and its batches."""
    return Runs(backend, model)


@pytest.mark.parametrize(("backend", "model", "way"), CASES)
def bench_ragged(benchmark: Any, backend: str, model: str, way: str) -> None:
    made = runs(backend, model)
    error = made.error(way)
    assert error <= ERROR[backend]
    for batch in made.batches * (WARM if backend == "cuda" else 0):
        made(way, batch)
    made.wait()
    turns = itertools.cycle(made.batches)

    def run() -> None:
        made(way, next(turns))
        made.wait()

    benchmark.pedantic(run, rounds=ROUNDS[way] if backend == "cuda" else len(made.batches))
    if backend == "cuda":
        row = made.batches * max(1, ROUNDS[way] // len(made.batches))
        began = time.perf_counter()
        for batch in row:
            made(way, batch)
        made.wait()
        benchmark.extra_info["in_a_row_ms"] = (time.perf_counter() - began) / len(row) * 1e3
    tokens = float(np.mean([each.sum() for each in made.lengths]))
    p50 = note_quantiles(benchmark)
    benchmark.extra_info |= {
        **{"way": way, "error": error, "tokens_per_s": tokens / p50 * 1e3},
        "mean_length": float(np.mean(made.lengths)),
        "sequences": len(made.lengths[0]),
    }
