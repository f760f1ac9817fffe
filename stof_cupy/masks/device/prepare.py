"""What runs before a mask is built: kernels that bring CuPy arrays into the form of a leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stof_cupy.dtypes import dtype_name
from stof_cupy.jit import mask_kernels

__all__ = ["cut_scores", "find_documents"]


def find_documents(ids: Any, causal: bool, bounds: Any) -> Callable[[], None]:
    """Return what writes each token's first key and the one after its last to `bounds`.

    Parameters
    ----------
    ids : cupy.ndarray (tokens,)
        Integers.
    causal : bool
        Whether a token sees no key after itself.
    bounds : cupy.ndarray (2, tokens)
        int32, contiguous.
    """
    from stof_cupy.jit.launch import kernel

    run = kernel(mask_kernels.mask_documents(ids.dtype.name))
    params = run.pack(
        ids=ids.data.ptr,
        start=bounds.data.ptr,
        stop=bounds.data.ptr + bounds.strides[0],
        id_stride=ids.strides[0] // ids.itemsize,
        lead_stride=0,
        out_lead_stride=0,
        tokens=len(ids),
        causal=causal,
    )
    grid = (-(-len(ids) // mask_kernels.DOCUMENT_CHUNK), 1)
    return lambda: run(grid, params)


def cut_scores(scores: Any, lead: tuple[int, int], top: int, cuts: Any) -> Callable[[], None]:
    """Return what writes to `cuts` which of a row's scores are kept.

    Parameters
    ----------
    scores : cupy.ndarray (*lead, rows, cols)
        float32, float16 or bfloat16; broadcasts to `lead`.
    lead : tuple of int
        Two leading axes.
    top : int
        How many are kept in a row.
    cuts : cupy.ndarray (*lead, rows, 2)
        int32: the bits of a float32, and a column. Contiguous.
    """
    import cupy

    from stof_cupy.jit.launch import kernel

    rows, cols = scores.shape[-2:]
    scores = cupy.broadcast_to(scores, (*lead, rows, cols))
    outer, inner, row, col = (stride // scores.itemsize for stride in scores.strides)
    run = kernel(mask_kernels.mask_select(dtype_name(scores.dtype)))
    params = run.pack(
        scores=scores.data.ptr,
        cut=cuts.data.ptr,
        row_stride=row,
        col_stride=col,
        lead_a_stride=outer,
        lead_b_stride=inner,
        lead_b=lead[1],
        rows=rows,
        cols=cols,
        top=top,
    )
    return lambda: run((int(np.prod(lead)) * rows,), params)
