"""FlashInfer's block-sparse attention of a cell: its blocks, and their bits where they are needed.

It knows no batch; sequences are rows of one block-diagonal matrix, which costs it nothing. Arrays
are (tokens, heads, head_dim) there, so inputs are copied once, outside of what is timed. Blocks
that are kept whole are listed without a mask, which lets it take the faster of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIDE = 64
WORKSPACE = 2**28  # bytes


def prepared(cell: Any, q: Any, k: Any, v: Any, dense: Any) -> Callable[[], Any]:
    """Return a call; `dense` is the mask, bool (queries, keys)."""
    import flashinfer
    import torch
    from attention_peers import NotForError

    batch, heads, kv_heads, queries, keys, dim = cell.shape
    if queries % SIDE or keys % SIDE:
        raise NotForError(f"lengths that are multiples of {SIDE}")
    indptr, indices, bits = _blocks(dense)
    if not torch.equal(_restored(indptr, indices, bits, dense.shape), dense):
        raise AssertionError("the blocks and the dense mask differ")
    down, across = queries // SIDE, keys // SIDE
    shifts = torch.arange(batch, device=dense.device, dtype=torch.int32)[:, None]
    many = (indices[None] + shifts * across).flatten().to(torch.int32)
    ends = (indptr[None, 1:] + shifts * len(indices)).flatten().to(torch.int32)
    starts = torch.cat((indptr[:1], ends))
    mask = None if bool(bits.all()) else bits.repeat(batch, 1, 1)
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=dense.device)
    wrapper = flashinfer.BlockSparseAttentionWrapper(workspace)
    sizes = (batch * down * SIDE, batch * across * SIDE, SIDE, SIDE, heads, kv_heads, dim)
    wrapper.plan(starts, many, *sizes, mask=mask, q_data_type=q.dtype, o_data_type=q.dtype)
    rows = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in (q, k, v)]

    def run() -> Any:
        return wrapper.run(*rows).unflatten(0, (batch, queries)).transpose(1, 2)

    return run


def _blocks(dense: Any) -> tuple[Any, Any, Any]:
    """Return the non-empty blocks of a mask row by row, and their elements."""
    import torch

    tiles = dense.unflatten(1, (-1, SIDE)).unflatten(0, (-1, SIDE)).transpose(1, 2)
    row, col = tiles.flatten(2).any(2).nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(tiles))
    indptr = torch.cat((counts.new_zeros(1), counts.cumsum(0))).to(torch.int32)
    return indptr, col.to(torch.int32), tiles[row, col]


def _restored(indptr: Any, indices: Any, bits: Any, shape: Any) -> Any:
    import torch

    down, across = (size // SIDE for size in shape)
    made = torch.zeros((down, across, SIDE, SIDE), dtype=torch.bool, device=bits.device)
    rows = torch.repeat_interleave(torch.arange(down, device=bits.device), indptr.diff())
    made[rows, indices.long()] = bits
    return made.transpose(1, 2).reshape(shape)
