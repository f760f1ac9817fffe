"""cuDNN's block-sparse attention, of nvidia-cudnn-frontend: masks of whole blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attention_cells import Cell
from shapes import BLOCK

__all__ = ["prepared"]


def prepared(cell: Cell, q: Any, k: Any, v: Any, dense: Any) -> Callable[[], Any]:
    """Return a call; raise NotForError for a mask of which blocks are kept in part."""
    import torch
    from attention_peers import NotForError, listed

    queries, keys = dense.shape
    if queries % BLOCK or keys % BLOCK:
        raise NotForError(f"whole blocks of {BLOCK} alone")
    blocks = dense.view(queries // BLOCK, BLOCK, keys // BLOCK, BLOCK)
    some = blocks.any(3).any(1)
    if not torch.equal(some, blocks.all(3).all(1)):
        raise NotForError(f"whole blocks of {BLOCK} alone")
    from cudnn.block_sparse_attention import block_sparse_attention_forward

    lead = cell.shape[:2]
    counts, columns = (x.expand(*lead, *x.shape[2:]).contiguous() for x in listed(some))

    def run() -> Any:
        made = block_sparse_attention_forward(
            q, k, v, columns, q2k_block_nums=counts, sparse_block_size=BLOCK
        )
        return made["o_tensor"]

    return run
