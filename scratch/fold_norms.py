"""Norms folded into products: right, and faster? About 90 s on one GPU.

PYTHONPATH=. python scratch/fold_norms.py [results.json]

For each stack: ms of a run as one CUDA graph with norms as they are, and folded (statistics are told
by products), not tuned and tuned, in turns; and the distance of both from NumPy in float32 on two layers.
By the models folding saves 0.6 of 11.6 to 12.9 ms of gpt2 16x2048, 0.1 of llama's quarter and nothing of
gpt2 8x512. If it is right and pays so, `Options.fold_norms` may be None by default: where it pays.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from stof_cupy import TransformerEngine, engine, models
from stof_cupy.runtime import Options

GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 1000,
    "n_positions": 2048, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 1000,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
STACKS = {
    "gpt2 16x2048": (GPT2, (16, 2048), None),
    "gpt2 8x512": (GPT2, (8, 512), None),
    "llama-1b, 4 of 16 layers, 1x8192": (LLAMA, (1, 8192), "sliding:w=1024"),
}


def opened(config: dict[str, Any], weights: dict[str, Any], fold: bool, **how: Any) -> Any:
    """Return an engine that folds norms or does not."""
    engine.Options = functools.partial(Options, fold_norms=fold)  # type: ignore[misc]
    return TransformerEngine(weights, config=config, **how)


def given(shape: tuple[int, ...]) -> Any:
    """Return token ids."""
    return np.random.default_rng(0).integers(0, 1000, shape).astype(np.int32)


def distances(config: dict[str, Any]) -> dict[str, float]:
    """Return the largest error of hidden states, in units of their deviation, by fold."""
    layers = "n_layer" if "n_layer" in config else "num_hidden_layers"
    config = {**config, layers: 2}
    x = given((2, 100))
    weights = models.random_weights(config)
    exact = TransformerEngine(weights, config=config, backend="numpy").run(x)
    errors = {}
    for fold in (False, True):
        with opened(config, weights, fold, backend="cuda", dtype="bfloat16") as one:
            got = one.run(cupy.asarray(x)).astype(np.float32).get()
        errors["folded" if fold else "plain"] = float(np.abs(got - exact).max() / exact.std())
    return errors


def ms(run: Any, count: int = 10) -> float:
    """Return the milliseconds of a run."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / count


def measured(config: dict[str, Any], shape: tuple[int, ...], mask: Any) -> dict[str, float]:
    """Return the milliseconds of all ways to run a stack, taken in turns."""
    weights, x = models.random_weights(config), cupy.asarray(given(shape))
    how = {"backend": "cuda", "dtype": "bfloat16", "cuda_graphs": True}
    runs = {}
    for tune in ("off", "fast"):
        for fold in (False, True):
            one = opened(config, weights, fold, tune=tune, **how)
            runs[f"{tune}, {'folded' if fold else 'plain'}"] = functools.partial(
                one.run, x, mask=mask
            )
    for run in runs.values():
        for _ in range(3):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(5):
        for name, run in runs.items():
            times[name].append(ms(run))
    return {name: float(np.median(each)) for name, each in times.items()}


def main() -> None:
    """Measure all stacks."""
    found: dict[str, Any] = {}
    for name, (config, shape, mask) in STACKS.items():
        start = time.perf_counter()
        found[name] = {"error": distances(config), "ms": measured(config, shape, mask)}
        print(name, json.dumps(found[name], indent=1), f"{time.perf_counter() - start:.0f} s")
        cupy.get_default_memory_pool().free_all_blocks()
        if len(sys.argv) > 1:  # as they come: a run that is cut off loses nothing
            Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
