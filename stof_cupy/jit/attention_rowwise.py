"""The row-wise attention kernel as a spec; its instances are many, most of them made when used."""

from __future__ import annotations

import re
from functools import cache

from stof_cupy.jit.spec import KernelSpec

__all__ = ["ROWWISE_HEAD_DIMS", "ROWWISE_SOURCES", "attention_rowwise"]

ROWWISE_HEAD_DIMS = (32, 64, 128, 256)
"""Head dims that row-wise attention is instantiated for; others are padded with zeros."""

ROWWISE_SOURCES = {"KeyLists": 0, "TileLists": 128}
"""What lists the keys of a row, and how many keys a warp queues in shared memory for it."""


@cache
def attention_rowwise(
    dtype: str,
    head_dim: int,
    pairs: int,
    source: str,
    stages: tuple[str, ...] = (),
    *,
    wide: bool = True,
) -> KernelSpec:
    """Return row-wise attention.

    Parameters
    ----------
    dtype : str
    head_dim : int
        32, 64, 128 or 256.
    pairs : int
        Keys that a warp takes at a time, over 16: 1 or 2.
    source : {"KeyLists", "TileLists"}
        What lists the keys of a row, see ``cuda/attention/keys.cuh``.
    stages : tuple of str
        What turns products into scores, see ``cuda/attention/element_scores.cuh``: ``"Softcap"``,
        ``"Alibi"``, ``"Relative"``, ``"Additive<stof::f16>"`` and the like.
    wide : bool
        Whether rows of q, k and v are 16-byte aligned and head dims multiples of 8.
    """
    t = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    pointers = ["q", "k", "v", "out", "lse"]
    pointers += ["row_ptr", "cols", "bitmap_id", "bitmaps", "order", "mask_of", "kv_lengths"]
    pointers += ["overflow", "sinks", "alibi", "relative", "bias", "query_at", "key_at"]
    strides = [f"{x}_{axis}" for x in ("q", "k", "v", "out") for axis in ("batch", "head", "row")]
    strides += ["bias_batch", "bias_head", "bias_row", "bias_key"]
    sizes = ["mask_batch", "mask_head", "heads", "heads_per_kv", "seq_q", "seq_k", "dim_qk"]
    sizes += [
        "dim_v",
        "blocks",
        "block_rows",
        "long_rows",
        "wide_q",
        "wide_k",
        "wide_v",
        "pairs_out",
        "reach",
        "early",
    ]
    names = "".join("_" + re.sub(r"stof::|\W", "", each.lower()) for each in stages)
    scores = ", ".join(f"stof::attention::{each}" for each in stages)
    return KernelSpec(
        name=f"attention_rowwise_{t}_d{head_dim}_p{pairs}_{source.lower()}{names}"
        + ("" if wide else "_any"),
        header="attention/rowwise.cuh",
        type=f"stof::attention::Rowwise<stof::{t}, {head_dim}, {pairs}, {str(wide).lower()}, "
        f"stof::attention::{source}, stof::attention::Scores<{scores}>>",
        params=(
            *((name, "u8") for name in pointers),
            *((name, "i8") for name in strides),
            *((name, "i4") for name in sizes),
            *((name, "f4") for name in ("factor", "cap", "bias_masking")),
        ),
        threads=128,
        smem_bytes=4 * 4 * (max(head_dim, 64) + 2 + ROWWISE_SOURCES[source]),
        waits=True,
    )
