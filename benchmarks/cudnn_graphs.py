"""cuDNN's attention beyond what SDPA passes on to it, as graphs of nvidia-cudnn-frontend.

Windows, and sequences of any lengths one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

__all__ = ["sequences", "windowed"]


def windowed(q: Any, k: Any, v: Any, before: int | None, after: int | None) -> Callable[[], Any]:
    """Return a call in which a query sees so many keys before and after its own; None: all."""
    graph = _Graph(q, k, v, before, after)
    return lambda: graph(q, k, v)


def sequences() -> Callable[..., Any]:
    """Return what is called like ``flash_attn_varlen_func``; its first call builds the graph."""
    made: list[_Graph] = []

    def call(
        q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, max_seqlen_q: int, causal: bool, **same: Any
    ) -> Any:
        # Of keys the same is told again: sequences see themselves.
        if not made:
            after = 0 if causal else None
            made.append(_Graph(q, k, v, None, after, bounds=cu_seqlens_q, longest=max_seqlen_q))
        return made[0](q, k, v)

    return call


@lru_cache(maxsize=1)
def _handle() -> Any:
    import cudnn

    return cudnn.create_handle()


class _Graph:
    """Attention of arrays like some, on torch's current stream.

    Parameters
    ----------
    q, k, v : tensor (batch, heads, seq, head_dim) or (tokens, heads, head_dim)
    before, after : int or None
        Keys that a query sees before and after its own; None: all.
    bounds : int tensor (sequences + 1,), optional
        Where sequences begin, and their end, of tokens.
    longest : int
        Tokens of the longest of them.
    """

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        before: int | None,
        after: int | None,
        *,
        bounds: Any = None,
        longest: int = 0,
    ) -> None:
        import cudnn
        import torch

        kinds = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}
        single = cudnn.data_type.FLOAT
        self._graph = graph = cudnn.pygraph(
            io_data_type=kinds[q.dtype],
            intermediate_data_type=single,
            compute_data_type=single,
            handle=_handle(),
            is_cuda_graph_replay_expected=True,
        )
        self._beside: dict[Any, Any] = {}
        how: dict[str, Any] = {}
        if before is not None:
            how["diagonal_band_left_bound"] = before + 1  # a query's own key is one of them
        if after is not None:
            how["diagonal_band_right_bound"] = after
        if bounds is None:
            self._inputs = [graph.tensor_like(x) for x in (q, k, v)]
        else:
            self._inputs = [self._packed(x, len(bounds) - 1, longest) for x in (q, k, v)]
            how |= self._lengths(bounds, [x[0].numel() for x in (q, k, v)])
        at, _ = graph.sdpa(
            **dict(zip("qkv", self._inputs, strict=True)),
            generate_stats=False,
            attn_scale=q.shape[-1] ** -0.5,
            diagonal_alignment=cudnn.diagonal_alignment.TOP_LEFT,
            **how,
        )
        first = self._inputs[0]
        self._output = at.set_output(True).set_dim(first.get_dim()).set_stride(first.get_stride())
        if bounds is not None:
            at.set_ragged_offset(first.ragged_offset)
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        size = max(1, graph.get_workspace_size())
        self._workspace = torch.empty(size, dtype=torch.uint8, device=q.device)

    def _packed(self, x: Any, count: int, longest: int) -> Any:
        """Return the place of tokens (tokens, heads, head_dim), as (count, heads, longest, D)."""
        token, head, one = x.stride()
        return self._graph.tensor(
            dim=(count, x.shape[1], longest, x.shape[2]),
            stride=(token * longest, head, token, one),
        )

    def _lengths(self, bounds: Any, tokens: list[int]) -> dict[str, Any]:
        """Tell the inputs where each sequence begins, in elements; return how long each is."""
        four = (-1, 1, 1, 1)
        for place, token in zip(self._inputs, tokens, strict=True):
            begins = (bounds.long() * token).view(four)
            offset = self._graph.tensor_like(begins)
            place.set_ragged_offset(offset)
            self._beside[offset] = begins
        length = bounds.diff().int().view(four)
        lengths = self._graph.tensor_like(length)
        self._beside[lengths] = length
        return {"use_padding_mask": True, "seq_len_q": lengths, "seq_len_kv": lengths}

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """Return the output, a tensor like the queries."""
        import cudnn
        import torch

        out = torch.empty_like(q)
        arrays = dict(zip(self._inputs, (q, k, v), strict=True)) | {self._output: out}
        cudnn.set_stream(handle=_handle(), stream=torch.cuda.current_stream().cuda_stream)
        self._graph.execute(arrays | self._beside, self._workspace, handle=_handle())
        return out
