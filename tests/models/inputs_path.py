"""What inputs of runs ask of CUDA, as JSON: `python -m tests.models.inputs_path CACHE_DIR`.

Run on the stand-in for CuPy of tests/runtime/fake_cuda.py, in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.runtime import cuda_path, fake_cuda


def found() -> dict[str, Any]:
    from stof_cupy import masks

    window = masks.sliding_window(64, window=8)
    return {
        "gpt2, spec": cuda_path.told(cuda_path.GPT2, {"mask": "sliding:w=8"}),
        "gpt2, mask": cuda_path.told(cuda_path.GPT2, {"mask": window.tobsr()}),
        "gpt2, pattern": cuda_path.told(cuda_path.GPT2, {"mask": window}),
    }


if __name__ == "__main__":
    os.environ["STOF_CACHE_DIR"] = sys.argv[1]
    fake_cuda.install(cuda_path.H100)
    print(json.dumps(found()))
