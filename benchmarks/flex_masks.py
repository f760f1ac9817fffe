"""FlexAttention's block masks of what bench_masks.py builds on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from shapes import BLOCK, GLOBAL, TOP, WINDOW


@contextmanager
def builder(
    name: str, s: int, arrays: dict[str, Any], *, hold: bool
) -> Iterator[Callable[[], Any]]:
    """Give a function that builds a ``BlockMask``, compiled and warm.

    Parameters
    ----------
    name : str
        One of `shapes.DEVICE_MASK_NAMES`.
    s : int
        Queries and keys.
    arrays : dict of cupy.ndarray
        What the mask is made of; shared with torch.
    hold : bool
        Whether ``torch.compile(create_block_mask)`` is kept between calls, as torch recommends, or
        made by ``create_block_mask(..., _compile=True)`` in each.
    """
    import cupy
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    cupy.get_default_memory_pool().free_all_blocks()  # torch has a pool of its own
    # Past a few masks and lengths, torch would run what it compiled for others, or not compile.
    torch._dynamo.reset()
    rule, prepare = _rule(name, {key: _tensor(value) for key, value in arrays.items()})
    compiled = torch.compile(create_block_mask) if hold else create_block_mask
    how = {} if hold else {"_compile": True}

    def build() -> Any:
        prepare()
        return compiled(rule, None, None, s, s, device="cuda", **how)

    try:
        for _ in range(3):
            build()
        torch.cuda.synchronize()
        yield build
    except torch.OutOfMemoryError as error:
        pytest.skip(f"torch: {str(error).splitlines()[0]}")
    finally:
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def listed(mask: Any) -> Any:
    """Return the rows and columns of the blocks that a ``BlockMask`` lists, part and full ones."""
    import torch

    found = []
    for kind in ("kv", "full_kv"):
        counts, columns = (getattr(mask, f"{kind}_{name}") for name in ("num_blocks", "indices"))
        if counts is not None:
            counts, columns = counts[0, 0], columns[0, 0]
            there = torch.arange(columns.shape[1], device=counts.device) < counts[:, None]
            found.append(torch.stack((there.nonzero()[:, 0], columns[there].long())))
    every = torch.cat(found, 1).T.cpu().numpy()
    return every[np.lexsort(every.T[::-1])]


def _tensor(array: Any) -> Any:
    """Return a CuPy array as a tensor of the same memory."""
    import torch

    if array.dtype == bool:  # not every release takes booleans through DLPack
        return torch.from_dlpack(array.view("u1")).view(torch.bool)
    return torch.from_dlpack(array)


def _rule(name: str, tensors: dict[str, Any]) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return the rule of a mask, and what has to be computed before it can be asked."""
    documents, layout, dense = (tensors.get(key) for key in ("documents", "layout", "dense"))
    prepare: Callable[[], None] = _nothing
    if name == "topk":
        layout, prepare = _top(tensors["scores"])

    def near(q: Any, k: Any) -> Any:
        return (q - k).abs() <= WINDOW

    def listed(q: Any, k: Any) -> Any:
        return layout[q // BLOCK, k // BLOCK]  # type: ignore[index]

    def same(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (documents[q] == documents[k]) & (q >= k)  # type: ignore[index]

    def bigbird(b: Any, h: Any, q: Any, k: Any) -> Any:
        window = (q // BLOCK - k // BLOCK).abs() <= 1
        return window | (q < 2 * BLOCK) | (k < 2 * BLOCK) | listed(q, k)

    rules: dict[str, Callable[..., Any]] = {
        "causal": lambda b, h, q, k: q >= k,
        "sliding": lambda b, h, q, k: near(q, k),
        "causal-sliding": lambda b, h, q, k: (q >= k) & (q - k <= WINDOW),
        "longformer": lambda b, h, q, k: near(q, k) | (q < GLOBAL) | (k < GLOBAL),
        "bigbird": bigbird,
        "document": same,
        "formula": same,
        "formula-within": same,
        "block10": lambda b, h, q, k: listed(q, k),
        "dense": lambda b, h, q, k: dense[q, k],  # type: ignore[index]
        "topk": lambda b, h, q, k: listed(q, k),
    }
    return rules[name], prepare


def _top(scores: Any) -> tuple[Any, Callable[[], None]]:
    """Return a layout of blocks, and what marks in it the highest of each row."""
    import torch

    layout = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    most = scores.shape[-1] // TOP

    def select() -> None:
        layout.zero_().scatter_(-1, scores.topk(most, dim=-1).indices, True)

    return layout, select


def _nothing() -> None:
    """There is nothing to compute before the rule."""
