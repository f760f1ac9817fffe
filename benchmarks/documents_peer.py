"""FlashAttention of documents one after another: each is a sequence of its own, causal.

Its functions for sequences of any lengths take arrays (tokens, heads, head_dim), those of all
batches one after another, so inputs are copied once, outside of what is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attention_cells import CHUNK, Cell

__all__ = ["prepared"]


def prepared(
    cell: Cell, q: Any, k: Any, v: Any, documents: Any, dense: Any, function: Callable[..., Any]
) -> Callable[[], Any]:
    """Return a call of ``flash_attn_varlen_func``.

    Parameters
    ----------
    cell, q, k, v
    documents : int tensor (tokens,)
        Of which document each token is.
    dense : bool tensor (tokens, tokens)
        The mask, which what the peer is told is compared with.
    function : callable
    """
    import torch

    _, lengths = torch.unique_consecutive(documents, return_counts=True)
    _check(lengths, dense)
    batch, queries = cell.shape[0], cell.shape[3]
    ends = lengths.repeat(batch).cumsum(0)
    bounds = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
    longest = int(lengths.max())
    rows = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in (q, k, v)]
    how = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds, "causal": True}
    how |= {"max_seqlen_q": longest, "max_seqlen_k": longest}

    def run() -> Any:
        made = function(*rows, **how)
        out = made[0] if isinstance(made, tuple) else made
        return out.unflatten(0, (batch, queries)).transpose(1, 2)

    return run


def _check(lengths: Any, dense: Any) -> None:
    import torch

    at = torch.arange(len(dense), device=dense.device)
    number = torch.repeat_interleave(lengths)
    for first in range(0, len(dense), CHUNK):
        part = dense[first : first + CHUNK]
        q = at[first : first + len(part)]
        if not torch.equal((number[q, None] == number) & (q[:, None] >= at), part):
            raise AssertionError("what a peer is told and the mask differ")
