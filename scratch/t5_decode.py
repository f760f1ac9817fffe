"""T5 of flan-t5-small's shape, random weights: equal tokens recorded or not, and ms a token.

    PYTHONPATH=. python scratch/t5_decode.py        # not run yet; 1 to 2 minutes, mostly compiling

Prints for batch 1 and 8: equal tokens, ms a token recorded and launched one by one, from texts of
129 and 250 tokens, so that encoder and prefill cancel out.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import cupy
import numpy as np

from stof_cupy import TransformerEngine, models

SMALL = {
    "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
    "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    "layer_norm_epsilon": 1e-6, "decoder_start_token_id": 0,
}  # fmt: skip


def timed(engine: Any, prompts: Any, count: int) -> tuple[float, Any]:
    """Return the least of four times, and what was said."""
    best, said = np.inf, None
    for _ in range(4):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        said = engine.generate(prompts, max_new_tokens=count, stop=())
        best = min(best, time.perf_counter() - start)
    return best, said


if __name__ == "__main__":
    warnings.simplefilter("always")
    weights = models.random_weights(SMALL, 0)
    make = {"config": SMALL, "backend": "cuda"}
    recorded = TransformerEngine(weights, cuda_graphs=True, **make)
    plain = TransformerEngine(weights, cuda_graphs=False, **make)
    g = np.random.default_rng(0)
    for batch in (1, 8):
        prompts = [g.integers(1, 32128, n).tolist() for n in g.integers(20, 60, batch)]
        took = {}
        for name, engine in (("recorded", recorded), ("plain", plain)):
            short, _ = timed(engine, prompts, 129)  # the same room as 250
            long, took[name + " tokens"] = timed(engine, prompts, 250)
            took[name] = (long - short) / 121 * 1e3
        same = took["recorded tokens"] == took["plain tokens"]
        print(
            f"batch {batch}: recorded {took['recorded']:.3f} ms a token, "
            f"plain {took['plain']:.3f}, equal tokens: {same}",
            flush=True,
        )
    # Other sources in the same room: nothing of the one before is left.
    one, other = [[5, 6, 7] * 15], [[9, 8]]
    first = recorded.generate(other, max_new_tokens=40, stop=())
    recorded.generate(one, max_new_tokens=40, stop=())
    print("sources do not mix:", recorded.generate(other, max_new_tokens=40, stop=()) == first)
