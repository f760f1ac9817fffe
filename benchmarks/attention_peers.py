"""Attention of others, on the inputs of a cell of attention_cells.py.

Each peer is a function of a `Cell` that returns a call without arguments, which gives a tensor of
the shape of ours. What a peer cannot do it says by `NotForError`; whatever else goes wrong in one
is its own business, and is reported. What a peer is told of a mask, by flags, a rule or blocks, is
found equal to the dense mask element by element first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import documents_peer
from attention_cells import CHUNK, Cell, rule
from attention_ways import NotForError

__all__ = ["PEERS", "NotForError", "block_mask", "listed", "tensor", "window"]

FLEX_BLOCK = 128
DENSE_MOST = 16_384  # keys and queries of a dense mask for SDPA

Call = Callable[[], Any]


def tensor(array: Any) -> Any:
    """Return a CuPy array as a tensor of the same memory."""
    import torch

    kinds = {"bfloat16": ("i2", torch.bfloat16), "bool": ("u1", torch.bool)}
    if array.dtype.name not in kinds:
        return torch.from_dlpack(array)
    bits, dtype = kinds[array.dtype.name]  # DLPack does not take these from everyone
    return torch.from_dlpack(array.view(bits)).view(dtype)


def _tensors(cell: Cell) -> tuple[Any, Any, Any]:
    q, k, v = (tensor(x) for x in (cell.q, cell.k, cell.v))
    return q, k, v


# ---------------------------------------------------------------- SDPA


def _sdpa(cell: Cell, backend: str, **how: Any) -> Call:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = _tensors(cell)
    if q.shape[1] != k.shape[1]:
        how["enable_gqa"] = True
    chosen = getattr(SDPBackend, backend)

    def run() -> Any:
        with sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **how)

    return run


def _full_or_causal(cell: Cell) -> bool:
    """Return whether a mask is causal; refuse others than that and none."""
    if cell.mask.name not in ("full", "causal"):
        raise NotForError("full and causal alone")
    causal = cell.mask.name == "causal"
    _check_rule(cell, None, 0 if causal else None)
    return causal


def _check_rule(cell: Cell, before: int | None, after: int | None) -> None:
    """Compare with the mask the one that sees so many keys before and after; None: all."""
    import cupy

    dense = cell.mask.dense
    if dense is None:
        dense = cupy.ones((1, 1), bool)
    k = cupy.arange(dense.shape[1])
    for first in range(0, len(dense), CHUNK):
        part = dense[first : first + CHUNK]
        ahead = k - cupy.arange(first, first + len(part))[:, None]
        keep = cupy.ones(part.shape, bool)
        if before is not None:
            keep &= -ahead <= before
        if after is not None:
            keep &= ahead <= after
        if not bool((keep == part).all()):
            raise AssertionError("what a peer is told and the mask differ")


def fa2(cell: Cell) -> Call:
    """SDPA's flash backend."""
    return _sdpa(cell, "FLASH_ATTENTION", is_causal=_full_or_causal(cell))


def cudnn(cell: Cell) -> Call:
    """SDPA's cuDNN backend; for windows and documents, which it has not, cuDNN's own graphs."""
    if cell.mask.name in ("full", "causal"):
        return _sdpa(cell, "CUDNN_ATTENTION", is_causal=_full_or_causal(cell))
    import cudnn_graphs

    if cell.mask.name == "document":
        return _documents(cell, cudnn_graphs.sequences())
    return cudnn_graphs.windowed(*_tensors(cell), *window(cell, None)["window_size"])


def sdpa_mask(cell: Cell) -> Call:
    """SDPA's memory-efficient backend with the mask as a dense array, of what it adds to scores.

    Of booleans PyTorch makes that array anew in each call.
    """
    import torch

    if cell.mask.dense is None or max(cell.mask.dense.shape) > DENSE_MOST:
        raise NotForError("a dense mask")
    dense, dtype = tensor(cell.mask.dense), tensor(cell.q).dtype
    added = torch.zeros(dense.shape, dtype=dtype, device=dense.device)
    added.masked_fill_(~dense, -torch.inf)
    if not torch.equal(added == 0, dense):
        raise AssertionError("what a peer is told and the mask differ")
    return _sdpa(cell, "EFFICIENT_ATTENTION", attn_mask=added[None, None])


# ---------------------------------------------------------------- FlashAttention 3 and 4


def window(cell: Cell, everything: Any) -> dict[str, Any]:
    """Return how the functions of FlashAttention are told of a mask."""
    reach = cell.mask.reach
    named = {
        "full": {"causal": False, "window_size": (everything, everything)},
        "causal": {"causal": True, "window_size": (everything, everything)},
        "sliding": {"causal": False, "window_size": (reach, reach)},
        "causal-sliding": {"causal": False, "window_size": (reach, 0)},
    }
    if cell.mask.name not in named:
        raise NotForError("windows and documents alone")
    how = named[cell.mask.name]
    before, after = (None if side == everything else side for side in how["window_size"])
    _check_rule(cell, before, 0 if how["causal"] else after)
    return how


def _documents(cell: Cell, function: Callable[..., Any]) -> Call:
    looked_up = tensor(cell.mask.arrays["documents"]), tensor(cell.mask.dense)
    return documents_peer.prepared(cell, *_tensors(cell), *looked_up, function)


def _flash(cell: Cell, module: str, everything: Any, **more: Any) -> Call:
    if cell.mask.name == "document":
        return _documents(cell, import_module(module).flash_attn_varlen_func)
    how = window(cell, everything) | more
    function = import_module(module).flash_attn_func
    q, k, v = (x.transpose(1, 2) for x in _tensors(cell))

    def run() -> Any:
        made = function(q, k, v, **how)
        out = made[0] if isinstance(made, tuple) else made
        return out.transpose(1, 2)

    return run


def fa3(cell: Cell) -> Call:
    """FlashAttention 3, of the wheels that tools/peer_bundle.sh packs.

    Of few queries it may cut the keys as it likes, the default of its function for caches.
    """
    few = {"num_splits": 0} if cell.shape[3] < cell.shape[4] else {}
    return _flash(cell, "flash_attn_interface", -1, **few)


def fa4(cell: Cell) -> Call:
    """FlashAttention 4, which on Hopper cuts no keys."""
    return _flash(cell, "flash_attn.cute", None)


# ---------------------------------------------------------------- FlexAttention


def flex(cell: Cell) -> Call:
    """FlexAttention, Triton."""
    return _flex(cell, {})


def flex_fa4(cell: Cell) -> Call:
    """FlexAttention with FlashAttention 4 as its backend."""
    import flash_attn.cute  # noqa: F401  # the backend, without which this compiles in vain

    return _flex(cell, {"BACKEND": "FLASH"})


def _flex(cell: Cell, options: dict[str, Any]) -> Call:
    if cell.mask.dense is None or cell.shape[3] != cell.shape[4]:
        raise NotForError("masks of squares")
    q, k, v = _tensors(cell)
    listed_blocks = block_mask(cell)
    kind = "elements" if cell.mask.name.startswith("elements") else cell.mask.name
    compiled = _compiled(cell.shape, kind)

    def run() -> Any:
        gqa = q.shape[1] != k.shape[1]
        return compiled(
            q, k, v, block_mask=listed_blocks, enable_gqa=gqa, kernel_options=options or None
        )

    return run


@lru_cache(maxsize=1)
def _compiled(shape: Any, kind: str) -> Any:
    """Return FlexAttention to be compiled anew: once for all random elements of a size."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    return torch.compile(flex_attention, dynamic=False)


@lru_cache(maxsize=1)
def _elements(queries: int, keys: int, device: Any) -> tuple[Any, Any]:
    """Return a dense mask, to be filled, and its rule: one of each for all densities."""
    import torch

    dense = torch.zeros(queries, keys, dtype=torch.bool, device=device)
    return dense, lambda b, h, q, k: dense[q, k]


def _rule(cell: Cell) -> Any:
    mask = cell.mask
    if mask.name.startswith("elements"):
        given = tensor(mask.dense)
        dense, found = _elements(*given.shape, given.device)
        dense.copy_(given)
        return found
    tensors = {name: tensor(array) for name, array in mask.arrays.items()}
    keep = rule(mask.name, mask.reach, mask.tokens, tensors)
    return lambda b, h, q, k: keep(q, k)


def block_mask(cell: Cell) -> Any:
    """Return the `BlockMask` of the dense mask, which the rule is found to equal.

    FlexAttention's own builder takes seconds, at the first call of each rule, or much memory.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    mod, dense = _rule(cell), tensor(cell.mask.dense)
    queries, keys = dense.shape
    k = torch.arange(keys, device=dense.device)
    blocks = -(-queries // FLEX_BLOCK), -(-keys // FLEX_BLOCK)
    some = torch.zeros(blocks, dtype=torch.bool, device=dense.device)
    every = torch.zeros_like(some)
    for first in range(0, queries, CHUNK):
        part = dense[first : first + CHUNK]
        q = torch.arange(first, first + len(part), device=dense.device)
        if not torch.equal(mod(0, 0, q[:, None], k), part):
            raise AssertionError("the rule and the dense mask differ")
        tiles = part.view(len(part) // FLEX_BLOCK, FLEX_BLOCK, blocks[1], FLEX_BLOCK)
        here = slice(first // FLEX_BLOCK, first // FLEX_BLOCK + len(tiles))
        some[here], every[here] = tiles.any(3).any(1), tiles.all(3).all(1)
    partial = listed(some & ~every)
    return BlockMask.from_kv_blocks(
        *partial, *listed(every), BLOCK_SIZE=FLEX_BLOCK, mask_mod=mod, seq_lengths=(queries, keys)
    )


def listed(blocks: Any) -> tuple[Any, Any]:
    """Return how many blocks each row has, and which: those first."""
    import torch

    counts = blocks.sum(-1, dtype=torch.int32)
    columns = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return counts[None, None], columns.to(torch.int32)[None, None].contiguous()


# ---------------------------------------------------------------- blocks alone


def cudnn_sparse(cell: Cell) -> Call:
    """cuDNN's block-sparse attention, of its frontend's package."""
    import cudnn_peer

    if cell.mask.dense is None:
        raise NotForError("masks")
    return cudnn_peer.prepared(cell, *_tensors(cell), tensor(cell.mask.dense))


# ---------------------------------------------------------------- FlashInfer


def flashinfer(cell: Cell) -> Call:
    """FlashInfer's block-sparse wrapper, its library built beforehand."""
    import flashinfer_peer

    if cell.mask.dense is None:
        raise NotForError("masks")
    return flashinfer_peer.prepared(cell, *_tensors(cell), tensor(cell.mask.dense))


PEERS: dict[str, Callable[[Cell], Call]] = {
    "FA2": fa2,
    "cuDNN": cudnn,
    "cuDNN-sparse": cudnn_sparse,
    "SDPA-mask": sdpa_mask,
    "FA3": fa3,
    "FA4": fa4,
    "Flex": flex,
    "Flex+FA4": flex_fa4,
    "FlashInfer": flashinfer,
}
