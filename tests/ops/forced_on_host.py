"""The instances of forced.py compiled for the CPU: every thread of the kernels, but no GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from stof_cupy.ops import attention_cuda
from stof_cupy.ops.attention_fields import Args
from stof_cupy.testing import poison
from tests.masks import on_host
from tests.ops import on_hopper
from tests.ops.forced import Hopper, Instance


def launch(instance: Instance, g: np.random.Generator, args: Args) -> tuple[Any, Any]:
    """Run an instance on NumPy arrays; return output and LSE."""
    args = attention_cuda.completed(args, True)
    args = replace(args, lse=poison(args.q.shape[:3], np.float32))
    if isinstance(instance, Hopper):
        on_hopper.attend(instance.config(g, args), args, seed=int(g.integers(1000)))
        return args.out, args.lse
    every, _used = attention_cuda.launches(instance.config(g, args), args)
    for spec, blocks, fields in every:
        if blocks:
            on_host.launch(spec, (blocks, 1), **fields)
    return args.out, args.lse
