"""The stacks of engine_stacks.py in PyTorch, as one would write them for speed.

One product for queries, keys and values, one for both halves of a gated MLP; SDPA with
``is_causal`` or a held mask, or FlexAttention with a held block mask; run in inference mode. T5's
relative bias is looked up by distance beforehand: SDPA is given it as what is added to scores, the
mask in it, FlexAttention as a ``score_mod``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import engine_stacks as stacks
import torch
from engine_attends import Attend, biased, crossing, flex, sdpa
from engine_stacks import EPS, Cell, Stack
from torch import nn
from torch.nn import functional


def tensor(array: Any, device: str, dtype: Any = None) -> Any:
    """Return a NumPy array, bfloat16 as well, as a tensor."""
    if array.dtype.name == "bfloat16":
        made = torch.from_numpy(array.view("i2")).view(torch.bfloat16)
    else:
        made = torch.from_numpy(array)
    return made.to(device, dtype)


# ---------------------------------------------------------------- the stack


class Layer(nn.Module):
    """A layer; of BERT's kind if `post`, of LLaMA's if `rotary`."""

    def __init__(self, stack: Stack, attend: Attend) -> None:
        super().__init__()
        self.stack, self.attend = stack, attend
        biased = not stack.rotary
        up = stack.inner * (2 if stack.rotary else 1)
        self.qkv = nn.Linear(stack.hidden, stack.qkv, bias=biased)
        self.out = nn.Linear(stack.hidden, stack.hidden, bias=biased)
        self.up = nn.Linear(stack.hidden, up, bias=biased)
        self.down = nn.Linear(stack.inner, stack.hidden, bias=biased)
        norm = nn.RMSNorm if stack.rotary else nn.LayerNorm
        self.norm1, self.norm2 = (norm(stack.hidden, eps=EPS) for _ in range(2))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """Return the hidden states after the layer."""
        if self.stack.post:
            x = self.norm1(x + self.attention(x, cos, sin))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))

    def attention(self, x: Any, cos: Any, sin: Any) -> Any:
        """Return what is added by attention."""
        s = self.stack
        sizes = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        q, k, v = (
            part.unflatten(-1, (-1, s.head_dim)).transpose(1, 2)
            for part in self.qkv(x).split(sizes, dim=-1)
        )
        if s.rotary:
            q, k = (turned(each, cos, sin) for each in (q, k))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def mlp(self, x: Any) -> Any:
        """Return what is added by the MLP."""
        if self.stack.rotary:
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(functional.silu(gate) * up)
        return self.down(functional.gelu(self.up(x), approximate=self.stack.gelu))


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """Return x with halves of each head turned by the positions."""
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-two, one), dim=-1) * sin


class Model(nn.Module):
    """A stack of layers."""

    def __init__(self, cell: Cell, attend: Attend, weights: dict[str, Any], dtype: Any) -> None:
        super().__init__()
        with torch.device("meta"):
            self.layers = nn.ModuleList(Layer(cell.stack, attend) for _ in range(cell.stack.layers))
        self.load_state_dict({f"layers.{name}": x for name, x in weights.items()}, assign=True)
        device = next(iter(weights.values())).device
        at = torch.arange(cell.seq, device=device)[:, None]
        radians = at * torch.from_numpy(stacks.frequencies(cell.stack)).to(device)
        radians = torch.cat((radians, radians), dim=-1)
        self.cos, self.sin = radians.cos().to(dtype), radians.sin().to(dtype)

    def forward(self, x: Any) -> Any:
        """Return the hidden states after all layers."""
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x


# ---------------------------------------------------------------- T5


class T5Layer(nn.Module):
    """A layer of an encoder; of a decoder if it is told how to attend to the encoder."""

    def __init__(self, stack: Stack, attend: Attend, cross: Attend | None) -> None:
        super().__init__()
        self.stack, self.attend, self.cross = stack, attend, cross
        wide, inner = stack.hidden, stack.inner
        self.qkv, self.out = _plain(wide, 3 * wide), _plain(wide, wide)
        self.up, self.down = _plain(wide, inner), _plain(inner, wide)
        self.norm1, self.norm2 = (nn.RMSNorm(wide, eps=EPS) for _ in range(2))
        if cross is not None:
            self.cross_q, self.cross_kv = _plain(wide, wide), _plain(wide, 2 * wide)
            self.cross_out, self.norm3 = _plain(wide, wide), nn.RMSNorm(wide, eps=EPS)

    def forward(self, x: Any, source: Any = None) -> Any:
        """Return the hidden states after the layer, `source` being the encoder's."""
        q, k, v = self.heads(self.qkv(self.norm1(x)), 3)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        if self.cross is not None:
            (q,) = self.heads(self.cross_q(self.norm3(x)), 1)
            k, v = self.heads(self.cross_kv(source), 2)
            x = x + self.cross_out(self.cross(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.relu(self.up(self.norm2(x))))

    def heads(self, x: Any, count: int) -> list[Any]:
        """Return the parts of a product, by heads."""
        split = (-1, self.stack.head_dim)
        return [each.unflatten(-1, split).transpose(1, 2) for each in x.chunk(count, dim=-1)]


def _plain(columns: int, rows: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


class T5(nn.Module):
    """An encoder and a decoder, which are given the same hidden states."""

    def __init__(self, cell: Cell, way: str, weights: dict[str, Any]) -> None:
        super().__init__()
        stack, rest = cell.stack, dict(weights)
        tables = {side: rest.pop(f"{side}_bias") for side in ("encoder", "decoder")}
        attends = {side: biased(cell, way, side, tables[side]) for side in tables}
        cross = crossing(way)
        with torch.device("meta"):
            self.encoder_norm, self.decoder_norm = (
                nn.RMSNorm(stack.hidden, eps=EPS) for _ in tables
            )
            self.encoder, self.decoder = (
                nn.ModuleList(
                    T5Layer(stack, attends[side], cross if side == "decoder" else None)
                    for _ in range(stack.layers)
                )
                for side in tables
            )
        self.load_state_dict(rest, assign=True)

    def forward(self, x: Any) -> Any:
        """Return the decoder's hidden states."""
        source = x
        for layer in self.encoder:
            source = layer(source)
        source = self.encoder_norm(source)
        for layer in self.decoder:
            x = layer(x, source)
        return self.decoder_norm(x)


# ---------------------------------------------------------------- all of them


def placed(weights: dict[str, Any], device: str, dtype: Any) -> dict[str, Any]:
    """Return weights as tensors on a device."""
    return {name: tensor(x, device, dtype) for name, x in weights.items()}


def model(cell: Cell, way: str, weights: dict[str, Any], dtype: Any) -> Callable[[Any], Any]:
    """Return a peer as a call: hidden states in, hidden states out.

    Parameters
    ----------
    cell : Cell
    way : {"eager", "compiled", "flex"}
        SDPA; SDPA and ``torch.compile(mode="max-autotune")``; FlexAttention and that.
    weights : dict of tensors
    dtype : torch.dtype
        Of the weights.
    """
    made: Any = _written(cell, way, weights, dtype).eval()
    if way != "eager":
        torch._dynamo.reset()
        made = torch.compile(made, mode="max-autotune", fullgraph=True, dynamic=False)
    return torch.inference_mode()(lambda x: made(x))


def _written(cell: Cell, way: str, weights: dict[str, Any], dtype: Any) -> nn.Module:
    if cell.stack.buckets:
        return T5(cell, way, weights)
    device = next(iter(weights.values())).device.type
    attend = flex(cell, device) if way == "flex" else sdpa(cell, device)
    return Model(cell, attend, weights, dtype)


def exact(cell: Cell, weights: dict[str, Any], x: Any) -> Any:
    """Return the stack's result in float32, by plain SDPA with a dense mask."""
    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        wide = {name: each.float() for name, each in weights.items()}
        with torch.inference_mode():
            return _written(cell, "eager", wide, torch.float32)(x.float())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept
