"""The instances of forced.py compiled for the CPU: every thread of the kernels, but no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.ops import attention_cuda
from stof_cupy.ops import attention_rowwise as rowwise
from stof_cupy.ops._arrays import unit_last
from stof_cupy.testing import poison
from tests.masks import on_host
from tests.ops import on_hopper
from tests.ops.forced import Block, Call, Instance, Row


def launch(instance: Instance, g: np.random.Generator, call: Call) -> tuple[Any, Any]:
    """Run an instance on NumPy arrays; return output and LSE."""
    q, k, v = map(unit_last, (call.q, call.k, call.v))
    lengths = call.kv_lengths
    if lengths is not None:
        lengths = np.clip(lengths, 0, call.problem.seq_k).astype(np.int32)
    if isinstance(instance, Block | Row):
        lse = poison(call.q.shape[:3], np.float32)
        arrays = (q, k, v, call.out, lse)
        run = _block if isinstance(instance, Block) else _row
        run(instance, g, call, arrays, lengths)  # type: ignore[operator]
        return call.out, lse
    how = {"scale": call.scores.scale, "kv_lengths": lengths, "seed": int(g.integers(1000))}
    return call.out, on_hopper.attend(instance.config, q, k, v, call.mask, out=call.out, **how)


def _block(instance: Block, g: np.random.Generator, call: Call, arrays: Any, lengths: Any) -> None:
    config = instance.config(g, call)
    every, _used = attention_cuda.launches(
        config, call.problem, (*arrays, lengths), call.mask, call.scores, np
    )
    for spec, blocks, fields in every:
        if blocks:
            on_host.launch(spec, (blocks, 1), **fields)


def _row(instance: Row, g: np.random.Generator, call: Call, arrays: Any, lengths: Any) -> None:
    rows = int(g.choice(rowwise.BLOCK_ROWS))
    config = rowwise.Config(instance.head_dim, instance.pairs, instance.lists, rows)
    lists = rowwise._lists(config, call.mask)
    long_rows = lists.long_rows if instance.lists == "keys" else 0
    grid, fields, _kept = rowwise.arguments(
        config, call.problem, arrays, lists, long_rows, call.scores, lengths
    )
    if grid[0]:
        on_host.launch(instance.specs()[0], (*grid, 1), **fields)
