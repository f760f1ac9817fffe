"""What generating asks of CUDA, as JSON: `python -m tests.models.decode_path CACHE_DIR`.

Run on the stand-in for CuPy of tests/runtime/fake_cuda.py, in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from tests.goldens.cases import GEMMA3, GPT2, LLAMA, T5

GEMMA3 = {**GEMMA3, "max_position_embeddings": 512}
CASES = {"gpt2": GPT2, "llama": LLAMA, "gemma3": GEMMA3, "t5": T5}


def add_what_it_lacks() -> None:
    """Let arrays be copied to pinned memory while the host goes on."""
    import cupy

    def get(
        self: Any, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ):
        fake_cuda.note("download" if blocking else "async", "get")
        if out is None:
            return self.host.copy()
        out[...] = self.host
        return out

    fake_cuda.ndarray.get = get  # type: ignore[method-assign]
    fake_cuda.Event.synchronize = lambda self: None  # type: ignore[attr-defined]
    cupy.cuda.alloc_pinned_memory = bytearray


def told(config: dict[str, Any], prompts: list[list[int]], count: int) -> dict[str, Any]:
    """Return what is asked for by the first texts of a size, and by more of them."""
    from stof_cupy import TransformerEngine, models
    from tests.runtime import fake_cuda

    weights = models.random_weights(config)
    engine = TransformerEngine(weights, config=config, backend="cuda", cuda_graphs=True)
    runs = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):  # the second time, what reads a source is recorded
            fake_cuda.LOG.clear()
            engine.generate(prompts, max_new_tokens=count, stop=())
            runs.append(list(fake_cuda.LOG))
    warned = [str(each.message) for each in said]
    return {"runs": runs, "warnings": warned, "dtype": engine.dtype}


if __name__ == "__main__":
    from tests.runtime import cuda_path, fake_cuda

    os.environ["STOF_CACHE_DIR"] = sys.argv[1]
    fake_cuda.install(cuda_path.H100)
    add_what_it_lacks()
    found = {name: told(config, [[1] * 9, [2] * 4], 6) for name, config in CASES.items()}
    print(json.dumps(found))
