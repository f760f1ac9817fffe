"""Products of others, on the inputs of a cell of gemm_cells.py.

Each peer is a function of a `Cell` that returns a call without arguments, which gives a tensor of
the shape of ours. A product with the epilogue of a kind is what PyTorch's user would write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from attention_peers import tensor
from gemm_cells import EPS, Call, Cell


def matmul(cell: Cell) -> Call:
    """``torch.matmul``: cuBLASLt."""
    import torch

    a, b, out = tensor(cell.a), tensor(cell.b).T, tensor(cell.out).clone()
    return lambda: torch.matmul(a, b, out=out)


def lt(cell: Cell) -> Call:
    """cuBLASLt with its own epilogue, bias and GELU by tanh; of a fold after a LayerNorm."""
    import torch
    from torch.nn import functional

    a, b, bias = tensor(cell.a), tensor(cell.b).T, tensor(cell.bias)
    if cell.kind != "fold":
        return lambda: torch._addmm_activation(bias, a, b, use_gelu=True)
    weight, shift = tensor(cell.weight), tensor(cell.shift)

    def run() -> Any:
        normed = functional.layer_norm(a, weight.shape, weight, shift, EPS)
        return torch._addmm_activation(bias, normed, b, use_gelu=True)

    return run


def eager(cell: Cell) -> Call:
    """cuBLASLt and kernels of PyTorch's."""
    function, tensors = written(cell.kind), _tensors(cell)
    return lambda: function(*tensors)


def compiled(cell: Cell) -> Call:
    """``torch.compile`` with every configuration timed; its cache is Inductor's own."""
    function, tensors = _compiled(cell.kind), _tensors(cell)
    return lambda: function(*tensors)


PEERS: dict[str, Callable[[Cell], Call]] = {
    "matmul": matmul,
    "Lt": lt,
    "eager": eager,
    "compile": compiled,
}

QUICK = {
    "plain": ("matmul",),
    "bias_gelu": ("Lt",),
    "swiglu": ("eager",),
    "layer_norm": ("eager",),
    "fold": ("eager", "Lt"),
}
"""The peers of a kind that start at once."""


def _tensors(cell: Cell) -> list[Any]:
    arrays = [cell.a, cell.b, cell.bias, cell.residual, cell.weight, cell.shift]
    return [None if x is None else tensor(x) for x in arrays]


def written(kind: str) -> Callable[..., Any]:
    """Return a kind as a function of tensors."""
    from torch.nn import functional as F  # noqa: N812  # as everybody calls it

    def bias_gelu(a: Any, b: Any, bias: Any, *_: Any) -> Any:
        return F.gelu(F.linear(a, b, bias), approximate="tanh")

    def swiglu(a: Any, b: Any, *_: Any) -> Any:
        gate, up = F.linear(a, b).chunk(2, -1)
        return F.silu(gate) * up

    def layer_norm(a: Any, b: Any, bias: Any, residual: Any, weight: Any, shift: Any) -> Any:
        return F.layer_norm(F.linear(a, b, bias) + residual, weight.shape, weight, shift, EPS)

    def fold(a: Any, b: Any, bias: Any, _: Any, weight: Any, shift: Any) -> Any:
        return bias_gelu(F.layer_norm(a, weight.shape, weight, shift, EPS), b, bias)

    def plain(a: Any, b: Any, *_: Any) -> Any:
        return F.linear(a, b)

    return {
        "plain": plain,
        "bias_gelu": bias_gelu,
        "swiglu": swiglu,
        "layer_norm": layer_norm,
        "fold": fold,
    }[kind]


@lru_cache(maxsize=1)
def _compiled(kind: str) -> Callable[..., Any]:
    import torch

    torch._dynamo.reset()
    torch._dynamo.config.cache_size_limit = 256  # a shape each
    # Its own graphs would copy inputs, and cannot be captured into ours.
    mode = "max-autotune-no-cudagraphs"
    made: Callable[..., Any] = torch.compile(written(kind), mode=mode, dynamic=False)
    return made
