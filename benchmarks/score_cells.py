"""What bench_attention_scores.py times: attention whose scores are modified, and its peers.

Each modification has a definition of its own here: a softcap, or biases by distance, looked up
beforehand, which the peers get and ours is compared with. Of biases it finds what is wrong. Scores
are about 1, which a softcap of 30 hardly changes: that one is held by tests/ops alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import attention_cells
import attention_peers
import numpy as np
from attention_cells import Cell
from attention_peers import DENSE_MOST, tensor
from attention_ways import NotForError

from stof_cupy import RelativeBias, attention
from stof_cupy.ops import reference

__all__ = ["PEERS", "TERMS", "Modified", "modified", "ours"]

TERMS = ("softcap", "alibi", "relative")
SOFTCAP, BUCKETS, FAR = 30.0, 32, 128


@dataclass(frozen=True, eq=False)
class Modified:
    """A cell, what modifies its scores, and the result.

    Attributes
    ----------
    cell : Cell
        Its own result is that of plain scores.
    how : dict
        What ours is told.
    by_distance : cupy float32 (heads, 2 * seq - 1) or None
        Biases of keys from far before the query to far behind it.
    out : cupy.ndarray
        Ours.
    """

    cell: Cell
    how: dict[str, Any]
    by_distance: Any
    out: Any


@lru_cache(maxsize=1)
def modified(shape: tuple[int, int, int, int, int, int], name: str, term: str) -> Modified:
    """Return a problem, its result computed by ours and found right in some rows."""
    import cupy

    cell = attention_cells.cell(shape, name)
    heads, seq = shape[1], shape[3]
    away = np.arange(1 - seq, seq)
    how: dict[str, Any] = {"softcap": SOFTCAP}
    by_distance = None
    if term == "alibi":
        slopes = np.exp2(-8 * np.arange(1, heads + 1) / heads).astype(np.float32)
        how, by_distance = {"alibi": cupy.asarray(slopes)}, -slopes[:, None] * abs(away)
    if term == "relative":
        from engine_attends import buckets

        table = np.random.default_rng(5).standard_normal((BUCKETS, heads)).astype(np.float32)
        bias = RelativeBias(cupy.asarray(table), bidirectional=True, max_distance=FAR)
        how, by_distance = {"bias": bias}, table[buckets(away, BUCKETS, bidirectional=True)].T
    if by_distance is not None:
        by_distance = cupy.asarray(by_distance, np.float32, order="C")
    made = Modified(cell, how, by_distance, cupy.empty_like(cell.q))
    ours(made)
    return made


def ours(made: Modified) -> Callable[[], None]:
    """Return a call of ours; it has run, and its result was found right in some rows."""
    cell = made.cell

    def run() -> None:
        attention(cell.q, cell.k, cell.v, cell.mask.ours, out=made.out, **made.how)

    made.out.fill(np.nan)
    run()
    _check_rows(made)
    return run


def _check_rows(made: Modified) -> None:
    """Compare some rows of two heads with the float64 oracle."""
    cell, (batch, heads, kv_heads, queries, keys, _) = made.cell, made.cell.shape
    rows = np.unique(np.linspace(0, queries - 1, 16).astype(np.int64))
    at = np.arange(keys) - rows[:, None] + keys - 1
    for b, h in {(0, 0), (batch - 1, heads - 1)}:
        kv = h // (heads // kv_heads)
        arrays = [x.get()[None, None] for x in (cell.q[b, h, rows], cell.k[b, kv], cell.v[b, kv])]
        dense = None if cell.mask.dense is None else cell.mask.dense[rows].get()
        how = {"softcap": made.how.get("softcap")}
        how["bias"] = None if made.by_distance is None else made.by_distance[h].get()[at]
        exact = reference.attention(*arrays, dense, **how)[0, 0]
        got = made.out[b, h, rows].get().astype(np.float64)
        np.testing.assert_allclose(got, exact, atol=1e-2, rtol=2e-2)


# ---------------------------------------------------------------- peers


def flex(made: Modified) -> Callable[[], Any]:
    """FlexAttention with a ``score_mod``, the fastest of what its autotuner finds.

    With the defaults that other benchmarks leave it at, some of these do not compile.
    """
    return _flex(made, {})


def flex_fa4(made: Modified) -> Callable[[], Any]:
    """FlexAttention with FlashAttention 4 as its backend."""
    import flash_attn.cute  # noqa: F401  # the backend, without which this compiles in vain

    return _flex(made, {"BACKEND": "FLASH"})


def _flex(made: Modified, options: dict[str, Any]) -> Callable[[], Any]:
    cell = made.cell
    block_mask = None if cell.mask.dense is None else attention_peers.block_mask(cell)
    q, k, v = (tensor(x) for x in (cell.q, cell.k, cell.v))
    change = _score_mod(made)
    compiled = _compiled(cell.shape, cell.mask.name, tuple(made.how), bool(options))

    def run() -> Any:
        return compiled(
            q, k, v, score_mod=change, block_mask=block_mask, kernel_options=options or None
        )

    return run


@lru_cache(maxsize=1)
def _compiled(*_: Any) -> Any:
    """Return FlexAttention to be compiled anew."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    return torch.compile(flex_attention, dynamic=False, mode="max-autotune-no-cudagraphs")


def _score_mod(made: Modified) -> Callable[..., Any]:
    """Return what FlexAttention does to a score; ALiBi it computes, other biases it looks up."""
    import torch

    last = made.cell.shape[3] - 1
    if "softcap" in made.how:
        return lambda score, b, h, q, k: SOFTCAP * torch.tanh(score / SOFTCAP)
    if "alibi" in made.how:
        slopes = tensor(made.how["alibi"])
        return lambda score, b, h, q, k: score - slopes[h] * (k - q).abs()
    bias = tensor(made.by_distance)
    return lambda score, b, h, q, k: score + bias[h, k - q + last]


def sdpa_bias(made: Modified) -> Callable[[], Any]:
    """SDPA's memory-efficient backend, mask and biases in one dense array made beforehand."""
    cell, seq = made.cell, made.cell.shape[3]
    if made.by_distance is None:
        raise NotForError("biases alone")
    if seq > DENSE_MOST:
        raise NotForError("biases of up to 16384 tokens")
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    at = torch.arange(seq, device="cuda")
    added = tensor(made.by_distance).bfloat16()[:, at - at[:, None] + seq - 1]
    if cell.mask.dense is not None:
        added.masked_fill_(~tensor(cell.mask.dense), -torch.inf)
    q, k, v = (tensor(x) for x in (cell.q, cell.k, cell.v))

    def run() -> Any:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added[None])

    return run


def fa3(made: Modified) -> Callable[[], Any]:
    """FlashAttention 3, which has a softcap."""
    if "softcap" not in made.how:
        raise NotForError("a softcap alone")
    how = attention_peers.window(made.cell, -1)
    function = import_module("flash_attn_interface").flash_attn_func
    q, k, v = (tensor(x).transpose(1, 2) for x in (made.cell.q, made.cell.k, made.cell.v))

    def run() -> Any:
        found = function(q, k, v, softcap=SOFTCAP, **how)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return run


PEERS: dict[str, Callable[[Modified], Callable[[], Any]]] = {
    "Flex": flex,
    "Flex+FA4": flex_fa4,
    "SDPA-bias": sdpa_bias,
    "FA3": fa3,
}
