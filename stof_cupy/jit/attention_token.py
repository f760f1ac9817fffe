"""Spec of the attention of one new token, from its projections to its result."""

from __future__ import annotations

from functools import cache

from stof_cupy.jit.spec import KernelSpec

__all__ = ["TOKEN_HEADS", "TOKEN_HEAD_DIMS", "TOKEN_SPLITS", "attention_token", "token_floats"]

TOKEN_HEAD_DIMS = (64, 128, 256)
"""Head dims that it is instantiated for; of others, multiples of 8, the rest is not loaded."""

TOKEN_HEADS = 8
"""Query heads of a CTA, at most."""

TOKEN_SPLITS = 64
"""Splits of the keys, at most."""

_SHORT = {"float16": "f16", "bfloat16": "bf16"}
_WARPS = 8


def token_floats(head_dim: int) -> int:
    """Return the floats of a split's result, for a head dim of `TOKEN_HEAD_DIMS`."""
    return TOKEN_HEADS * (head_dim + 2)


@cache
def attention_token(dtype: str, head_dim: int) -> KernelSpec:
    """Return the kernel for heads of up to `head_dim`, one of `TOKEN_HEAD_DIMS`."""
    t = _SHORT[dtype]
    rows = (TOKEN_HEADS + 2) * (head_dim + 32) * 2 + 64
    sums = _WARPS * TOKEN_HEADS * (8 + (head_dim + 4) * 4) + 16
    return KernelSpec(
        name=f"attention_token_{t}_d{head_dim}",
        header="attention/token.cuh",
        type=f"stof::attention::Token<stof::{t}, {head_dim}>",
        params=(
            *((name, "u8") for name in ("q", "k", "v", "q_norm", "k_norm")),
            *((name, "u8") for name in ("frequency", "positions", "lengths")),
            *((name, "u8") for name in ("key_cache", "value_cache", "out", "partial", "counters")),
            *((f"{name}_{axis}", "i8") for name in "qkv" for axis in ("batch", "head")),
            *((f"cache_{axis}", "i8") for axis in ("batch", "head", "key")),
            *((f"out_{axis}", "i8") for axis in ("batch", "head")),
            ("position_batch", "i8"),
            *((name, "i4") for name in ("items", "kv_heads", "group", "octets", "splits")),
            *((name, "i4") for name in ("least", "keys", "head_dim", "half", "interleaved")),
            *((name, "i4") for name in ("ring", "early")),
            *((name, "f4") for name in ("factor", "cap", "magnitude", "eps")),
        ),
        threads=_WARPS * 32,
        smem_bytes=rows + sums,
        waits=True,
    )
