"""The paper's own rule for row-wise or block-wise attention (STOF, arXiv 2506.06095, Eq. 1)."""

from __future__ import annotations

import math
from typing import Literal

from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Demand

__all__ = ["stof_eq1"]


def stof_eq1(
    problem: Problem, mask: AnyMask | None, block: int = 16, tau: float = 1.2
) -> Literal["blockwise", "rowwise"]:
    """Return what Eq. 1 of the paper says.

    ``load_row_ptr[n] / n**2 - tau / log2(n)**2``, with ``n = ceil(seq / 16)``, is negative for
    row-wise. As printed, the listed blocks are 16x16, like ``n``; then row-wise comes out for none
    of the paper's own masks. The text counts 64x64 tiles; over the same ``n**2`` nearly everything
    comes out row-wise.

    Parameters
    ----------
    problem, mask
        As `choose`.
    block : {16, 64}
        Rows and columns of the blocks that ``load_row_ptr`` counts.
    tau : float
        The paper's 1.2.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> problem = Problem("float16", 1, 12, 12, 4096, 4096, 64, 64)
    >>> mask = masks.sliding_window(4096, window=32).tobsr()
    >>> stof_eq1(problem, mask, 16), stof_eq1(problem, mask, 64)
    ('blockwise', 'rowwise')
    """
    n = max(-(-problem.seq_q // 16), 2)
    listed = float(Demand(problem, mask).tiles((block, block)).lengths.sum())
    threshold = listed / n**2 - tau / math.log2(n) ** 2
    return "rowwise" if threshold < 0 else "blockwise"
