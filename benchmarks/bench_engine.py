"""How long does a real sentence model take through the whole system, and through transformers?

    make bench                                              NumPy, and CUDA where there is a GPU
    pytest benchmarks/bench_engine.py -m gpu --benchmark-json=out.json

The model is all-MiniLM-L6-v2 with random token ids. A timed call starts from host arrays and waits
for its result. Where torch and transformers are installed, ``BertModel`` with SDPA runs the same
ids in the same process, after its result was found equal to ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from shapes import MASKS, MINILM_BATCHES
from timing import note_quantiles

from stof_cupy import TransformerEngine, masks
from stof_cupy.models.packaged import minilm

DTYPES = {"numpy": "float32", "cuda": "float16"}
TOLERANCE = {"numpy": 2e-4, "cuda": 3e-2}
CASES = [
    pytest.param(
        backend,
        batch,
        seq,
        mask,
        id=f"{backend}-{batch}x{seq}-{mask or 'full'}",
        marks=pytest.mark.gpu if backend == "cuda" else (),
    )
    for backend, size in (("numpy", "cpu"), ("cuda", "gpu"))
    for batch, seq in MINILM_BATCHES[size]
    for mask in MASKS
]


@cache
def ours(backend: str) -> TransformerEngine:
    """Return the engine, made once."""
    return TransformerEngine(minilm(), backend=backend, dtype=DTYPES[backend])


@cache
def theirs(backend: str) -> Callable[[Any, Any], Any]:
    """Return transformers' model as a function of ids and a dense mask."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    device = "cuda" if backend == "cuda" else "cpu"
    model = transformers.BertModel.from_pretrained(
        minilm(), dtype=getattr(torch, DTYPES[backend]), attn_implementation="sdpa"
    )
    model = model.to(device).eval()

    @torch.inference_mode()
    def run(ids: Any, dense: Any) -> Any:
        mask = None if dense is None else torch.from_numpy(dense).to(device)[None, None]
        out = model(input_ids=torch.from_numpy(ids).to(device), attention_mask=mask)
        return out.last_hidden_state.float().cpu().numpy()

    return run


def tokens(batch: int, seq: int) -> Any:
    """Return random token ids, the same at every call."""
    return np.random.default_rng(0).integers(1000, 30000, (batch, seq))


def record(benchmark: Any, batch: int, seq: int, run: Callable[[], Any]) -> None:
    """Time `run`, and note its quantiles and throughput."""
    benchmark.pedantic(run, rounds=20, warmup_rounds=3)
    p50 = note_quantiles(benchmark)
    benchmark.extra_info["tokens_per_s"] = batch * seq / p50 * 1e3


@pytest.mark.parametrize(("backend", "batch", "seq", "mask"), CASES)
def bench_stof_cupy(benchmark: Any, backend: str, batch: int, seq: int, mask: str | None) -> None:
    engine, ids = ours(backend), tokens(batch, seq)
    lowered = None if mask is None else masks.from_spec(mask, seq).tobsr()
    record(benchmark, batch, seq, lambda: engine.run(ids, mask=lowered))


@pytest.mark.parametrize(("backend", "batch", "seq", "mask"), CASES)
def bench_transformers(
    benchmark: Any, backend: str, batch: int, seq: int, mask: str | None
) -> None:
    model, ids = theirs(backend), tokens(batch, seq)
    dense = None if mask is None else masks.from_spec(mask, seq).toarray()
    expected = ours(backend).run(ids, mask=dense).astype(np.float32)
    np.testing.assert_allclose(model(ids, dense), expected, atol=TOLERANCE[backend])
    record(benchmark, batch, seq, lambda: model(ids, dense))
