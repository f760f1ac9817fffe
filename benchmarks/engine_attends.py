"""Attention of the stacks in PyTorch: SDPA and FlexAttention, each under a cell's mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import engine_stacks as stacks
import numpy as np
import torch
from engine_stacks import FAR, Cell
from torch import nn
from torch.nn import functional

Attend = Callable[[Any, Any, Any], Any]


def sdpa(cell: Cell, device: str) -> Attend:
    """Return SDPA under the mask of a cell."""
    how: dict[str, Any] = {"enable_gqa": True} if _shares(cell) else {}
    if cell.stack.causal and cell.mask == "full":
        how["is_causal"] = True
    elif (dense := stacks.dense(cell)) is not None:
        how["attn_mask"] = torch.from_numpy(dense).to(device)
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **how)


def flex(cell: Cell, device: str) -> Attend:
    """Return FlexAttention, to be compiled with the stack, and its block mask made once."""
    from torch.nn.attention.flex_attention import flex_attention

    block_mask, shares = _block_mask(cell, device), _shares(cell)
    return lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask, enable_gqa=shares)


def _block_mask(cell: Cell, device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    keep = stacks.rule(cell, torch.from_numpy(stacks.scattered(cell.seq)).to(device))
    if keep is None:
        return None
    return create_block_mask(
        lambda b, h, q, k: keep(q, k), None, None, cell.seq, cell.seq, device=device
    )


def _shares(cell: Cell) -> bool:
    return cell.stack.heads != cell.stack.kv_heads


# ---------------------------------------------------------------- T5


def buckets(distance: Any, count: int, bidirectional: bool) -> Any:
    """Return the buckets of distances from queries to keys, which T5's paper sorts them into."""
    first, away = np.zeros_like(distance), np.maximum(-distance, 0)
    if bidirectional:
        count //= 2
        first, away = np.where(distance > 0, count, 0), abs(distance)
    near = count // 2
    with np.errstate(divide="ignore"):
        far = np.log(away / near) / np.log(FAR / near) * (count - near)
    far = np.where(away < near, 0, far).astype(np.int64)
    return first + np.where(away < near, away, np.minimum(near + far, count - 1))


def by_distance(cell: Cell, side: str, table: Any) -> Any:
    """Return the relative biases (heads, 2 * seq - 1) of keys from far before to far behind."""
    distance = np.arange(1 - cell.seq, cell.seq)
    found = buckets(distance, cell.stack.buckets, side == "encoder")
    return table[torch.from_numpy(found).to(table.device)].T.contiguous()


class Biased(nn.Module):
    """SDPA with what is added to scores, a buffer: a captured graph reads it where it is."""

    def __init__(self, added: Any) -> None:
        super().__init__()
        self.register_buffer("added", added, persistent=False)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        """Return the attention of unscaled scores."""
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.added, scale=1.0)


class FlexBiased(nn.Module):
    """FlexAttention with a bias by distance, a buffer as well."""

    def __init__(self, bias: Any, block_mask: Any) -> None:
        super().__init__()
        self.register_buffer("bias", bias, persistent=False)
        self.block_mask = block_mask

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        """Return the attention of unscaled scores."""
        from torch.nn.attention.flex_attention import flex_attention

        bias, last = self.bias, self.bias.shape[1] // 2

        def moved(score: Any, b: Any, h: Any, at: Any, key: Any) -> Any:
            return score + bias[h, key - at + last]

        return flex_attention(q, k, v, score_mod=moved, block_mask=self.block_mask, scale=1.0)


def biased(cell: Cell, way: str, side: str, table: Any) -> Attend:
    """Return attention of T5's encoder or decoder to itself."""
    here, device = stacks.decoder(cell) if side == "decoder" else cell, table.device
    bias = by_distance(cell, side, table)
    if way == "flex":
        return FlexBiased(bias, _block_mask(here, device.type))
    at = torch.arange(cell.seq, device=device)
    added = bias[:, at - at[:, None] + cell.seq - 1]
    if (dense := stacks.dense(here)) is not None:
        added.masked_fill_(~torch.from_numpy(dense).to(device), float("-inf"))
    return Biased(added[None])


def crossing(way: str) -> Attend:
    """Return attention of T5's decoder to its encoder."""
    if way == "flex":
        from torch.nn.attention.flex_attention import flex_attention

        return lambda q, k, v: flex_attention(q, k, v, scale=1.0)
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=1.0)
