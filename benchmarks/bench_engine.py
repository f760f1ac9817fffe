"""How long do whole models take through the engine, and through others?

    make bench                                              NumPy, and CUDA where there is a GPU
    pytest benchmarks/bench_engine.py -m gpu --benchmark-json=out.json

A real sentence model beside transformers; layer stacks beside torch.compile, which takes a minute a
cell, are in bench_paper_stacks.py, and sequences of many lengths in bench_ragged.py.

The model is all-MiniLM-L6-v2 with random token ids, which lie where the model runs, as its result
does; a timed call waits for it. Where torch and transformers are installed, ``BertModel`` with SDPA
runs the same ids in the same process, after its result was found equal to ours.
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
def theirs(backend: str) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """Return what places arrays for transformers' model, and the model of ids and dense mask."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    device = "cuda" if backend == "cuda" else "cpu"
    model = transformers.BertModel.from_pretrained(
        minilm(), dtype=getattr(torch, DTYPES[backend]), attn_implementation="sdpa"
    )
    model = model.to(device).eval()

    def place(x: Any) -> Any:
        return None if x is None else torch.from_numpy(x).to(device)

    @torch.inference_mode()
    def run(ids: Any, mask: Any) -> Any:
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        if device == "cuda":
            torch.cuda.synchronize()
        return hidden

    return place, run


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
    if backend == "numpy":
        record(benchmark, batch, seq, lambda: engine.run(ids, mask=lowered))
        return
    import cupy

    on_device, stream = cupy.asarray(ids), cupy.cuda.get_current_stream()

    def run() -> None:
        engine.run(on_device, mask=lowered)
        stream.synchronize()

    record(benchmark, batch, seq, run)


@pytest.mark.parametrize(("backend", "batch", "seq", "mask"), CASES)
def bench_transformers(
    benchmark: Any, backend: str, batch: int, seq: int, mask: str | None
) -> None:
    (place, model), ids = theirs(backend), tokens(batch, seq)
    dense = None if mask is None else masks.from_spec(mask, seq).toarray()
    expected = ours(backend).run(ids, mask=dense).astype(np.float32)
    placed = place(ids), place(None if dense is None else dense[None, None])
    got = model(*placed).float().cpu().numpy()
    np.testing.assert_allclose(got, expected, atol=TOLERANCE[backend])
    record(benchmark, batch, seq, lambda: model(*placed))


@pytest.mark.parametrize("graphs", [True, False], ids=["recorded", "launched"])
@pytest.mark.parametrize(("batch", "seq"), MINILM_BATCHES["gpu"])
@pytest.mark.gpu
def bench_cuda_graphs(benchmark: Any, batch: int, seq: int, graphs: bool) -> None:
    """What one launch a run is worth."""
    import cupy

    engine = TransformerEngine(minilm(), backend="cuda", dtype="float16", cuda_graphs=graphs)
    ids, stream = cupy.asarray(tokens(batch, seq)), cupy.cuda.get_current_stream()

    def run() -> None:
        engine.run(ids)
        stream.synchronize()

    record(benchmark, batch, seq, run)


@pytest.mark.parametrize("tune", ["off", "fast"])
@pytest.mark.parametrize(
    "backend",
    [pytest.param(b, id=b, marks=pytest.mark.gpu if b == "cuda" else ()) for b in DTYPES],
)
def bench_first_result(benchmark: Any, backend: str, tune: str, tmp_path: Any) -> None:
    """From weights to the first result: kernels in the cache, schemes in it from the second on."""
    from stof_cupy.fusion.store import SchemeStore
    from stof_cupy.models.checkpoint import read_checkpoint
    from stof_cupy.runtime import Options, Program

    checkpoint, ids = read_checkpoint(minilm()), tokens(8, 512)
    store = SchemeStore(tmp_path)

    def first() -> None:
        from stof_cupy import models

        model = models.build(checkpoint.config, checkpoint.tensors)
        options = Options(tune=tune, store=store)
        program = Program(model.graph, backend=backend, options=options)
        inputs = {"ids": ids, "token_types": np.zeros_like(ids)}
        if backend == "cuda":
            import cupy

            inputs = {name: cupy.asarray(array) for name, array in inputs.items()}
        out = program.run(inputs)["hidden"]
        if backend == "cuda":
            out.get()
        program.close()

    benchmark.pedantic(first, rounds=4)
    times = benchmark.stats.stats.data
    benchmark.extra_info |= {"first_s": times[0], "again_s": float(np.median(times[1:]))}
